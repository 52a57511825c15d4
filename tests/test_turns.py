"""Answers that run together, guessed tokens and reading ahead change the time, never the answer."""

import random
import threading
import time
from dataclasses import replace

import pytest
from test_engine import BLUE, RED, done, settings_for, slow_down, wait_until

from vlm.bundled.questions import boxes_json
from vlm.bundled.scenes import SceneMix, draw_scene
from vlm.chat import AskRequest, Message, Sampling
from vlm.checkpoint import load_model
from vlm.engine import Engine
from vlm.generate import Generator
from vlm.images import open_picture
from vlm.kv_cache import ConversationCaches, FeatureCache
from vlm.linear import available_kinds
from vlm.precision import PrecisionPlan
from vlm.request_checks import AnswerLimits
from vlm.stats import AnswerClock

GREEDY = Sampling(temperature=0.0, presence_penalty=0.0, max_new_tokens=40)
QUESTIONS = ("Describe the picture.", "What colour is it?", "描述这张图片。", "Give its box.")


@pytest.fixture(scope="module")
def shared_engine(bundled_folder):
    engine = Engine(settings_for(bundled_folder))
    wait_until(lambda: engine.state().stage == "ready", 60)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine):
    yield shared_engine
    for conversation_id in "abcdefgh":
        shared_engine.forget(conversation_id)
    wait_until(lambda: not shared_engine._queue.jobs())
    shared_engine._generator.features.clear()


@pytest.fixture
def model(engine):
    return engine._generator.model


def scene(seed):
    return draw_scene(random.Random(seed), 192, 192, SceneMix(held_out=True))


def request(name, text="What colour is it?", picture=RED, sampling=GREEDY):
    return AskRequest(name, (Message("user", text, (picture,) if picture else ()),), sampling)


class Heard:
    def emit(self, piece):
        pass

    def check(self):
        pass


def generator(model, guess_tokens=3):
    caches = ConversationCaches(2**30, model.decoder.new_cache)
    limits = AnswerLimits(model.info.context_tokens, 8, guess_tokens=guess_tokens)
    return Generator(model, caches, FeatureCache(2**28), limits)


def endless(monkeypatch, model):
    """Make answers go on, a token each 20 ms, so that other things happen meanwhile."""
    real = model.decoder.forward_together

    def slow(*args):
        time.sleep(0.02)
        return real(*args)

    monkeypatch.setattr(model.decoder, "forward_together", slow)
    monkeypatch.setattr(model.tokenizer, "eos_token_ids", ())


# Together


@pytest.mark.parametrize("kind", ["fp32", "fp16"])
@pytest.mark.parametrize("guess_tokens", [0, 3])
def test_answers_computed_together_equal_those_computed_alone(kind, guess_tokens, bundled_folder):
    if kind not in available_kinds():
        pytest.skip(f"this CPU has no {kind} kernels")
    model = load_model(bundled_folder, PrecisionPlan("mixed", "fp32", kind, "for a test", {}))
    asked = [
        request(str(i), QUESTIONS[i % 4], open_picture(scene(i).picture) if i % 3 else None)
        for i in range(12)
    ]
    alone = [generator(model, 0).answer(r, Heard(), AnswerClock()).token_ids for r in asked]
    together, runs = generator(model, guess_tokens), []
    waiting = list(asked)
    finished = {}
    while waiting or runs:
        if waiting and len(runs) < 4:  # they come one by one, so that lengths differ
            this = waiting.pop(0)
            runs.append((this, together.begin(this, Heard(), AnswerClock())))
        together.step([run for _, run in runs])
        finished |= {r.conversation_id: run.stats().token_ids for r, run in runs if run.is_over}
        runs = [(r, run) for r, run in runs if not run.is_over]
    assert [finished[r.conversation_id] for r in asked] == alone
    assert sum(map(len, alone)) > 60


def test_an_answer_goes_on_while_a_new_prompt_is_computed(engine, model, monkeypatch):
    endless(monkeypatch, model)
    first = engine.ask(request("a", sampling=replace(GREEDY, max_new_tokens=400)))
    clock = engine._queue.jobs()[0].clock
    wait_until(lambda: clock.sampled_tokens > 2)
    tokens = []
    real = model.decoder.forward

    def slow(*args):
        for layer in range(60):  # of 50 ms each: three seconds
            tokens.append(clock.sampled_tokens)
            time.sleep(0.05)
            args[-1](layer / 60)
        return real(*args)

    monkeypatch.setattr(model.decoder, "forward", slow)
    done(engine.ask(request("b", "Where is it?", BLUE, replace(GREEDY, max_new_tokens=2))))
    first.stop()
    layers_without_token = max(tokens.count(number) for number in set(tokens))
    assert layers_without_token * 0.05 < 0.6
    assert tokens[-1] - tokens[0] >= 4


def test_no_more_answers_run_at_once_than_the_settings_allow(bundled_folder, monkeypatch):
    settings = settings_for(bundled_folder)
    server = settings.server.model_copy(update={"answers_at_once": 2})
    engine = Engine(settings.model_copy(update={"server": server}))
    try:
        wait_until(lambda: engine.state().stage == "ready", 60)
        model, most = engine._generator.model, [0]
        real = model.decoder.forward_together

        def counted(hidden, position_ids, segments, *rest):
            most[0] = max(most[0], len(segments))
            return real(hidden, position_ids, segments, *rest)

        monkeypatch.setattr(model.decoder, "forward_together", counted)
        monkeypatch.setattr(model.tokenizer, "eos_token_ids", ())
        answers = [engine.ask(request(name)) for name in "abcde"]
        threads = [threading.Thread(target=done, args=(answer,)) for answer in answers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert most[0] == 2
    finally:
        engine.close()


def test_an_answer_that_fails_leaves_the_others_alone(engine, model, monkeypatch):
    expected = done(engine.ask(request("b", "Where is it?")))[1].token_ids
    engine.forget("b")
    endless(monkeypatch, model)
    monkeypatch.setattr(
        engine._generator, "limits", replace(engine._generator.limits, guess_tokens=0)
    )
    real = model.decoder.logits

    def broken(hidden):
        logits = real(hidden)
        if len(hidden) > 1:
            logits[0] = float("nan")
        return logits

    first = engine.ask(request("a", sampling=replace(GREEDY, max_new_tokens=400)))
    wait_until(lambda: engine._queue.jobs()[0].clock.sampled_tokens > 2)
    second = engine.ask(request("b", "Where is it?"))
    monkeypatch.setattr(model.decoder, "logits", broken)
    assert done(second)[1].token_ids[: len(expected)] == expected
    with pytest.raises(Exception, match="not a number"):
        list(first)


# Guesses


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_guesses_change_no_token_and_save_passes(temperature, model, monkeypatch):
    """A table of boxes was given before, so that much of the next can be guessed."""
    things = list(scene(3).shapes) * 3
    chat = (
        Message("user", "Give all boxes."),
        Message("assistant", boxes_json(things, "en")),
        Message("user", "Again."),
        Message("assistant", boxes_json(things[::-1], "en")),
        Message("user", "Locate all shapes, output the boxes as JSON.", (RED,)),
    )
    sampling = Sampling(temperature, 0.95, 20, 0.0, 60, seed=5)
    passes = []
    real = model.decoder.forward_together

    def counted(*args):
        passes[-1] += 1
        return real(*args)

    monkeypatch.setattr(model.decoder, "forward_together", counted)
    ids = []
    for guess_tokens in (0, 3):
        passes.append(0)
        stats = generator(model, guess_tokens).answer(
            AskRequest("c", chat, sampling), Heard(), AnswerClock()
        )
        ids.append(stats.token_ids)
    assert ids[0] == ids[1]
    assert len(ids[0]) > 10
    assert passes[1] < 0.8 * passes[0]


# Reading ahead


def test_after_reading_ahead_a_question_costs_only_itself(engine, model, monkeypatch):
    cold = done(engine.ask(request("a")))[1]
    engine.forget("a")
    engine._generator.features.clear()
    read = done(engine.read_ahead(request("a", "")))[1]
    assert read.finish_reason == "stop" and read.visual_tokens == cold.visual_tokens
    monkeypatch.setattr(model.vision, "encode", lambda *args: pytest.fail("encoded again"))
    engine._generator.features.clear()
    warm = done(engine.ask(request("a")))[1]
    assert warm.token_ids == cold.token_ids
    assert warm.cached_tokens > warm.visual_tokens
    assert warm.prompt_tokens - warm.cached_tokens < 20


def test_a_question_joins_the_read_ahead_that_runs(engine, model, monkeypatch):
    cold = done(engine.ask(request("a")))[1]
    engine.forget("a")
    engine._generator.features.clear()
    began = slow_down(monkeypatch, model.vision, "encode", layers=10)
    ahead = engine.read_ahead(request("a", ""))
    assert began.wait(10)
    answer = engine.ask(request("a"))
    ahead.stop()  # the page no longer needs it; the question does
    warm = done(answer)[1]
    assert warm.token_ids == cold.token_ids
    assert warm.cached_tokens > warm.visual_tokens


def test_a_question_about_another_picture_ends_the_read_ahead(engine, model, monkeypatch):
    with monkeypatch.context() as patched:
        began = slow_down(patched, model.vision, "encode")
        ahead = engine.read_ahead(request("a", ""))
        assert began.wait(10)
        answer = engine.ask(request("a", picture=BLUE))
        patched.undo()
        assert done(answer)[1].cached_tokens < 10
    assert done(ahead)[1].finish_reason in ("stop", "cancelled")


def test_another_persons_question_goes_first_and_the_read_ahead_ends_after_it(
    engine, model, monkeypatch
):
    with monkeypatch.context() as patched:
        began = slow_down(patched, model.vision, "encode")
        ahead = engine.read_ahead(request("a", ""))
        assert began.wait(10)
        answer = engine.ask(request("b", "Hello", picture=None))
        patched.undo()
        started = time.monotonic()
        done(answer)
        assert time.monotonic() - started < 5
    assert done(ahead)[1].finish_reason == "stop"
    assert done(engine.ask(request("a")))[1].cached_tokens > 16


def test_a_read_ahead_nobody_wants_any_more_ends_at_once(engine, model, monkeypatch):
    began = slow_down(monkeypatch, model.vision, "encode")
    ahead = engine.read_ahead(request("a", ""))
    assert began.wait(10)
    ahead.stop()
    wait_until(lambda: not engine._queue.jobs(), 0.6)
    assert done(ahead)[1].finish_reason == "cancelled"


def test_a_newer_read_ahead_of_a_chat_replaces_the_one_that_waits(engine, model, monkeypatch):
    began = slow_down(monkeypatch, model.decoder, "forward", layers=40)
    running = engine.ask(request("b", "Hello", picture=None))
    assert began.wait(10)
    first, second = engine.read_ahead(request("a", "")), engine.read_ahead(request("a", ""))
    assert done(first)[1].finish_reason == "cancelled"
    running.stop()
    monkeypatch.undo()
    assert done(second)[1].finish_reason == "stop"
