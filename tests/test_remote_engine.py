"""The remote engine against a small server here: streaming, Stop, the queue, the model's state."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from fake_engine import wait_until
from fake_upstream import Make, Upstream, chunk, question, read, running_upstream, words
from pictures_to_send import png

from vlm.chat import AskRequest, Message, Sampling
from vlm.errors import BusyError, ContextLengthError, ModelError, ModelNotFoundError, VLMError
from vlm.images import open_picture
from vlm.remote import engine as engine_module
from vlm.remote.engine import RemoteEngine

pytest_plugins = ("remote_fixtures",)
KEY = "sk-test-0123456789"


def test_the_first_listed_model_answers_word_by_word(upstream: Upstream, make_remote: Make) -> None:
    upstream.pause_s = 0.02
    engine = make_remote(upstream.url)
    state = engine.state()
    assert (state.model, state.server) == ("lab/first-2B", upstream.host)
    assert state.notice.startswith(f"Remote: lab/first-2B at {upstream.host}. ")
    assert "the memory panel shows this process only" in state.notice
    picture = open_picture(png("red", (64, 64)))
    system, before = Message("system", "Be brief."), Message("assistant", "")
    messages = (system, Message("user", "Hi", (picture,)), before, Message("user", "And now?"))
    sampling = Sampling(temperature=0.5, top_p=0.9, presence_penalty=0.25, max_new_tokens=7, seed=3)
    text, last, notices = read(engine.ask(AskRequest("a", messages, sampling)))
    assert text == "A red circle." and not notices
    (sent,) = upstream.requests
    told = sent.pop("messages")
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert [part["type"] for part in told[1]["content"]] == ["image_url", "text"]
    assert told[2]["content"] == "-" and told[3]["content"] == "And now?"
    assert sent == {
        "model": "lab/first-2B",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.25,
        "seed": 3,
    }
    assert "Authorization" not in upstream.request_headers[-1]
    stats = last.stats
    assert stats is not None and stats.finish_reason == "stop"
    assert (stats.prompt_tokens, stats.new_tokens, stats.vision_s) == (226, 12, 0.0)
    assert 0.02 < stats.ttft_s < 20


def test_nothing_is_counted_that_the_server_did_not_count(
    upstream: Upstream, make_remote: Make
) -> None:
    upstream.packets = [chunk("one "), chunk("two "), chunk("three", "length")]
    upstream.pause_s = 0.05
    text, last, _ = read(make_remote(upstream.url).ask(question()))
    stats = last.stats
    assert text == "one two three" and stats is not None and stats.finish_reason == "length"
    assert (stats.prompt_tokens, stats.new_tokens, stats.decode_tps) == (0, 0, 0.0)
    assert stats.ttft_s > 0.04


def test_the_rate_is_that_of_the_words(upstream: Upstream, make_remote: Make) -> None:
    upstream.packets = words(*"abcdef")
    upstream.pause_s = 0.05
    began_s = time.perf_counter()
    stats = read(make_remote(upstream.url).ask(question()))[1].stats
    took_s = time.perf_counter() - began_s
    # 11 tokens after the first, in five pauses or more.
    assert stats is not None and 11 / took_s < stats.decode_tps <= 11 / 0.24
    upstream.pause_s = 0.0
    upstream.packets = [b"".join(words(*"abcdef"))]
    stats = read(make_remote(upstream.url).ask(question()))[1].stats
    assert stats is not None and stats.decode_tps == 0.0 and stats.new_tokens == 12


@pytest.mark.parametrize("holds", ["before", "after"])
def test_stop_closes_the_connection_at_once(
    holds: Any, upstream: Upstream, make_remote: Make
) -> None:
    upstream.packets, upstream.holds = [chunk("A red "), chunk("cir")], holds
    engine = make_remote(upstream.url)
    took_s = [time_to_close(engine, upstream, holds)]
    while min(took_s) >= 0.3 and len(took_s) < 3:  # a busy machine may be late once
        took_s.append(time_to_close(engine, upstream, holds))
    assert min(took_s) < 0.3


def time_to_close(engine: RemoteEngine, upstream: Upstream, holds: str) -> float:
    """Stop an answer; returns how long the server's connection was open after that."""
    upstream.requests.clear()
    upstream.left_at.clear()
    answer = engine.ask(question())
    text, stopped_s, last = "", 0.0, None
    for piece in answer:
        text += piece.text
        if not stopped_s and (text == "A red cir" or (holds == "before" and upstream.requests)):
            stopped_s = time.monotonic()
            answer.stop()
        last = piece
    assert last is not None and last.stats is not None
    assert last.stats.finish_reason == "cancelled"
    assert text == ("A red cir" if holds == "after" else "")
    wait_until(lambda: upstream.left_at)
    return upstream.left_at[0] - stopped_s


def test_a_lost_reader_and_a_forgotten_chat_end_the_request(
    upstream: Upstream, make_remote: Make
) -> None:
    upstream.holds = "before"
    engine = make_remote(upstream.url)
    pieces = iter(engine.ask(question()))
    next(pieces)
    wait_until(lambda: len(upstream.requests) == 1)
    del pieces
    gc.collect()
    wait_until(lambda: len(upstream.left_at) == 1)
    wait_until(lambda: not engine._queue.jobs())
    answer = engine.ask(question())
    wait_until(lambda: len(upstream.requests) == 2)
    engine.forget("a")
    assert read(answer)[1].stats.finish_reason == "cancelled"
    wait_until(lambda: len(upstream.left_at) == 2)


def test_chats_are_answered_together_and_the_queue_is_bounded(
    upstream: Upstream, make_remote: Make
) -> None:
    upstream.holds = "before"
    engine = make_remote(upstream.url, engine={"answers_at_once": 2}, server={"queue_size": 1})
    running = [engine.ask(question(name="a"))]
    wait_until(lambda: len(upstream.requests) == 1)
    running.append(engine.ask(question(name="b")))
    wait_until(lambda: len(upstream.requests) == 2)
    with pytest.raises(BusyError, match="already being answered"):
        engine.ask(question(name="a"))
    waiting = iter(engine.ask(question(name="c")))
    first = next(waiting)
    assert (first.stage, first.queue_position) == ("queued", 1)
    with pytest.raises(BusyError, match="limit is 1"):
        engine.ask(question(name="d"))
    upstream.holds = ""
    running[0].stop()
    assert read(waiting)[0] == "A red circle."
    running[1].stop()


def test_reading_ahead_ends_at_once_and_asks_nothing(upstream: Upstream, make_remote: Make) -> None:
    engine = make_remote(upstream.url)
    (piece,) = engine.read_ahead(question())
    assert piece.stats is not None and piece.stats.finish_reason == "cancelled"
    assert not upstream.requests
    memory = engine.memory()
    assert memory.rss_bytes > 0 and memory.conversations == 0 == engine.free_caches()
    assert memory.weights_bytes + memory.kv_cache_bytes + memory.feature_cache_bytes == 0


def test_a_server_that_is_away_fails_with_a_sentence_and_is_found_later(
    free_port: int, make_remote: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_remote(f"http://127.0.0.1:{free_port}/v1", is_ready=False)
    wait_until(lambda: engine.state().stage == "failed", timeout_s=30)
    message = engine.state().message
    assert message.startswith(f"127.0.0.1:{free_port} cannot be reached. Check that the server")
    with pytest.raises(ModelError, match="cannot be reached"):
        list(engine.ask(question()))
    with running_upstream() as upstream:
        engine._upstream.address = type(engine._address)(upstream.url, upstream.host)
        engine.retry_load()
        wait_until(lambda: engine.state().stage == "ready", timeout_s=30)
        assert read(engine.ask(question()))[0] == "A red circle."


def test_a_server_still_loading_is_asked_until_it_has_a_model(
    upstream: Upstream, make_remote: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "NO_MODEL_AGAIN_S", 0.05)
    monkeypatch.setattr(engine_module, "AWAY_AGAIN_S", 0.05)
    models, upstream.models = upstream.models, b'{"object": "list", "data": []}'
    engine = make_remote(upstream.url, is_ready=False)
    answer = iter(engine.ask(question()))
    assert next(answer).stage == "loading"
    wait_until(lambda: "no model ready yet" in engine.state().message)
    upstream.models_status = 503  # as llama.cpp says it
    wait_until(lambda: engine.state().stage == "failed")
    with pytest.raises(ModelError, match="not ready"):
        list(answer)
    upstream.models, upstream.models_status = models, 200
    wait_until(lambda: engine.state().stage == "ready")


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [("other", "other"), ("first-2B", "lab/first-2B"), ("typo", "typo")],
)
def test_a_model_that_is_named_is_taken(
    wanted: str, taken: str, upstream: Upstream, make_remote: Make
) -> None:
    state = make_remote(upstream.url, model={"model": wanted}).state()
    assert state.model == taken
    listed = "does not list this model, but lab/first-2B, other." in state.notice
    assert listed == (wanted == "typo")


def test_a_server_without_a_list_needs_a_name(upstream: Upstream, make_remote: Make) -> None:
    upstream.models_status = 404
    engine = make_remote(upstream.url, is_ready=False)
    wait_until(lambda: engine.state().stage == "failed")
    assert "Name one with --model" in engine.state().message
    assert make_remote(upstream.url, model={"model": "mine"}).state().model == "mine"


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind", "said"),
    [
        (401, b"", {}, ModelError, "wants a key"),
        (403, b"{}", {}, ModelError, "does not allow this"),
        (404, b"", {}, ModelNotFoundError, "has no model lab/first-2B"),
        (413, b"<html>too large</html>", {}, VLMError, "too large for"),
        (429, b"", {"Retry-After": "7"}, BusyError, "Try again in 7 s."),
        (429, b"", {}, BusyError, "Try again later."),
        (503, b"", {}, ModelError, "not ready"),
        (500, b'{"error": "Traceback /srv/x.py"}', {}, VLMError, "failed to answer"),
        (302, b"", {"Location": "http://127.0.0.1:1/"}, ModelError, "sends on"),
        (422, b'{"detail": "no such role"}', {}, VLMError, "status 422: no such role."),
        (
            400,
            b'{"error": {"message": "This model\'s maximum context length is 4096 tokens, '
            b'max_tokens is too large", "code": 400}}',
            {},
            ContextLengthError,
            "longer than lab/first-2B",
        ),
    ],
)
def test_what_a_server_refuses_becomes_a_sentence(
    status: int,
    body: bytes,
    headers: dict[str, str],
    kind: type[VLMError],
    said: str,
    upstream: Upstream,
    make_remote: Make,
) -> None:
    engine = make_remote(upstream.url)
    upstream.status, upstream.body, upstream.headers = status, body, headers
    with pytest.raises(kind) as refused:
        list(engine.ask(question()))
    message = str(refused.value)
    assert said in message and upstream.host in message and "Traceback" not in message
    upstream.status = 200
    assert read(engine.ask(question()))[0] == "A red circle."


def test_the_key_goes_to_the_server_and_into_no_sentence(
    upstream: Upstream,
    make_remote: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("MY_KEY", KEY)
    engine = make_remote(upstream.url, engine={"api_key_env": "MY_KEY"})
    upstream.status = 400
    upstream.body = f'{{"error": {{"message": "{KEY} may not do this"}}}}'.encode()
    with pytest.raises(VLMError, match=r"\*\*\* may not do this") as refused:
        list(engine.ask(question()))
    upstream.status = 401
    with pytest.raises(ModelError, match="the environment variable MY_KEY") as unknown:
        list(engine.ask(question()))
    assert {sent["Authorization"] for sent in upstream.request_headers} == {f"Bearer {KEY}"}
    told = f"{refused.value}{unknown.value}{engine.state()}{engine._address}{caplog.text}"
    assert KEY not in told


def test_a_setting_the_server_does_not_know_is_left_out_and_told(
    upstream: Upstream, make_remote: Make
) -> None:
    engine = make_remote(upstream.url)
    upstream.refuses = "presence_penalty"
    text, _, notices = read(engine.ask(question()))
    assert text == "A red circle."
    assert notices == [f"{upstream.host} does not take presence_penalty: left out."]
    upstream.refuses = "max_tokens"
    assert read(engine.ask(question()))[0] == "A red circle."
    assert upstream.requests[-1]["max_completion_tokens"] == 512
    assert "presence_penalty" not in upstream.requests[-1]


def test_a_server_with_another_model_now_is_asked_for_that(
    upstream: Upstream, make_remote: Make
) -> None:
    engine = make_remote(upstream.url)
    upstream.status, upstream.models = 404, b'{"data": [{"id": "lab/next-4B"}]}'
    with pytest.raises(ModelNotFoundError, match="has no model lab/first-2B"):
        list(engine.ask(question()))
    wait_until(lambda: engine.state().model == "lab/next-4B")
    upstream.status = 200
    assert read(engine.ask(question()))[0] == "A red circle."
    assert upstream.requests[-1]["model"] == "lab/next-4B"


def test_a_model_without_eyes_is_told(upstream: Upstream, make_remote: Make) -> None:
    engine = make_remote(upstream.url)
    upstream.status, upstream.body = 400, b'{"error": "lab/first-2B is not a multimodal model"}'
    asked = (Message("user", "What?", (open_picture(png("red", (64, 64))),)),)
    with pytest.raises(VLMError, match="takes no pictures"):
        list(engine.ask(AskRequest("a", asked)))


def test_a_silent_server_is_given_up(upstream: Upstream, make_remote: Make) -> None:
    engine = make_remote(upstream.url, engine={"silence_s": 1.0})
    upstream.holds = "before"
    with pytest.raises(ModelError, match="silent for too long"):
        list(engine.ask(question()))
    wait_until(lambda: upstream.left_at)


def test_closing_ends_answers_and_refuses_more(upstream: Upstream, make_remote: Make) -> None:
    engine = make_remote(upstream.url)
    upstream.packets, upstream.holds = [chunk("A red ")], "after"
    answer = engine.ask(question())
    wait_until(lambda: upstream.requests)
    engine.close()
    assert read(answer)[1].stats.finish_reason == "cancelled"
    assert engine.state().stage == "closed"
    with pytest.raises(VLMError, match="shutting down"):
        list(engine.ask(question()))


def test_numbers_that_cannot_be_meant_never_leave(upstream: Upstream, make_remote: Make) -> None:
    engine = make_remote(upstream.url)
    for request in (
        question(sampling=Sampling(temperature=float("nan"))),
        question(sampling=Sampling(max_new_tokens=0)),
        question(max_visual_tokens=0),
        question(text=" "),
    ):
        with pytest.raises(VLMError):
            list(engine.ask(request))
    assert not upstream.requests
