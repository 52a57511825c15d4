"""Warming up asks one short question, leaves no chat behind, and tells what went wrong."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, Script

from vlm.errors import BusyError, GenerationError
from vlm.warm_up import warm_up


def test_it_asks_about_a_picture_and_leaves_no_chat_behind() -> None:
    engine = FakeEngine()
    assert warm_up(engine, 256).ttft_s == 1.25
    (asked,) = engine.requests
    assert asked.max_visual_tokens == 256 and len(asked.messages[0].pictures) == 1
    assert asked.sampling.max_new_tokens == 2
    assert engine.forgotten == [asked.conversation_id]


def test_each_has_a_chat_of_its_own_and_all_together_one_turn() -> None:
    engine = FakeEngine()
    for _ in range(2):
        warm_up(engine, 256)
    assert len({asked.conversation_id for asked in engine.requests}) == 2
    assert len({asked.visitor for asked in engine.requests}) == 1


def test_a_full_queue_and_a_stopped_warm_up_are_errors_with_a_sentence() -> None:
    with pytest.raises(BusyError, match="limit"):
        warm_up(FakeEngine(is_full=True), 256)
    engine = FakeEngine(script=Script(finish_reason="cancelled"))
    with pytest.raises(GenerationError, match="Try again"):
        warm_up(engine, 256)
    assert engine.forgotten == [engine.requests[0].conversation_id]
