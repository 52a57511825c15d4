"""Questions that come before the engine wait for it, and its failure reaches them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fake_engine import FakeEngine, Script, wait_until

from vlm.chat import AskRequest, Message
from vlm.errors import BusyError, GenerationError
from vlm.ui.late_engine import LateEngine
from vlm.units import MIB

REQUEST = AskRequest("chat", (Message("user", "Hello?"),))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Open it to let the engine be made."""
    gate = threading.Event()
    yield gate
    gate.set()


def made_behind(gate: threading.Event, engine: FakeEngine) -> LateEngine:
    def make() -> FakeEngine:
        gate.wait()
        return engine

    return LateEngine(make, queue_size=2)


def test_a_question_waits_for_the_engine_and_is_answered(gate: threading.Event) -> None:
    engine = FakeEngine()
    late = made_behind(gate, engine)
    late.start()
    assert late.state().stage == "finding"
    pieces = iter(late.ask(REQUEST))
    assert [next(pieces).stage for _ in range(2)] == ["loading", "loading"]
    gate.set()
    rest = list(pieces)
    assert "".join(piece.text for piece in rest) == "A red circle."
    assert rest[-1].stage == "done"
    assert engine.requests == [REQUEST]
    assert late.state() == engine.state() and late.memory() == engine.memory()
    assert (late.free_caches(), late.free_caches()) == (128 * MIB, 0)


def test_a_stop_before_the_engine_ends_the_wait(gate: threading.Event) -> None:
    engine = FakeEngine()
    late = made_behind(gate, engine)
    late.start()
    answer = late.ask(REQUEST)
    pieces = iter(answer)
    next(pieces)
    answer.stop()
    end = list(pieces)[-1]
    assert end.stats is not None and end.stats.finish_reason == "cancelled"
    assert engine.requests == []


def test_forgetting_a_chat_stops_what_it_asked_before_the_engine(gate: threading.Event) -> None:
    engine = FakeEngine()
    late = made_behind(gate, engine)
    late.start()
    unread, forgotten = late.ask(REQUEST), late.ask(REQUEST)
    kept = late.ask(replace(REQUEST, conversation_id="another chat"))
    waiting = iter(forgotten)
    next(waiting)
    late.forget("chat")
    for pieces in (unread, waiting):
        end = list(pieces)[-1]
        assert end.stats is not None and end.stats.finish_reason == "cancelled"
    gate.set()
    assert list(kept)[-1].stage == "done"
    assert [request.conversation_id for request in engine.requests] == ["another chat"]


def test_forgetting_a_chat_also_reaches_an_engine_that_came_meanwhile(
    gate: threading.Event,
) -> None:
    engine = FakeEngine(script=Script(by_step=True))
    late = made_behind(gate, engine)
    late.start()
    pieces = iter(late.ask(REQUEST))
    next(pieces)
    gate.set()
    while not engine.requests:
        next(pieces)
    late.forget("chat")
    assert engine.forgotten == ["chat"]
    end = list(pieces)[-1]
    assert end.stats is not None and end.stats.finish_reason == "cancelled"


def test_more_questions_than_places_are_refused(gate: threading.Event) -> None:
    late = made_behind(gate, FakeEngine())
    late.start()
    waiting = [iter(late.ask(REQUEST)) for _ in range(2)]
    for pieces in waiting:
        next(pieces)
    with pytest.raises(BusyError, match="limit is 2"):
        late.ask(REQUEST)


def test_an_engine_that_cannot_be_made_says_so_and_can_be_tried_again() -> None:
    tries: list[int] = []

    def make() -> FakeEngine:
        tries.append(1)
        if len(tries) == 1:
            raise ImportError("no torch")
        return FakeEngine()

    late = LateEngine(make, queue_size=2)
    late.start()
    with pytest.raises(GenerationError, match="See the terminal"):
        list(late.ask(REQUEST))
    assert late.state().stage == "failed"
    late.retry_load()
    wait_until(lambda: late.state().stage == "ready")
    assert [piece.text for piece in late.ask(REQUEST)][:2] == ["A ", "red "]


def test_memory_is_read_before_the_engine_is_there(gate: threading.Event) -> None:
    late = made_behind(gate, FakeEngine())
    assert late.free_caches() == 0
    reading = late.memory()
    assert reading.rss_bytes > 10_000_000 and reading.weights_bytes == 0
    assert 0 < reading.available_bytes <= reading.total_bytes
    assert reading.cores >= 1


def test_close_ends_the_wait_and_a_late_engine(gate: threading.Event) -> None:
    engine = FakeEngine()
    closed = threading.Event()
    engine.close = closed.set  # type: ignore[method-assign]
    late = made_behind(gate, engine)
    late.start()
    pieces = iter(late.ask(REQUEST))
    next(pieces)
    late.close()
    with pytest.raises(GenerationError, match="shutting down"):
        list(pieces)
    gate.set()
    assert closed.wait(5)
