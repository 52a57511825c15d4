"""AnswerClock: every figure follows from the moments it was told."""

import time

import pytest

from vlm.stats import AnswerClock


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
