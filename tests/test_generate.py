"""Generator: what one answer tells its listener, where it ends, and what it leaves in the cache.

That its tokens are right is shown in test_equality.py.
"""

from dataclasses import replace

import pytest
from PIL import Image

from vlm.answer_run import LOOP_NOTICE
from vlm.chat import AskRequest, Message, Sampling
from vlm.checkpoint import load_model
from vlm.errors import ContextLengthError, PromptError
from vlm.generate import Generator
from vlm.images import open_picture
from vlm.kv_cache import ConversationCaches, FeatureCache
from vlm.precision import PrecisionPlan
from vlm.request_checks import AnswerLimits
from vlm.stats import AnswerClock

GREEDY = Sampling(temperature=0.0, presence_penalty=0.0, max_new_tokens=12)
LIMITS = AnswerLimits(context_tokens=2048, max_pictures=4)


@pytest.fixture(scope="module")
def model(bundled_folder):
    return load_model(bundled_folder, PrecisionPlan("fp32", "fp32", "fp32", "for a test", {}))


class Heard:
    """A listener that only listens."""

    def __init__(self):
        self.pieces = []

    def emit(self, piece):
        self.pieces.append(piece)

    def check(self):
        pass

    @property
    def text(self):
        return "".join(piece.text for piece in self.pieces)

    @property
    def notices(self):
        return [notice for piece in self.pieces for notice in piece.notices]


def generator(model, limits=LIMITS):
    caches = ConversationCaches(2**30, model.decoder.new_cache)
    return Generator(model, caches, FeatureCache(2**28), limits)


def answer(source, messages, sampling=GREEDY):
    heard = Heard()
    request = AskRequest("c", tuple(messages), sampling)
    return source.answer(request, heard, AnswerClock()), heard


def picture(colour=(220, 30, 30), notices=()):
    drawn = open_picture(Image.new("RGB", (160, 128), colour))
    return replace(drawn, notices=notices)


@pytest.fixture
def endless(model, monkeypatch):
    """The model without a stop token, so that an answer ends for another reason."""
    monkeypatch.setattr(model.tokenizer, "eos_token_ids", ())
    return model


def test_an_answer_ends_at_its_longest_and_the_cache_lacks_only_the_last_token(endless):
    source, question = generator(endless), Message("user", "Hello")
    stats, heard = answer(source, [question])
    assert stats.finish_reason == "length" and len(stats.token_ids) == 12
    said = Message("assistant", heard.text, token_ids=stats.token_ids)
    then, _ = answer(source, [question, said, Message("user", "More.")])
    assert then.cached_tokens == stats.prompt_tokens + 11


def test_the_context_cuts_an_answer_and_refuses_a_chat_that_leaves_it_no_room(endless):
    question = [Message("user", "Hello")]
    used = answer(generator(endless), question)[0].prompt_tokens
    stats, _ = answer(generator(endless, replace(LIMITS, context_tokens=used + 3)), question)
    assert (stats.finish_reason, stats.new_tokens) == ("length", 3)
    with pytest.raises(ContextLengthError, match=f"{used} tokens, 0 of them for pictures"):
        answer(generator(endless, replace(LIMITS, context_tokens=used)), question)


def test_pictures_that_fill_the_context_are_refused_before_they_are_looked_at(model, monkeypatch):
    monkeypatch.setattr(model.vision, "encode", lambda *args: pytest.fail("work was done"))
    small = generator(model, replace(LIMITS, context_tokens=128))
    question = Message("user", "Which?", tuple(picture((i, 0, 0)) for i in range(4)))
    more = replace(question, pictures=question.pictures[:2])
    with pytest.raises(ContextLengthError, match=r"The 6 pictures of this chat take 120 visual"):
        answer(small, [question, Message("assistant", "This."), more])
    assert small.caches.count == 0


def test_the_stop_token_ends_an_answer_and_is_no_part_of_it(endless, monkeypatch):
    stats, _ = answer(generator(endless), [Message("user", "Hello")])
    stop_id = stats.token_ids[0]
    monkeypatch.setattr(endless.tokenizer, "eos_token_ids", (stop_id,))
    stats, heard = answer(generator(endless), [Message("user", "Hello")])
    assert (stats.finish_reason, stats.token_ids, heard.text) == ("stop", (), "")
    assert stats.ttft_s > 0, "the stop token was a token all the same"


def test_a_loop_is_ended_with_a_notice_unless_the_guard_is_off(endless, monkeypatch):
    class Third:
        def __init__(self):
            self.pushed = []

        def push(self, token_id):
            self.pushed.append(token_id)
            return len(self.pushed) == 3

    monkeypatch.setattr("vlm.answer_run.LoopGuard", Third)
    stats, heard = answer(generator(endless), [Message("user", "Hello")])
    assert (stats.finish_reason, stats.new_tokens) == ("loop", 3)
    assert heard.notices == [LOOP_NOTICE]
    free = generator(endless, replace(LIMITS, loop_guard=False))
    assert answer(free, [Message("user", "Hello")])[0].finish_reason == "length"


def test_the_text_of_all_pieces_is_the_decoded_answer_without_a_broken_tail(endless):
    stats, heard = answer(generator(endless), [Message("user", "Hello", (picture(),))])
    decoded = endless.tokenizer.backend.decode(list(stats.token_ids))
    assert decoded.rstrip("\ufffd") == heard.text.rstrip("\ufffd")
    assert len(heard.text) <= len(decoded)


def test_notices_of_the_newest_pictures_are_passed_on_once_and_old_ones_not_again(model):
    source = generator(model)
    first = Message("user", "One?", (picture(notices=("Old.",)),))
    _, heard = answer(source, [first])
    assert heard.notices == ["Old."]
    noted = picture((30, 30, 220), notices=("Only the first frame is used.",))
    chat = [first, Message("assistant", "Red"), Message("user", "Two?", (noted, noted))]
    stats, heard = answer(source, chat)
    assert heard.notices == ["Only the first frame is used."]
    assert stats.visual_tokens == 60


def test_progress_of_vision_and_prefill_only_grows_and_ends_at_one(model):
    source = generator(model, replace(LIMITS, prefill_rows=16))
    chat = [Message("user", "Compare.", (picture(), picture((30, 30, 220))))]
    _, heard = answer(source, chat)
    for stage in ("vision", "prefill"):
        progress = [piece.progress for piece in heard.pieces if piece.stage == stage]
        assert progress == sorted(progress)
        assert progress[-1] == pytest.approx(1.0) and len(set(progress)) > 5


def test_only_the_prompt_tokens_that_are_new_are_prefilled_and_counted(model):
    source, clock = generator(model), AnswerClock()
    question = Message("user", "What colour?", (picture(),))
    stats, _ = answer(source, [question])
    source.answer(AskRequest("c", (question,), GREEDY), Heard(), clock)
    assert clock.prefilled_tokens == 1
    assert clock.cached_tokens == stats.prompt_tokens - 1
    assert clock.visual_tokens == stats.visual_tokens == 20


@pytest.mark.parametrize(
    ("messages", "sampling", "fault"),
    [
        ([], GREEDY, "no question"),
        ([Message("user", "Hi", (picture(),) * 5)], GREEDY, "5 pictures; the limit is 4"),
        ([Message("user", "Hi")], replace(GREEDY, temperature=float("nan")), "temperature = nan"),
        ([Message("user", "Hi")], replace(GREEDY, max_new_tokens=10**9), "max_new_tokens"),
        ([Message("user", "Hi")], replace(GREEDY, max_new_tokens=0), "max_new_tokens"),
        ([Message("user", "Hi")], replace(GREEDY, top_p=0.0), "top_p = 0.0"),
        ([Message("user", "Hi")], replace(GREEDY, seed=-7), "seed = -7"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words_before_any_work(
    messages, sampling, fault, model, monkeypatch
):
    monkeypatch.setattr(model.decoder, "forward", lambda *args: pytest.fail("work was done"))
    with pytest.raises(PromptError, match=fault):
        answer(generator(model), messages, sampling)


def test_a_text_no_context_can_hold_is_refused_before_it_is_encoded(model, monkeypatch):
    monkeypatch.setattr(type(model.tokenizer), "encode", lambda *_: pytest.fail("it was encoded"))
    with pytest.raises(ContextLengthError, match=r"300000 characters of text; the limit is 65536"):
        answer(generator(model), [Message("user", "\t \n" * 100_000)])
