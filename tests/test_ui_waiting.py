"""The wait in words: stage, percent, seconds left where they are measured, seconds so far."""

from __future__ import annotations

import time

import pytest

from vlm.chat import Piece, Rates
from vlm.ui.pace import Pace
from vlm.ui.texts import EN, ZH
from vlm.ui.waiting import Wait


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (Piece("queued", queue_position=3), "Waiting: 3 questions are ahead of yours · 4 s so far"),
        (Piece("queued", queue_position=1), "Waiting: one answer is being written before yours"),
        (Piece("queued"), "Beginning"),
        (Piece("loading"), "The model is still loading"),
        (Piece("vision", progress=0.4), "Reading the picture: 40 %"),
        (Piece("prefill", progress=0.999), "Reading the question: 100 %"),
        (Piece("decode"), "Writing · 4 s"),
    ],
)
def test_the_wait_in_words(now: list[float], piece: Piece, words: str) -> None:
    wait = Wait(Rates)
    now[0] += 4.6
    assert wait.describe(piece, 0, EN).startswith(words)


def test_a_queue_tells_seconds_once_a_turn_was_measured(now: list[float]) -> None:
    wait = Wait(lambda: Rates(turn_s=10.0))
    assert "2 questions are ahead of yours, about 20 s ·" in wait.describe(
        Piece("queued", queue_position=2), 0, EN
    )
    now[0] += 6
    assert ", about 15 s ·" in wait.describe(Piece("queued", queue_position=2), 0, EN)
    now[0] += 1
    assert ", about 10 s ·" in wait.describe(Piece("queued", queue_position=1), 0, EN)
    now[0] += 20
    late = wait.describe(Piece("queued", queue_position=1), 0, EN)
    assert "about" not in late and "27 s so far" in late, "what did not come true is not told"


def test_the_seconds_left_of_a_stage_follow_its_own_pace(now: list[float]) -> None:
    wait = Wait(Rates)
    assert "left" not in wait.describe(Piece("vision"), 0, EN)
    now[0] += 2
    assert "20 %, about 8 s left · 2 s" in wait.describe(Piece("vision", progress=0.2), 0, EN)
    now[0] += 3
    again = wait.describe(Piece("vision", progress=0.2), 0, EN)
    assert "20 %, about 5 s left · 5 s" in again, "a heartbeat lets the seconds go on"
    assert "left" not in wait.describe(Piece("prefill", progress=0.1), 0, EN), "another stage"


def test_an_answer_that_is_silent_says_that_it_is_still_written(now: list[float]) -> None:
    wait = Wait(Rates)
    assert wait.describe(Piece("decode", text="A"), 1, EN) == ""
    now[0] += 1.0
    assert wait.describe(Piece("decode"), 1, EN) == ""
    now[0] += 0.9
    assert wait.describe(Piece("decode"), 1, EN) == "Writing · 1 s so far"
    assert wait.describe(Piece("decode", text=" cat"), 5, EN) == ""


def test_the_language_may_change_while_one_waits(now: list[float]) -> None:
    wait = Wait(Rates)
    piece = Piece("vision", progress=0.5)
    assert "Reading the picture" in wait.describe(piece, 0, EN)
    assert "正在看图：50 %" in wait.describe(piece, 0, ZH)


def test_a_pace_is_believed_only_after_some_time_and_some_progress() -> None:
    pace = Pace()
    pace.note(0.5, 10.0)
    assert pace.left_s(10.0) is None
    pace.note(0.6, 10.1)
    assert pace.left_s(10.1) is None, "a first leap is no pace"
    pace.note(0.75, 15.0)
    assert pace.left_s(15.0) == pytest.approx(5.0)
    assert pace.left_s(21.0) is None
