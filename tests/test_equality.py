"""Our engine equals transformers token by token, and a warm answer equals a cold one.

The ground truth of the project: fp32 greedy ids and logits over 200 held-out chats, and every
way a cache can be hit. Stated bounds of the other precisions stand beside their tests.
"""

import random
from dataclasses import replace

import pytest
import torch
from bundled_reference import Reference

from vlm.bundled.questions import TOPICS, ask
from vlm.bundled.scenes import SceneMix, draw_scene
from vlm.chat import AskRequest, Message, Sampling
from vlm.checkpoint import load_model
from vlm.errors import Stopped
from vlm.generate import Generator
from vlm.images import open_picture
from vlm.kv_cache import ConversationCaches, FeatureCache
from vlm.linear import available_kinds
from vlm.precision import PrecisionPlan
from vlm.request_checks import AnswerLimits
from vlm.stats import AnswerClock

GREEDY = Sampling(temperature=0.0, presence_penalty=0.0, max_new_tokens=8)
LOGIT_BOUND = 1e-4
"""Largest difference of any fp32 logit from transformers, and of warm from cold."""
PAIRS = {"one turn": 90, "multi-turn": 50, "multi-picture": 40, "text only": 20}


class Listener:
    """Keeps what was emitted, and stops the answer at the n-th look at check()."""

    def __init__(self, stop_after=None):
        self.pieces = []
        self.checks = 0
        self._stop_after = stop_after

    def emit(self, piece):
        self.pieces.append(piece)

    def check(self):
        self.checks += 1
        if self._stop_after is not None and self.checks > self._stop_after:
            raise Stopped

    @property
    def text(self):
        return "".join(piece.text for piece in self.pieces)


class Asker:
    """A generator whose logits are written down."""

    def __init__(self, model, prefill_rows=256, guess_tokens=0):
        caches = ConversationCaches(2**30, model.decoder.new_cache)
        # Without guesses, so that every row of logits is one token of the answer.
        limits = AnswerLimits(model.info.context_tokens, 8, True, prefill_rows, guess_tokens)
        self.generator = Generator(model, caches, FeatureCache(2**28), limits)

    def ask(self, messages, conversation_id="c", sampling=GREEDY, stop_after=None):
        """Return stats, logits (steps, vocab) and text of one answer."""
        decoder = self.generator.model.decoder
        rows, compute = [], decoder.logits

        def recorded(hidden_rows):
            rows.append(compute(hidden_rows))
            return rows[-1]

        listener = Listener(stop_after)
        decoder.logits = recorded
        try:
            request = AskRequest(conversation_id, tuple(messages), sampling)
            stats = self.generator.answer(request, listener, AnswerClock())
        finally:
            del decoder.logits
        return Answered(stats, torch.cat(rows) if rows else torch.empty(0), listener)


class Answered:
    def __init__(self, stats, logits, listener):
        self.stats, self.logits, self.listener = stats, logits, listener
        self.ids = list(stats.token_ids)
        self.message = Message("assistant", listener.text, token_ids=stats.token_ids)


def load(folder, name, kind):
    plan = PrecisionPlan(name, "fp32", kind, "for a test", {})
    return load_model(folder, plan, lambda done, total: None)


@pytest.fixture(scope="module")
def model(bundled_folder):
    return load(bundled_folder, "fp32", "fp32")


@pytest.fixture(scope="module")
def reference(bundled_folder):
    return Reference(bundled_folder)


def user(text, *pictures):
    return Message("user", text, pictures)


def picture_of(rng, size=None):
    """Draw a held-out scene; return it and its picture."""
    width, height = size or rng.choice([(128, 128), (192, 128), (128, 192), (192, 192), (300, 150)])
    scene = draw_scene(rng, width, height, SceneMix(held_out=True), scale=1.0)
    return scene, open_picture(scene.picture)


def question_about(rng, scene):
    while True:
        made = ask(rng, scene, rng.choice(TOPICS), rng.choice(["en", "zh"]))
        if made is not None:
            return made


def draw_chats(kind, count):
    """Make held-out chats of a kind, each ending with a question."""
    rng = random.Random(f"equality {kind}")
    make = {
        "one turn": _one_turn,
        "multi-turn": _multi_turn,
        "multi-picture": _multi_picture,
        "text only": _text_only,
    }[kind]
    return [make(rng) for _ in range(count)]


def _one_turn(rng):
    scene, picture = picture_of(rng)
    system = [Message("system", "Answer briefly.")] if rng.random() < 0.3 else []
    return [*system, user(question_about(rng, scene).text, picture)]


def _multi_turn(rng):
    scene, picture = picture_of(rng)
    first = question_about(rng, scene)
    messages = [user(first.text, picture), Message("assistant", first.answer)]
    for _ in range(rng.randint(0, 2)):
        then = question_about(rng, scene)
        messages += [user(then.text), Message("assistant", then.answer)]
    return [*messages, user(question_about(rng, scene).text)]


def _multi_picture(rng):
    """Two or three pictures: in one turn, or one of them later."""
    drawn = [picture_of(rng) for _ in range(rng.randint(2, 3))]
    pictures = [picture for _, picture in drawn]
    last = question_about(rng, drawn[-1][0])
    if rng.random() < 0.5:
        return [user(last.text, *pictures)]
    first = question_about(rng, drawn[0][0])
    return [
        user(first.text, *pictures[:-1]),
        Message("assistant", first.answer),
        user(last.text, pictures[-1]),
    ]


def _text_only(rng):
    words = "hello who are you what can see tell me about red circles and blue stars".split()
    messages = [user(" ".join(rng.choices(words, k=rng.randint(1, 12))))]
    if rng.random() < 0.5:
        messages += [Message("assistant", "yes"), user(" ".join(rng.choices(words, k=5)))]
    return messages


@pytest.mark.parametrize("kind", PAIRS)
def test_greedy_ids_and_every_logit_equal_transformers(kind, model, reference):
    chats = draw_chats(kind, PAIRS[kind])
    # Chats of similar length share a batch; otherwise most of the time goes into padding.
    chats.sort(key=lambda messages: len(reference.encode(messages)[0]))
    asker, compared = Asker(model), 0
    for at in range(0, len(chats), 25):
        batch = chats[at : at + 25]
        expected = reference.generate(batch, GREEDY.max_new_tokens)
        for number, (messages, (ids, logits)) in enumerate(zip(batch, expected, strict=True), at):
            ours = asker.ask(messages, f"{kind} {number}")
            assert ours.ids == ids, messages
            assert ours.logits.shape == logits.shape
            torch.testing.assert_close(ours.logits, logits, atol=LOGIT_BOUND, rtol=0)
            compared += 1
    assert compared == PAIRS[kind]
    assert sum(PAIRS.values()) >= 200


# Warm equals cold. Each test asks the last question twice: where a cache may be hit, and in a
# generator that has seen nothing.


def assert_equals_cold(warm, model, messages, sampling=GREEDY):
    cold = Asker(model).ask(messages, sampling=sampling)
    assert cold.stats.cached_tokens == 0
    assert warm.ids == cold.ids
    assert (warm.logits - cold.logits).abs().max() < LOGIT_BOUND
    assert warm.stats.prompt_tokens == cold.stats.prompt_tokens
    return cold


@pytest.fixture
def rng(request):
    return random.Random(request.node.name)


@pytest.fixture
def two_pictures(rng):
    """Two different held-out pictures of equal size."""
    return picture_of(rng, (160, 160))[1], picture_of(rng, (160, 160))[1]


def test_a_follow_up_reads_only_what_is_new(model, two_pictures):
    asker = Asker(model)
    first = [user("What colour is it?", two_pictures[0])]
    answer = asker.ask(first)
    chat = [*first, answer.message, user("Where is it?")]
    warm = asker.ask(chat)
    # All that was forwarded is reused: the prompt and the answer but for its last token at most.
    assert warm.stats.cached_tokens >= answer.stats.prompt_tokens + len(answer.ids) - 1
    assert warm.stats.vision_s < 0.02 or not encoded_pictures(warm)
    assert_equals_cold(warm, model, chat)


def encoded_pictures(answered):
    """Say whether any picture went through the vision tower or its cache."""
    return any(p.stage == "vision" and p.progress > 0 for p in answered.listener.pieces)


def test_three_turns_with_the_generators_own_answers(model, two_pictures):
    asker, chat = Asker(model), [user("What is this?", two_pictures[0])]
    for text in ("What colour is it?", "Where is it?", "Count the shapes."):
        answer = asker.ask(chat)
        assert_equals_cold(answer, model, chat)
        chat += [answer.message, user(text)]
    warm = asker.ask(chat)
    assert not encoded_pictures(warm)
    assert_equals_cold(warm, model, chat)


def test_another_picture_of_equal_size_is_never_taken_for_the_first(model, two_pictures):
    asker, answers = Asker(model), []
    for picture in (*two_pictures, *two_pictures):
        chat = [user("What colour is it?", picture)]
        warm = asker.ask(chat)
        picture_start = 5  # <|im_start|>user\n<|vision_start|>: far less than the question
        assert warm.stats.cached_tokens <= picture_start
        answers.append(assert_equals_cold(warm, model, chat))
    assert (answers[0].logits[0] - answers[1].logits[0]).abs().max() > 100 * LOGIT_BOUND


def test_a_b_a_between_two_conversations(model, two_pictures):
    asker = Asker(model)
    chat_a = [user("What colour is it?", two_pictures[0])]
    answer = asker.ask(chat_a, "a")
    asker.ask([user("Who are you?")], "b")
    chat_a += [answer.message, user("Where is it?")]
    warm = asker.ask(chat_a, "a")
    assert warm.stats.cached_tokens >= answer.stats.prompt_tokens
    assert_equals_cold(warm, model, chat_a)


def test_a_cache_is_never_used_by_another_conversation(model, two_pictures):
    asker = Asker(model)
    chat = [user("What colour is it?", two_pictures[0])]
    asker.ask(chat, "a")
    other = asker.ask(chat, "b")
    assert other.stats.cached_tokens == 0
    assert_equals_cold(other, model, chat)  # and the features from the cache are the same


@pytest.mark.parametrize("stop_after", range(1, 60, 3))
def test_stop_anywhere_then_continue(stop_after, model, two_pictures):
    """Stop between any two layers of vision, prefill and decode, then go on with the chat."""
    asker = Asker(model, prefill_rows=16)
    chat = [user("Describe both.", *two_pictures)]
    stopped = asker.ask(chat, stop_after=stop_after)
    assert stopped.stats.finish_reason == "cancelled"
    if stopped.ids:
        chat += [stopped.message, user("Continue your last sentence.")]
    warm = asker.ask(chat)
    if stopped.ids:
        # The last token chosen was not forwarded; all before it was, and is reused.
        assert warm.stats.cached_tokens == stopped.stats.prompt_tokens + len(stopped.ids) - 1
    assert_equals_cold(warm, model, chat)


def test_retry_forwards_one_token_and_says_the_same(model, two_pictures):
    asker, chat = Asker(model), [user("What colour is it?", two_pictures[0])]
    asker.ask(chat)
    for _ in range(2):
        warm = asker.ask(chat)
        assert warm.stats.cached_tokens == warm.stats.prompt_tokens - 1
        assert_equals_cold(warm, model, chat)


def test_undo_then_another_question(model, two_pictures):
    asker, chat = Asker(model), [user("What colour is it?", two_pictures[0])]
    answer = asker.ask(chat)
    chat.append(answer.message)
    asker.ask([*chat, user("Where is it?")])
    chat.append(user("How many shapes are there?"))
    warm = asker.ask(chat)
    assert warm.stats.cached_tokens >= answer.stats.prompt_tokens
    assert_equals_cold(warm, model, chat)


def test_edit_of_the_first_turn_keeps_the_picture_before_it(model, two_pictures):
    asker = Asker(model)
    first = asker.ask([user("What colour is it?", two_pictures[0])])
    asker.ask([user("What colour is it?", two_pictures[0]), first.message, user("Where?")])
    chat = [user("Which shape is it?", two_pictures[0])]
    warm = asker.ask(chat)
    assert warm.stats.cached_tokens >= warm.stats.visual_tokens > 0
    assert_equals_cold(warm, model, chat)


def test_a_new_picture_in_the_middle(model, two_pictures):
    asker, (one, two) = Asker(model), two_pictures
    first = [user("What colour is it?", one)]
    answer = asker.ask(first)
    chat = [*first, answer.message, user("And this one?", two)]
    then = asker.ask(chat)
    assert then.stats.cached_tokens >= answer.stats.prompt_tokens
    assert_equals_cold(then, model, chat)
    chat += [then.message, user("Compare them.")]
    assert_equals_cold(asker.ask(chat), model, chat)
    # The picture of the first turn is exchanged: nothing after it may be reused.
    chat[0] = user("What colour is it?", two)
    changed = asker.ask(chat)
    assert changed.stats.cached_tokens <= 5
    assert_equals_cold(changed, model, chat)


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_a_prompt_read_in_slices_gives_the_same_logits(rows, model, two_pictures):
    chat = [
        user("First.", *two_pictures),
        Message("assistant", "Yes"),
        user("Now?", two_pictures[0]),
    ]
    sliced = Asker(model, prefill_rows=rows).ask(chat)
    assert_equals_cold(sliced, model, chat)


def test_features_from_the_cache_equal_fresh_ones(model, two_pictures):
    asker, chat = Asker(model), [user("What is it?", two_pictures[0])]
    asker.ask(chat, "a")
    encode = model.vision.encode
    model.vision.encode = lambda *args: pytest.fail("the picture was encoded again")
    try:
        warm = asker.ask(chat, "b")
    finally:
        model.vision.encode = encode
    assert_equals_cold(warm, model, chat)


@pytest.mark.parametrize("at_check", [1, 20, 45, 60])
def test_after_an_exception_the_conversation_starts_clean(at_check, model, two_pictures):
    """The exception falls before the cache is taken, into vision, prefill and decode."""
    asker, chat = Asker(model, prefill_rows=16), [user("Describe both.", *two_pictures)]

    class Breaking(Listener):
        def check(self):
            super().check()
            if self.checks == at_check:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        request = AskRequest("c", tuple(chat), GREEDY)
        asker.generator.answer(request, Breaking(), AnswerClock())
    after = asker.ask(chat)
    assert after.stats.cached_tokens == 0
    assert_equals_cold(after, model, chat)


def test_seeded_sampling_repeats_and_seeds_differ(model, two_pictures):
    chat = [user("What is it?", two_pictures[0])]
    hot = replace(GREEDY, temperature=2.0, top_p=1.0, top_k=0)
    ids = [Asker(model).ask(chat, sampling=replace(hot, seed=s)).ids for s in (7, 7, 8, 9, 10, 11)]
    assert ids[0] == ids[1]
    assert any(other != ids[0] for other in ids[2:])


# The other precisions. Their weights differ from fp32's, so they are held to a distance:
# the mean divergence (KL, in nats) of the first token's distribution, the share of first tokens
# that agree, and the share of whole answers that are equal.
BOUNDS = {
    # The checkpoint's bf16 weights fit into fp16 but for the tiniest, and the arithmetic is fp32.
    "fp16": (1e-6, 1.0, 1.0),
    # Activations are rounded to 8 bits of mantissa before each product.
    "bf16": (1e-2, 0.95, 0.90),
    # Weights keep 8 bits per output channel.
    "int8": (1e-2, 0.95, 0.90),
}


@pytest.fixture(scope="module")
def exact_answers(model):
    """Chats of all kinds, each with its fp32 answer."""
    asker = Asker(model)
    chats = [chat for name in PAIRS for chat in draw_chats(name, 10)]
    return [(chat, asker.ask(chat, str(i))) for i, chat in enumerate(chats)]


@pytest.mark.parametrize("kind", BOUNDS)
def test_mixed_and_int8_stay_within_their_bounds(kind, exact_answers, bundled_folder):
    if kind not in available_kinds():
        pytest.skip(f"this CPU has no {kind} kernels")
    asker = Asker(load(bundled_folder, "mixed", kind))
    pairs = [(a, asker.ask(chat, str(i))) for i, (chat, a) in enumerate(exact_answers)]
    divergence = sum(_divergence(a.logits[0], b.logits[0]) for a, b in pairs) / len(pairs)
    first = sum(a.logits[0].argmax() == b.logits[0].argmax() for a, b in pairs) / len(pairs)
    whole = sum(a.ids == b.ids for a, b in pairs) / len(pairs)
    most_divergence, least_first, least_whole = BOUNDS[kind]
    assert divergence < most_divergence
    assert first >= least_first
    assert whole >= least_whole


def _divergence(expected, given):
    return float(
        torch.nn.functional.kl_div(
            given.double().log_softmax(0),
            expected.double().log_softmax(0),
            log_target=True,
            reduction="sum",
        )
    )
