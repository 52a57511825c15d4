"""What a hub offers: only what is needed, asked within a deadline, refused in words."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from fake_hub import FILES, WEIGHTS, FakeHub, online_hub
from huggingface_hub import constants

from vlm.errors import DownloadError, ModelNotFoundError
from vlm.hub_listing import list_model


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running hub with a small whole model."""
    with online_hub(monkeypatch) as running:
        yield running


def test_unknown_model_and_model_without_safetensors(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match="has no model Qwen/Nothing"):
        list_model("Qwen/Nothing")
    del hub.files["model.safetensors"]
    with pytest.raises(ModelNotFoundError, match="no config.json with safetensors"):
        list_model(hub.hub_id)


def test_file_names_that_leave_the_folder_are_ignored(hub: FakeHub) -> None:
    hub.files["../config.json"] = b"evil"
    hub.files["onnx/model.safetensors"] = b"not ours"
    names = {file.name for file in list_model(hub.hub_id).files}
    assert names == set(FILES) - {"README.md", "pytorch_model.bin"}


def test_shards_are_preferred_when_an_index_names_them(hub: FakeHub) -> None:
    hub.files["model.safetensors.index.json"] = b"{}"
    hub.files["model-00001-of-00002.safetensors"] = WEIGHTS
    hub.files["model-00002-of-00002.safetensors"] = WEIGHTS
    names = [file.name for file in list_model(hub.hub_id).files if "safetensors" in file.name]
    assert "model.safetensors" not in names and len(names) == 3


def test_hub_that_accepts_but_never_answers_is_given_up(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlm.hub_listing.CONTACT_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(DownloadError, match="cannot be reached"):
            list_model(hub.hub_id, endpoint)
        assert time.monotonic() - start < 2


def test_name_lookup_that_hangs_is_given_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr("vlm.hub_listing.CONTACT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(
        "vlm.hub_listing.HfApi.model_info", lambda *args, **kwargs: release.wait(10)
    )
    with pytest.raises(DownloadError, match=r"no answer within"):
        list_model(hub.hub_id)
    release.set()


def test_offline_variable_forbids_asking(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        list_model(hub.hub_id)
    assert hub.requests == []
