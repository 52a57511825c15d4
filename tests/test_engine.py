"""Engine: one owner thread, fair waiting, prompt stops, and no fault that outlives its request."""

import gc
import logging
import shutil
import threading
import time

import pytest
import torch
from PIL import Image

from vlm.chat import AskRequest, Message, Rates, Sampling
from vlm.config import ModelSettings, ServerSettings, Settings
from vlm.engine import Engine
from vlm.errors import (
    BusyError,
    ContextLengthError,
    GenerationError,
    ModelError,
    PromptError,
    VLMError,
)
from vlm.images import open_picture
from vlm.picture_size import fit_size

STOP_S = 0.3
GREEDY = Sampling(temperature=0.0, presence_penalty=0.0, max_new_tokens=6)
RED = open_picture(Image.new("RGB", (160, 128), (220, 30, 30)))
BLUE = open_picture(Image.new("RGB", (160, 128), (40, 70, 210)))


def settings_for(folder, queue_size=16):
    return Settings(
        model=ModelSettings(model=str(folder), precision="fp32", threads=1),
        server=ServerSettings(queue_size=queue_size),
    )


@pytest.fixture(scope="module")
def shared_engine(bundled_folder):
    engine = Engine(settings_for(bundled_folder))
    wait_until(lambda: engine.state().stage == "ready", 60)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine, request):
    """The engine with nothing running and no caches, as each test leaves it."""
    yield shared_engine
    for conversation_id in "abcdefgh":
        shared_engine.forget(conversation_id)
    wait_until(lambda: not shared_engine._queue.jobs())
    shared_engine._generator.features.clear()


@pytest.fixture
def model(engine):
    return engine._generator.model


def wait_until(condition, timeout_s=10.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def question(conversation_id="a", text="What colour is it?", pictures=(RED,), **sampling):
    chosen = Sampling(
        **{"temperature": 0.0, "presence_penalty": 0.0, "max_new_tokens": 6} | sampling
    )
    return AskRequest(conversation_id, (Message("user", text, tuple(pictures)),), chosen)


def slow_down(monkeypatch, part, method, layer_s=0.05, layers=400):
    """Make a pass of the model take long, with looks at the stop flag as between real layers."""
    real = getattr(part, method)
    began = threading.Event()

    def slow(*args, **kwargs):
        between = kwargs.get("between_layers") or args[-1]
        for layer in range(layers):
            began.set()
            time.sleep(layer_s)
            between(layer / layers)
        return real(*args, **kwargs)

    monkeypatch.setattr(part, method, slow, raising=True)
    return began


def done(answer):
    """Read an answer to its end; return its text and stats."""
    pieces = list(answer)
    assert pieces[-1].stage == "done" and pieces[-1].stats is not None
    return "".join(piece.text for piece in pieces), pieces[-1].stats


# Loading


def test_a_new_engine_takes_questions_at_once_and_answers_when_loaded(bundled_folder):
    began = time.monotonic()
    engine = Engine(settings_for(bundled_folder))
    answer = engine.ask(question())
    assert time.monotonic() - began < 0.5
    try:
        pieces = list(answer)
        assert pieces[0].stage == "loading"
        assert pieces[-1].stage == "done"
        assert pieces[-1].stats.queue_s > 0
        state = engine.state()
        assert (state.stage, state.precision) == ("ready", "fp32")
        assert state.model and state.precision_reason
    finally:
        engine.close()


def test_a_failed_load_tells_all_who_wait_and_can_be_tried_again(bundled_folder, tmp_path):
    folder = tmp_path / "model"
    engine = Engine(settings_for(folder))
    try:
        waiting = engine.ask(question())
        with pytest.raises(ModelError, match="model"):
            list(waiting)
        assert engine.state().stage == "failed"
        assert str(folder) in engine.state().message
        with pytest.raises(ModelError):
            list(engine.ask(question()))
        shutil.copytree(bundled_folder, folder)
        engine.retry_load()
        assert done(engine.ask(question()))[1].new_tokens >= 0
        assert engine.state().stage == "ready"
        engine.retry_load()
        assert engine.state().stage == "ready", "retrying what works changes nothing"
    finally:
        engine.close()


def test_closing_ends_everything_and_later_questions_get_a_sentence(bundled_folder, monkeypatch):
    engine = Engine(settings_for(bundled_folder))
    wait_until(lambda: engine.state().stage == "ready", 60)
    began = slow_down(monkeypatch, engine._generator.model.decoder, "forward")
    running, waiting = engine.ask(question("a")), engine.ask(question("b"))
    assert began.wait(10)
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < STOP_S
    assert not engine._thread.is_alive()
    assert engine.state().stage == "closed"
    assert done(running)[1].finish_reason == "cancelled"
    assert done(waiting)[1].finish_reason == "cancelled"
    with pytest.raises(GenerationError, match="start it again"):
        list(engine.ask(question()))


def test_an_engine_can_be_closed_while_it_loads(bundled_folder, monkeypatch):
    entered = threading.Event()

    def endless(path, plan, on_progress, **kwargs):
        while True:
            entered.set()
            time.sleep(0.01)
            on_progress(1, 2)

    monkeypatch.setattr("vlm.loading.load_model", endless)
    engine = Engine(settings_for(bundled_folder))
    answer = engine.ask(question())
    assert entered.wait(60)
    pieces = iter(answer)
    assert next(pieces).stage == "loading"
    assert next(pieces).progress == 0.5
    assert engine.state().eta_s is not None
    engine.close()
    assert not engine._thread.is_alive()
    assert [piece.stage for piece in pieces][-1] == "done"


# Answers


def test_an_answer_streams_its_stages_and_true_figures(engine):
    pieces = list(engine.ask(question(text="What is this?")))
    stages = list(dict.fromkeys(piece.stage for piece in pieces))
    assert stages[-1] == "done"
    assert [stage for stage in stages if stage in ("vision", "prefill")] == ["vision", "prefill"]
    for stage in ("vision", "prefill"):
        progress = [piece.progress for piece in pieces if piece.stage == stage]
        assert progress == sorted(progress) and progress[-1] == pytest.approx(1.0)
    stats = pieces[-1].stats
    assert stats.visual_tokens == 20 and stats.cached_tokens == 0
    assert stats.prompt_tokens > stats.visual_tokens
    assert stats.new_tokens == len(stats.token_ids) <= 6
    assert 0 < stats.vision_s < stats.ttft_s and 0 < stats.prefill_s < stats.ttft_s
    assert stats.prefill_tps == pytest.approx(stats.prompt_tokens / stats.prefill_s)
    memory = engine.memory()
    assert memory.conversations == 1
    assert memory.kv_cache_bytes > 0 and memory.feature_cache_bytes > 0
    assert memory.weights_bytes > 8_000_000
    assert memory.peak_rss_bytes >= memory.rss_bytes > memory.weights_bytes


def test_what_an_engine_measured_and_what_its_model_holds_is_told(engine, model):
    _, stats = done(engine.ask(question(text="What is this?", pictures=(BLUE,))))
    rates = engine.rates()
    assert rates.vision_tps and rates.prefill_tps and rates.decode_tps
    capacity = engine.state().capacity
    size = fit_size(BLUE.width_px, BLUE.height_px, capacity.geometry, 512)
    assert size[0] * size[1] // capacity.geometry.token_side_px**2 == stats.visual_tokens
    cache = model.decoder.new_cache()
    cache.reserve(256)
    assert capacity.kv_token_bytes == cache.nbytes // 256
    assert capacity.context_tokens == engine._generator.limits.context_tokens


def test_a_picture_read_ahead_is_measured_and_a_stopped_one_is_not(bundled_folder, monkeypatch):
    engine = Engine(settings_for(bundled_folder))
    try:
        wait_until(lambda: engine.state().stage == "ready", 60)
        with monkeypatch.context() as slowly:
            began = slow_down(slowly, engine._generator.model.vision, "encode")
            answer = engine.read_ahead(question())
            assert began.wait(10)
            answer.stop()
            done(answer)
        assert engine.rates() == Rates()
        done(engine.read_ahead(question()))
        assert engine.rates().vision_tps and engine.rates().decode_tps is None
    finally:
        engine.close()


def test_pictures_inside_the_reused_prefix_need_no_vision_work(engine, model, monkeypatch):
    first = question()
    _, stats = done(engine.ask(first))
    monkeypatch.setattr(model.vision, "encode", lambda *args: pytest.fail("encoded again"))
    engine._generator.features.clear()
    answer = Message("assistant", "red", token_ids=stats.token_ids)
    chat = (*first.messages, answer, Message("user", "Where is it?"))
    _, then = done(engine.ask(AskRequest("a", chat, GREEDY)))
    assert then.cached_tokens >= stats.prompt_tokens
    assert then.visual_tokens == stats.visual_tokens


def test_prompts_are_computed_first_come_first_served_and_never_two_at_once(
    engine, model, monkeypatch
):
    inside, most, order = [0], [0], []
    real = model.decoder.forward

    def counted(*args, **kwargs):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        try:
            return real(*args, **kwargs)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(model.decoder, "forward", counted)

    def read(name, answer):
        done(answer)
        order.append(name)

    threads = []
    for name in "abcde":
        threads.append(threading.Thread(target=read, args=(name, engine.ask(question(name)))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(order) == list("abcde")
    assert most[0] == 1


def test_a_waiting_reader_learns_its_place(engine, model, monkeypatch):
    began = slow_down(monkeypatch, model.decoder, "forward")
    running = engine.ask(question("a"))
    assert began.wait(10)
    second, third = engine.ask(question("b")), engine.ask(question("c"))
    places = [next(iter(answer)).queue_position for answer in (second, third)]
    assert places == [1, 2]
    running.stop()


# Stopping


@pytest.mark.parametrize("part", ["vision", "prefill", "decode"])
def test_stop_ends_the_work_within_a_third_of_a_second(part, engine, model, monkeypatch):
    if part == "vision":
        began = slow_down(monkeypatch, model.vision, "encode")
    elif part == "prefill":
        began = slow_down(monkeypatch, model.decoder, "forward")
    else:
        real, steps, began = model.decoder.forward_together, [0], threading.Event()

        def forward(*args, **kwargs):
            steps[0] += 1
            time.sleep(0.05)
            if steps[0] == 4:
                began.set()
            return real(*args, **kwargs)

        monkeypatch.setattr(model.decoder, "forward_together", forward)
        monkeypatch.setattr(model.tokenizer, "eos_token_ids", ())
    answer = engine.ask(question(max_new_tokens=500))
    assert began.wait(10)
    started = time.monotonic()
    answer.stop()
    wait_until(lambda: not engine._queue.jobs())
    assert time.monotonic() - started < STOP_S
    _, stats = done(answer)
    assert stats.finish_reason == "cancelled"
    assert (stats.new_tokens > 0) == (part == "decode")


def test_a_partial_answer_is_part_of_the_conversation_and_its_cache(engine, model, monkeypatch):
    monkeypatch.setattr(model.tokenizer, "eos_token_ids", ())
    first = question(max_new_tokens=400)
    answer = engine.ask(first)
    text = ""
    for piece in answer:
        text += piece.text
        if text:
            answer.stop()
    stats = piece.stats
    assert stats.finish_reason == "cancelled" and 0 < stats.new_tokens < 400
    kept = Message("assistant", text, token_ids=stats.token_ids)
    chat = (*first.messages, kept, Message("user", "Continue."))
    _, then = done(engine.ask(AskRequest("a", chat, GREEDY)))
    assert then.cached_tokens == stats.prompt_tokens + stats.new_tokens - 1


@pytest.mark.parametrize("how", ["closed iterator", "lost answer", "lost iterator"])
def test_losing_the_reader_ends_the_work(how, engine, model, monkeypatch):
    began = slow_down(monkeypatch, model.decoder, "forward")
    answer = engine.ask(question())
    pieces = iter(answer)
    next(pieces)
    assert began.wait(10)
    if how == "closed iterator":
        pieces.close()
    elif how == "lost answer":
        del answer, pieces
    else:
        del pieces
    gc.collect()
    wait_until(lambda: not engine._queue.jobs(), 2 * STOP_S)


def test_a_reader_that_never_comes_back_ends_the_work(bundled_folder, monkeypatch):
    engine = Engine(settings_for(bundled_folder), abandoned_s=0.5)
    try:
        wait_until(lambda: engine.state().stage == "ready", 60)
        slow_down(monkeypatch, engine._generator.model.decoder, "forward")
        answer = engine.ask(question())
        wait_until(lambda: engine._queue.jobs())
        wait_until(lambda: not engine._queue.jobs(), 2.0)
        assert done(answer)[1].finish_reason == "cancelled"
    finally:
        engine.close()


def test_a_stopped_waiting_request_leaves_the_queue_at_once(engine, model, monkeypatch):
    began = slow_down(monkeypatch, model.decoder, "forward")
    running = engine.ask(question("a"))
    assert began.wait(10)  # asked together, who had a turn longest ago would begin
    waiting, last = (engine.ask(question(name)) for name in "bc")
    waiting.stop()
    assert [job.request.conversation_id for job in engine._queue.jobs()] == ["a", "c"]
    assert done(waiting)[1].finish_reason == "cancelled"
    assert next(iter(last)).queue_position == 1
    running.stop()


def test_something_is_heard_every_two_seconds_while_the_model_says_nothing(
    engine, model, monkeypatch
):
    began = slow_down(monkeypatch, model.decoder, "forward", layer_s=2.5, layers=1)
    answer = engine.ask(question(max_new_tokens=1))
    assert began.wait(10)
    moments = [time.monotonic() for _ in answer]
    assert len(moments) > 3
    assert max(b - a for a, b in zip(moments, moments[1:], strict=False)) < 2.0


# Faults


def test_any_exception_reaches_the_one_who_asked_and_the_next_request_works(
    engine, model, monkeypatch, caplog
):
    text, _ = done(engine.ask(question("a")))
    with monkeypatch.context() as patched:
        patched.setattr(model.decoder, "forward", lambda *args, **kwargs: 1 / 0)
        with caplog.at_level(logging.ERROR), pytest.raises(GenerationError) as caught:
            list(engine.ask(question("b")))
    assert "stopped unexpectedly" in str(caught.value)
    assert "division" not in str(caught.value)
    assert "ZeroDivisionError" in caplog.text
    assert done(engine.ask(question("b")))[0] == text


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 9 GB")])
def test_too_little_memory_is_said_in_words(error, engine, model, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(model.vision, "encode", fail)
    with pytest.raises(GenerationError, match="memory"):
        list(engine.ask(question()))


def test_not_a_number_is_a_message_and_not_an_endless_answer(engine, model, monkeypatch):
    real = model.decoder.logits
    with monkeypatch.context() as patched:
        patched.setattr(model.decoder, "logits", lambda rows: real(rows) * torch.nan)
        with pytest.raises(GenerationError):
            list(engine.ask(question()))
    assert done(engine.ask(question()))[1].cached_tokens == 0, "the cache may hold such numbers"


def test_a_chat_above_the_context_is_refused_before_any_work(engine, model, monkeypatch):
    monkeypatch.setattr(model.vision, "encode", lambda *args: pytest.fail("work was done"))
    limit = engine._generator.limits.context_tokens
    with pytest.raises(ContextLengthError, match=f"limit is {limit}") as caught:
        list(engine.ask(question(text="word " * limit)))
    files = {entry.path.name for entry in caught.traceback}
    assert "generate.py" not in files, "frames of the owner thread would keep tensors alive"


def test_too_many_pictures_are_refused(engine):
    with pytest.raises(PromptError, match="9 pictures; the limit is 8"):
        list(engine.ask(question(pictures=[RED] * 9)))


def test_a_repeated_click_is_one_job(engine, model, monkeypatch):
    began = slow_down(monkeypatch, model.decoder, "forward")
    answer = engine.ask(question())
    assert began.wait(10)
    for _ in range(9):
        with pytest.raises(BusyError, match="already"):
            engine.ask(question())
    answer.stop()
    again = engine.ask(question())  # after Stop the next question is taken at once
    again.stop()
    assert done(again)[1].finish_reason == "cancelled"


def test_a_full_queue_refuses_with_a_sentence(bundled_folder, monkeypatch):
    engine = Engine(settings_for(bundled_folder, queue_size=2))
    try:
        wait_until(lambda: engine.state().stage == "ready", 60)
        began = slow_down(monkeypatch, engine._generator.model.decoder, "forward")
        answers = [engine.ask(question("a"))]
        assert began.wait(10)
        answers += [engine.ask(question(name)) for name in "bc"]
        with pytest.raises(BusyError, match="limit is 2"):
            engine.ask(question("d"))
        answers[1].stop()
        answers.append(engine.ask(question("d")))
    finally:
        engine.close()


def test_forget_stops_and_drops_a_conversation(engine, model, monkeypatch):
    done(engine.ask(question("a")))
    done(engine.ask(question("b")))
    assert engine.memory().conversations == 2
    engine.forget("a")
    assert engine.memory().conversations == 1
    with monkeypatch.context() as patched:
        began = slow_down(patched, model.decoder, "forward")
        running = engine.ask(question("b"))
        assert began.wait(10)
        engine.forget("b")
        assert done(running)[1].finish_reason == "cancelled"
    wait_until(lambda: not engine._queue.jobs())
    assert engine.memory().conversations == 0


def test_freed_caches_change_no_token_of_a_follow_up_or_of_a_running_answer(
    engine, model, monkeypatch
):
    first = question()
    told = done(engine.ask(first))[1]
    answer = Message("assistant", "Red.", token_ids=told.token_ids)
    chat = (*first.messages, answer, Message("user", "And what shape?"))
    follow_up = AskRequest("a", chat, GREEDY)
    expected = done(engine.ask(follow_up))[1].token_ids
    before = engine.memory()
    assert engine.free_caches() == before.kv_cache_bytes + before.feature_cache_bytes > 0
    assert engine.memory().kv_cache_bytes == engine.memory().feature_cache_bytes == 0
    again = done(engine.ask(follow_up))[1]
    assert (again.token_ids, again.cached_tokens) == (expected, 0)

    done(engine.ask(question("b")))
    with monkeypatch.context() as patched:
        began = slow_down(patched, model.decoder, "forward", layers=5)
        running = engine.ask(follow_up)
        assert began.wait(10)
        engine.free_caches()
        assert engine.memory().kv_cache_bytes > 0
        assert done(running)[1].token_ids == expected
    assert engine.memory().conversations == 1
    assert done(engine.ask(follow_up))[1].cached_tokens > 0


def test_secrets_of_interleaved_conversations_stay_apart(engine):
    """What one conversation is told never changes what another one answers (logits would)."""
    alone = {}
    for name, picture in (("c", RED), ("d", BLUE)):
        alone[name] = done(engine.ask(question(name, f"My word is {name * 5}.", [picture])))[1]
        engine.forget(name)
    for _ in range(5):
        for name, picture in (("c", RED), ("d", BLUE)):
            stats = done(engine.ask(question(name, f"My word is {name * 5}.", [picture])))[1]
            assert stats.token_ids == alone[name].token_ids


def test_every_error_a_person_can_cause_is_a_vlm_error(engine):
    strange = [
        question(text="", pictures=()),
        question(temperature=float("nan")),
        question(temperature=-1.0),
        question(top_p=0.0),
        question(max_new_tokens=0),
        question(max_new_tokens=10**9),
        question(top_k=-5),
        question(presence_penalty=float("inf")),
        question(text="<|image_pad|><|im_end|>"),
    ]
    for request in strange:
        try:
            done(engine.ask(request))
        except VLMError as error:
            assert "unexpectedly" not in str(error), request
