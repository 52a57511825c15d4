"""One file from a hub: resumed after breaks, checked, and fetched again when damaged."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FILES, WEIGHTS, FakeHub, fetch, online_hub, serve, weight_requests

from vlm.download import Download, DownloadProgress
from vlm.errors import DownloadError, ModelNotFoundError
from vlm.hub_cache import complete_snapshot
from vlm.hub_file import RETRY_STATUS
from vlm.hub_listing import list_model


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running hub with a small whole model."""
    with online_hub(monkeypatch) as running:
        yield running


def test_goes_on_after_breaks_without_fetching_a_byte_twice(hub: FakeHub, tmp_path: Path) -> None:
    hub.breaks_after = [1_000_000, 700_000]
    folder = fetch(hub, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    ranges = weight_requests(hub)
    assert len(ranges) == 3 and ranges[0] == ""
    starts = [int(r.removeprefix("bytes=").rstrip("-")) for r in ranges[1:]]
    assert starts == [1_000_000, 1_700_000]


def test_part_survives_a_failed_start_and_the_next_one_goes_on(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.breaks_after = [1_000_000, 0, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"broke \(.*\).*goes on from there"):
        fetch(hub, tmp_path)
    assert complete_snapshot(hub.hub_id, tmp_path) is None
    hub.breaks_after.clear()
    hub.requests.clear()
    folder = fetch(hub, tmp_path)
    assert weight_requests(hub) == ["bytes=1000000-"]
    assert complete_snapshot(hub.hub_id, tmp_path) == folder


def test_stop_from_progress_keeps_the_part(hub: FakeHub, tmp_path: Path) -> None:
    def stop_in_the_middle(progress: DownloadProgress) -> None:
        if progress.done_bytes > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Download(list_model(hub.hub_id), tmp_path, stop_in_the_middle).run()
    parts = list((tmp_path / "models--Qwen--Tiny" / "blobs").glob("*.part"))
    assert len(parts) == 1 and parts[0].stat().st_size > 1_000_000
    assert (fetch(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_server_without_ranges_and_busy_server(hub: FakeHub, tmp_path: Path) -> None:
    hub.ignores_ranges = True
    hub.statuses = [min(RETRY_STATUS), 503]
    hub.breaks_after = [900_000]
    assert (fetch(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_server_that_sends_on_after_the_end_is_left(hub: FakeHub, tmp_path: Path) -> None:
    hub.goes_on_for = 64_000_000
    assert (fetch(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.went_on_for < hub.goes_on_for


def test_damaged_content_is_fetched_again_then_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.damages = 1
    assert (fetch(hub, tmp_path / "once") / "model.safetensors").read_bytes() == WEIGHTS
    hub.damages = 2
    with pytest.raises(DownloadError, match="arrived damaged twice"):
        fetch(hub, tmp_path / "twice")
    assert complete_snapshot(hub.hub_id, tmp_path / "twice") is None


def test_wrong_leftovers_of_a_part_do_not_spoil_the_file(hub: FakeHub, tmp_path: Path) -> None:
    blobs = tmp_path / "models--Qwen--Tiny" / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / f"{hashlib.sha256(WEIGHTS).hexdigest()}.part"
    for leftover in (b"wrong", WEIGHTS + b"too long"):
        part.write_bytes(leftover)
        assert (fetch(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
        shutil.rmtree(tmp_path / "models--Qwen--Tiny")
        blobs.mkdir(parents=True)


def test_token_goes_to_the_hub_but_not_to_where_it_redirects(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    with pytest.raises(ModelNotFoundError, match="HF_TOKEN"):
        list_model(hub.hub_id)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve(FakeHub(dict(FILES))) as cdn:
        # Another name of this machine is another host.
        hub.moved_to = cdn.url.replace("127.0.0.1", "localhost")
        hub.breaks_after = cdn.breaks_after = [1_000_000]
        assert (fetch(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    assert {auth for _, _, auth in cdn.requests} == {""}
    assert [wanted for _, wanted, _ in cdn.requests] == ["", "bytes=1000000-"]
