"""`batch`: a row for every picture, whatever the picture is and however the run ends."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY
from fake_engine import FakeEngine, Script, wait_until
from PIL import Image, ImageDraw

import demo
from vlm.chat import ModelState, Piece
from vlm.commands import batch
from vlm.commands.batch_blank import why_blank
from vlm.commands.batch_files import find_files
from vlm.commands.batch_results import ResultsFile
from vlm.commands.batch_work import Batch, Work
from vlm.errors import GenerationError

ASK_KEYS = {
    "answer", "finish_reason", "prompt_tokens", "visual_tokens", "cached_tokens", "ttft_s",
    "prefill_tps", "decode_tps", "peak_rss_bytes", "model", "precision",
}  # fmt: skip


def draw(path: Path, size: tuple[int, int] = (160, 128)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, (220, 30, 30))
    ImageDraw.Draw(image).ellipse((20, 20, 90, 90), fill=(20, 40, 200))
    image.save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pictures, a damaged one, and things that are no pictures."""
    photos = tmp_path / "photos"
    draw(photos / "a.png")
    draw(photos / "deeper" / "b.jpg")
    (photos / "c damaged.jpg").write_bytes(b"no picture at all")
    (photos / "notes.txt").write_text("not a picture")
    draw(photos / ".hidden.png")
    return photos


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setattr(batch, "make_engine", lambda settings: engine)
    return engine


def ask(*words: object) -> int:
    parser = argparse.ArgumentParser()
    batch.add_arguments(parser)
    return batch.run(parser.parse_args([str(word) for word in words]))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def names(found: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(Path(row["file"]).name for row in found)


def test_the_real_model_answers_what_can_be_read_and_says_why_for_the_rest(
    bundled_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (64, 64), "white").save(folder / "d blank.png")
    out = tmp_path / "results.jsonl"
    words = ["--model", bundled_folder, "--precision", "fp32", "--max-new-tokens", 4]
    assert ask(folder, "-q", "What colour is it?", "--out", out, "--skip-blank", *words) == 1
    found = {Path(row["file"]).name: row for row in rows(out)}
    assert set(found) == {"a.png", "b.jpg", "c damaged.jpg", "d blank.png"}
    for name in ("a.png", "b.jpg"):
        assert set(found[name]) == ASK_KEYS | {"file", "question"}
        assert found[name]["visual_tokens"] == 20 and found[name]["ttft_s"] > 0
        assert found[name]["answer"] and found[name]["question"] == "What colour is it?"
    assert "not a picture" in found["c damaged.jpg"]["error"]
    assert found["d blank.png"]["skipped"] == "The picture is blank: all of it is white."
    said = capsys.readouterr().err
    assert "2 answered, 1 skipped, 1 unreadable in this run" in said


def test_a_second_run_asks_only_about_what_is_new(
    engine: FakeEngine,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.jsonl"
    assert ask(folder, "-q", "What?", "--out", out) == 1
    assert len(rows(out)) == 3 and len(engine.requests) == 2
    monkeypatch.chdir(tmp_path)  # and another spelling of the same folder
    draw(folder / "new.png")
    assert ask("./photos/", "-q", "What?", "--out", "out.jsonl") == 1
    assert len(engine.requests) == 3
    assert names(rows(out)) == ["a.png", "b.jpg", "c damaged.jpg", "new.png"]
    capsys.readouterr()
    assert ask(folder, "-q", "What?", "--out", out) == 1
    assert len(rows(out)) == 4
    assert capsys.readouterr().err == (
        f"Nothing to do: {out} has all 4 pictures already. "
        "Unreadable: 1; --retry-errors tries them again.\n"
    )


def test_another_question_model_or_instruction_is_asked_anew(
    engine: FakeEngine, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    picture = folder / "a.png"
    for words in (["-q", "What?"], ["-q", "Why?"], ["-q", "What?", "--system", "Be brief."]):
        for _ in range(2):
            ask(picture, "--out", out, *words)
    engine.model_state = ModelState("ready", model="another/Model", precision="int8")
    ask(picture, "--out", out, "-q", "What?")
    asked = [(row["question"], row["model"], row.get("system")) for row in rows(out)]
    assert asked == [
        ("What?", "fake/Fake-VL", None),
        ("Why?", "fake/Fake-VL", None),
        ("What?", "fake/Fake-VL", "Be brief."),
        ("What?", "another/Model", None),
    ]


def test_what_failed_for_no_fault_of_the_picture_is_tried_again(
    engine: FakeEngine, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    engine.script = Script(words=(), error=GenerationError("It broke. Ask again."))
    assert ask(folder / "a.png", folder / "c damaged.jpg", "-q", "What?", "--out", out) == 1
    assert "1 unreadable, 1 failed" in capsys.readouterr().err
    engine.script = Script()
    assert ask(folder / "a.png", folder / "c damaged.jpg", "-q", "What?", "--out", out) == 1
    last = rows(out)[-1]
    assert len(rows(out)) == 3 and last["answer"] == "A red circle."
    draw(folder / "repaired.png").replace(folder / "c damaged.jpg")
    assert ask(folder, "-q", "What?", "--out", out, "--retry-errors") == 0
    assert [row["answer"] for row in rows(out)[3:]] == ["A red circle."] * 2  # and b.jpg
    assert ask(folder, "-q", "What?", "--out", out) == 0, "its later row counts"


@pytest.mark.parametrize(
    ("tail", "is_kept"),
    [
        (b'{"file": "photos/z.png", "question": "Wh', False),
        (b'{"file": "\xe7\xba', False),
        (b'{"file": "photos/z.png", "question": "What?", "model": "m"}', True),
    ],
)
def test_a_last_line_that_was_cut_off_is_mended(
    tail: bytes, is_kept: bool, engine: FakeEngine, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assert ask(folder / "a.png", "-q", "What?", "--out", out) == 0
    whole = out.read_bytes()
    out.write_bytes(whole + tail)
    assert ask(folder, "-q", "What?", "--out", out) == 1  # one cannot be read
    assert out.read_bytes().startswith(whole)
    assert len(rows(out)) == 3 + is_kept


def test_a_first_line_that_was_cut_off_is_mended(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(b'{"fi')
    with ResultsFile(out) as results:
        assert not results.rows and "cut off" in results.notice
        results.add({"file": "caf\udce9 \u7ea2.png"})
    assert rows(out) == [{"file": "caf\udce9 \u7ea2.png"}]


def test_a_file_that_holds_something_else_is_not_touched(
    engine: FakeEngine, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "notes.txt"):
        before = (folder / name).read_bytes()
        assert ask(folder, "-q", "What?", "--out", folder / name) == 1
        assert "does not hold results" in capsys.readouterr().err
        assert (folder / name).read_bytes() == before
    assert not engine.requests


def test_as_many_are_asked_as_are_answered_together(
    engine: FakeEngine, folder: Path, tmp_path: Path
) -> None:
    files = [str(draw(tmp_path / f"{number}.png")) for number in range(6)]
    written: list[dict[str, Any]] = []
    work = Work(
        engine,
        lambda path: batch.open_file(path, batch.Settings()),
        lambda name, picture: batch.make_request(name, "What?", "", batch.Settings(), (picture,)),
        written.append,
        {},
    )
    engine.may_run.clear()
    running = Batch(work, files)
    running.start(4)
    wait_until(lambda: len(engine.answers) == 4)
    time.sleep(0.1)
    assert len(engine.answers) == 4 and not written
    engine.may_run.set()
    wait_until(lambda: running.wait(0.1))
    assert len(written) == 6 and running.counts == {"answered": 6}
    assert len({request.conversation_id for request in engine.requests}) == 6
    assert sorted(engine.forgotten) == sorted(r.conversation_id for r in engine.requests)


def test_ctrl_c_keeps_what_was_answered(
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, out = tmp_path / "many", tmp_path / "out.jsonl"
    for number in range(8):
        draw(folder / f"{number}.png")
    engine.script = Script(by_step=True)
    engine.step(2 * len(engine.script.words))
    wait = Batch.wait

    def interrupted(running: Batch, timeout_s: float) -> bool:
        if running.done == 2 and not engine.answers[-1].is_stopped:
            raise KeyboardInterrupt
        return wait(running, 0.02)

    monkeypatch.setattr(Batch, "wait", interrupted)
    assert ask(folder, "-q", "What?", "--out", out) == 130
    assert [row["answer"] for row in rows(out)] == ["A red circle."] * 2
    said = capsys.readouterr().err
    assert said.endswith(
        f"Stopped. {out} has 2 of 8 pictures (2 answered in this run); "
        "the same command goes on from there.\n"
    )
    monkeypatch.setattr(Batch, "wait", wait)
    engine.reset()
    assert ask(folder, "-q", "What?", "--out", out) == 0
    assert names(rows(out)) == [f"{number}.png" for number in range(8)]


@pytest.mark.slow
def test_ctrl_c_in_the_real_program(tmp_path: Path, bundled_folder: Path) -> None:
    for number in range(40):
        draw(tmp_path / "many" / f"{number:02}.png", (160 + number, 128))
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "demo.py", "batch", str(tmp_path / "many"), "--out", str(out)]
    command += ["-q", "Describe it.", "--model", str(bundled_folder), "--precision", "fp32"]
    started = subprocess.Popen(
        command, cwd=REPOSITORY, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        wait_until(lambda: out.exists() and out.stat().st_size > 0, 240)
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 130
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith("Stopped. ") and f"has {len(rows(out))} of 40 pictures" in last


def test_a_full_disk_ends_it_with_a_sentence(
    engine: FakeEngine, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    assert ask(folder, "-q", "What?", "--out", "/dev/full") == 1
    said = capsys.readouterr().err
    assert "/dev/full cannot be written: No space left on device" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.png"], "There is no file or folder missing.png."),
        (["missing/*.png"], "No file matches missing/*.png."),
        (["."], "There is no picture in the folder ."),
    ],
)
def test_no_pictures_is_an_error(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ask(*words, "-q", "What?", "--out", "out.jsonl") == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_a_model_that_cannot_be_loaded_is_told_and_no_row_written(
    engine: FakeEngine, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.model_state = ModelState("failed", "The model is damaged. Fetch it again.")
    assert ask(folder, "-q", "What?", "--out", tmp_path / "out.jsonl") == 1
    assert "The model is damaged." in capsys.readouterr().err
    assert rows(tmp_path / "out.jsonl") == []


def test_flags_and_notices_reach_their_place(
    engine: FakeEngine, folder: Path, tmp_path: Path
) -> None:
    engine.script = Script(before=(Piece("vision", notices=("Only the first frame is used.",)),))
    flags = "--max-new-tokens 7 --temperature 0.25 --seed 3 --detail fast --system Brief.".split()
    ask(folder / "a.png", "-q", "What?", "--out", tmp_path / "out.jsonl", *flags)
    request = engine.requests[0]
    assert [message.text for message in request.messages] == ["Brief.", "What?"]
    assert (request.sampling.max_new_tokens, request.sampling.seed) == (7, 3)
    assert (request.sampling.temperature, request.max_visual_tokens) == (0.25, 256)
    assert rows(tmp_path / "out.jsonl")[0]["notices"] == ["Only the first frame is used."]


def test_the_command_line_knows_it(
    engine: FakeEngine, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert demo.main(["batch", str(folder), "-q", "What?", "--out", str(out)]) == 1
    assert len(rows(out)) == 3


def test_folders_patterns_and_names_give_each_file_once(folder: Path) -> None:
    bracketed = draw(folder / "[1].png")
    deep, named = folder / "**" / "*.jpg", folder / "notes.txt"
    found = find_files([str(folder), str(deep), str(named), str(bracketed), str(folder / "a.png")])
    assert [Path(path).name for path in found] == [
        "[1].png", "a.png", "c damaged.jpg", "b.jpg", "notes.txt",
    ]  # fmt: skip


def test_a_terminal_sees_a_bar_and_a_log_a_few_lines(engine: FakeEngine) -> None:
    running = Batch(Work(engine, None, None, None, {}), [str(n) for n in range(40)])  # type: ignore[arg-type]
    running.counts.update(answered=8, skipped=2)
    bar = batch.describe(running, 20.0, is_terminal=True)
    assert bar == "[##--------] 10 of 40 · 2 skipped · about 0:01:00 left"
    assert batch.describe(running, 20.0, is_terminal=False) == "20% of 40 pictures"


def noisy(level: float, spread: float, size: tuple[int, int] = (600, 800)) -> Image.Image:
    noise = np.random.default_rng(1).normal(level, spread, (*size, 3))
    return Image.fromarray(noise.clip(0, 255).astype(np.uint8))


def page(text: str, ink: str = "black", ground: str = "white") -> Image.Image:
    image = Image.new("RGB", (1654, 2339), ground)
    ImageDraw.Draw(image).text((200, 300), text, fill=ink, font_size=40)
    return image


def over(level: float) -> Image.Image:
    """A photo of a gradient, lit far too much or far too little."""
    ramp = np.linspace(0, 255, 800)[None, :, None].repeat(600, 0).repeat(3, 2)
    return Image.fromarray((ramp * 0.3 + level).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("image", "word"),
    [
        (Image.new("RGB", (300, 200), "white"), "all of it is white"),
        (Image.new("RGB", (1, 1), "black"), "all of it is black"),
        (Image.new("RGB", (3000, 20), (10, 90, 40)), "the colour #0a5a28"),
        (noisy(12, 4), "blank"),
        (noisy(128, 5), "blank"),
        (over(215), "overexposed"),
        (over(-40), "underexposed"),
        (Image.fromarray(np.tril(np.full((400, 400), 40, np.uint8), -40)).convert("RGB"), "under"),
    ],
)
def test_nothing_to_see_is_told(image: Image.Image, word: str) -> None:
    assert word in why_blank(image)


@pytest.mark.parametrize(
    "image",
    [
        page("Hello"),
        page("A faint line", ink="#bbbbbb"),
        page("A terminal", ink="#666666", ground="black"),
        page("A lamp", ink="#ffffff", ground="#050505"),
        page("Yellow on white is light but no glare", ink="#ffff00"),
        Image.linear_gradient("L").convert("RGB"),
    ],
)
def test_what_shows_little_is_no_blank_picture(image: Image.Image) -> None:
    assert why_blank(image) == ""
