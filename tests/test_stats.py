"""AnswerClock and RateMeter: every figure follows from the moments they were told."""

import time

import pytest

from vlm.chat import Rates
from vlm.stats import REMEMBERED_ANSWERS, AnswerClock, RateMeter


@pytest.fixture
def ticks(monkeypatch):
    """A clock that the test sets by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_every_time_is_the_difference_of_two_moments(ticks):
    clock = AnswerClock(submitted_at=100.0)
    ticks[0] = 103.0
    clock.start()
    with clock.vision():
        ticks[0] = 104.5
    clock.prompt_tokens, clock.cached_tokens, clock.prefilled_tokens = 300, 100, 200
    with clock.prefill():
        ticks[0] = 108.5
    clock.token()
    for _ in range(3):
        ticks[0] += 0.5
        clock.token()
    stats = clock.stats("stop", (7, 8, 9))
    assert (stats.queue_s, stats.vision_s, stats.prefill_s) == (3.0, 1.5, 4.0)
    assert stats.ttft_s == 8.5
    assert stats.prefill_tps == 50.0
    # Four tokens were chosen (the stop token too): three after the first, in 1.5 s.
    assert stats.decode_tps == 2.0
    assert stats.new_tokens == 3 and stats.token_ids == (7, 8, 9)


def test_an_answer_that_never_began_has_zeros_and_its_wait(ticks):
    clock = AnswerClock(submitted_at=100.0)
    ticks[0] = 102.0
    stats = clock.stats("cancelled")
    assert stats.queue_s == 2.0
    assert (stats.ttft_s, stats.prefill_tps, stats.decode_tps, stats.new_tokens) == (0, 0, 0, 0)


def test_time_of_a_stopped_block_counts_and_one_token_has_no_rate(ticks):
    clock = AnswerClock(submitted_at=100.0)
    with pytest.raises(RuntimeError), clock.vision():
        ticks[0] = 101.0
        raise RuntimeError("stopped")
    clock.token()
    stats = clock.stats("cancelled", (5,))
    assert stats.vision_s == 1.0
    assert stats.decode_tps == 0.0


def measured(prefilled: int = 0, prefill_s: float = 0.0, encoded: int = 0, vision_s: float = 0.0):
    return AnswerClock(
        prefilled_tokens=prefilled, prefill_s=prefill_s, encoded_tokens=encoded, vision_s=vision_s
    )


def test_rates_are_unknown_until_they_were_measured():
    meter = RateMeter()
    assert meter.rates() == Rates(None, None, None, None)
    meter.note_prompt(measured(prefilled=200, prefill_s=2.0))
    assert meter.rates() == Rates(vision_tps=None, prefill_tps=100.0)
    meter.note_prompt(measured(prefilled=10, prefill_s=0.1, encoded=50, vision_s=2.0))
    assert meter.rates().vision_tps == 25.0


def test_a_picture_from_the_cache_does_not_make_the_vision_look_fast():
    meter = RateMeter()
    meter.note_prompt(measured(prefilled=200, prefill_s=2.0, encoded=0, vision_s=0.001))
    assert meter.rates().vision_tps is None


def test_one_odd_answer_and_many_short_prompts_do_not_move_the_rate():
    meter = RateMeter()
    meter.note_prompt(measured(prefilled=300, prefill_s=3.0))
    meter.note_prompt(measured(prefilled=310, prefill_s=3.1))
    meter.note_prompt(measured(prefilled=290, prefill_s=290.0))  # the machine slept meanwhile
    for _ in range(4):
        meter.note_prompt(measured(prefilled=20, prefill_s=1.0))
    assert meter.rates().prefill_tps == pytest.approx(100.0)


def test_a_rate_follows_a_machine_that_became_slower():
    meter = RateMeter()
    for _ in range(REMEMBERED_ANSWERS):
        meter.note_prompt(measured(prefilled=300, prefill_s=3.0))
    for _ in range(REMEMBERED_ANSWERS):
        meter.note_prompt(measured(prefilled=300, prefill_s=6.0))
    assert meter.rates().prefill_tps == 50.0


def test_the_pace_of_writing_leaves_the_first_token_out(ticks):
    meter, clock = RateMeter(), AnswerClock()
    clock.token()
    meter.note_answer(clock)
    assert meter.rates().decode_tps is None
    for _ in range(4):
        ticks[0] += 0.25
        clock.token()
    meter.note_answer(clock)
    assert meter.rates().decode_tps == 4.0


def test_a_turn_is_the_wait_of_a_question_that_was_next_all_the_while():
    meter = RateMeter()
    meter.note_turn(AnswerClock(submitted_at=0.0, started_at=0.5))
    assert meter.rates().turn_s is None, "nobody was before it"
    meter.note_turn(AnswerClock(submitted_at=3.0, started_at=8.0))
    assert meter.rates().turn_s is None, "it came in the middle of a turn"
    meter.note_turn(AnswerClock(submitted_at=4.0, started_at=15.0))
    assert meter.rates().turn_s == 7.0
