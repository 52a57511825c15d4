"""What a question will cost and whether it fits: from sizes, measured rates and past answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_engine import READY, FakeEngine
from PIL import Image

from vlm.chat import AnswerStats, Capacity, Message, Rates
from vlm.images import open_picture
from vlm.patches import patch_picture
from vlm.picture_size import PictureGeometry
from vlm.ui.conversation import Conversation, Turn
from vlm.ui.cost_line import cost_line, trouble_line
from vlm.ui.estimate import Cost, Question, Reading, Size, spare_bytes
from vlm.ui.room import lower_detail, turns_to_drop
from vlm.ui.texts import EN, ZH, about
from vlm.units import GIB

RATES = Rates(vision_tps=40.0, prefill_tps=80.0, decode_tps=8.0)
MODEL = Capacity(8192, 1000, PictureGeometry())
WIDE = open_picture(Image.new("RGB", (1280, 720)))
WIDE_TOKENS = patch_picture(WIDE, PictureGeometry(), 512).visual_tokens
PLENTY = 64 * GIB


def asked(
    *turns: Turn,
    sizes: tuple[Size, ...] = ((1280, 720),),
    text: str = "",
    **rest: object,
) -> Cost:
    question = Question(sizes, text, turns, max_visual_tokens=512, new_tokens=512)
    return Cost(replace(question, **rest), MODEL)  # type: ignore[arg-type]


def answered(*pictures: object, prompt: int, visual: int, new: int = 20) -> Turn:
    stats = AnswerStats(prompt, visual, 0, new, 0.0, 1.0, 1.0, 2.0, 80.0, 8.0, "stop")
    message = Message("user", "What is it?", tuple(pictures))  # type: ignore[arg-type]
    return Turn(message, answer="A cat.", stats=stats, end="stop")


def line(cost: Cost, rates: Rates = RATES, reading: Reading | None = None) -> str:
    return cost_line(cost, rates, reading, EN)


def test_visual_tokens_are_those_the_engine_will_see() -> None:
    assert asked().visual_tokens == WIDE_TOKENS
    assert asked(sizes=((1280, 720), (64, 64))).visual_tokens == WIDE_TOKENS + 64


def test_the_seconds_follow_from_the_measured_rates() -> None:
    cost = asked()
    expected = WIDE_TOKENS / 40 + cost.unread_tokens / 80
    assert cost.first_word_s(RATES) == pytest.approx(expected)
    assert f"1280 × 720 → {WIDE_TOKENS} visual tokens · about 20 s to the first word" in line(cost)


@pytest.mark.parametrize("rates", [Rates(), Rates(prefill_tps=80.0), Rates(vision_tps=40.0)])
def test_no_seconds_are_told_where_nothing_was_measured(rates: Rates) -> None:
    assert asked().first_word_s(rates) is None
    shown = line(asked(), rates)
    assert f"{WIDE_TOKENS} visual tokens" in shown and " s " not in shown


def test_a_picture_that_has_been_read_costs_only_the_question() -> None:
    cost = asked(is_read=True)
    assert cost.unread_visual_tokens == 0 and cost.unread_tokens < 20
    shown = line(cost, reading=Reading(1.0, is_done=True))
    assert f"{WIDE_TOKENS} visual tokens · already read · the answer starts at once" in shown


def test_reading_ahead_and_the_cost_are_one_line() -> None:
    shown = line(asked(), reading=Reading(0.4, left_s=6.2))
    assert shown.count("<div") == 1
    assert "visual tokens · being read while you write: 40 %, about 6 s left<" in shown
    assert "first word" not in shown and "role" not in shown, "not read out at every percent"


def test_what_the_chat_has_read_is_not_counted_again_until_the_detail_changes() -> None:
    turn = answered(WIDE, prompt=WIDE_TOKENS + 30, visual=WIDE_TOKENS)
    follow_up = asked(turn, sizes=(), text="And now?")
    assert follow_up.unread_visual_tokens == 0 and follow_up.unread_tokens < 20
    assert follow_up.prompt_tokens >= WIDE_TOKENS + 50
    finer = asked(turn, sizes=(), text="And now?", max_visual_tokens=256)
    assert 0 < finer.unread_visual_tokens <= 256
    assert finer.unread_tokens == finer.prompt_tokens


def test_a_short_question_without_pictures_is_not_worth_a_line() -> None:
    assert line(asked(sizes=(), text="Hello")) == ""
    assert "to the first word" in line(asked(sizes=(), text="word " * 500))


def test_a_long_answer_is_a_trouble_before_a_long_question_is() -> None:
    roomy = asked()
    assert roomy.trouble(PLENTY) is None
    tight = Cost(roomy.question, replace(MODEL, context_tokens=roomy.prompt_tokens + 300))
    assert tight.trouble(PLENTY) == "cut_off"
    assert "about 300 are left" in trouble_line(tight, "cut_off", PLENTY, EN)
    over = Cost(roomy.question, replace(MODEL, context_tokens=roomy.prompt_tokens))
    assert over.trouble(PLENTY) == "too_long"
    assert str(over.prompt_tokens) in trouble_line(over, "too_long", PLENTY, ZH)


def test_memory_that_would_not_do_is_a_trouble() -> None:
    cost = asked()
    need = (cost.prompt_tokens + 512) * 1000
    assert cost.need_bytes == need
    assert cost.trouble(need) is None and cost.trouble(need - 1) == "memory"
    assert "GiB" in trouble_line(asked(), "memory", 2 * GIB, EN)
    memory = FakeEngine().memory()
    assert spare_bytes(memory, 1 * GIB) == 4 * GIB and spare_bytes(memory, 9 * GIB) == 0


def test_lower_detail_is_the_finest_at_which_it_fits() -> None:
    fine = asked(max_visual_tokens=1280)
    small = replace(MODEL, context_tokens=fine.prompt_tokens + 300)
    tight = Cost(fine.question, small)
    assert tight.trouble(PLENTY) == "cut_off"
    assert lower_detail(tight, PLENTY) == 512
    assert lower_detail(Cost(fine.question, replace(MODEL, context_tokens=600)), PLENTY) == 256
    assert lower_detail(asked(max_visual_tokens=256), PLENTY) is None
    assert lower_detail(asked(sizes=(), text="Hello"), PLENTY) is None


def test_the_oldest_pictures_are_dropped_first_and_no_more_than_needed() -> None:
    words = answered(prompt=100, visual=0)
    first = answered(WIDE, prompt=WIDE_TOKENS + 150, visual=WIDE_TOKENS)
    second = answered(WIDE, prompt=2 * WIDE_TOKENS + 200, visual=2 * WIDE_TOKENS)
    full = asked(words, first, second)
    tight = Cost(full.question, replace(MODEL, context_tokens=full.prompt_tokens + 500))
    assert tight.trouble(PLENTY) == "cut_off"
    assert turns_to_drop(tight, PLENTY) == [first]
    hopeless = Cost(full.question, replace(MODEL, context_tokens=300))
    assert turns_to_drop(hopeless, PLENTY) == [first, second, words]


def test_a_cut_chat_is_not_believed_to_be_as_long_as_its_last_answer_says() -> None:
    chat = Conversation()
    first = answered(WIDE, prompt=WIDE_TOKENS + 3000, visual=WIDE_TOKENS)
    last = answered(prompt=WIDE_TOKENS + 3100, visual=WIDE_TOKENS)
    chat.turns = [first, last]
    assert not chat.was_cut(last)
    assert chat.leave_out([first])
    assert chat.turns == [last] and chat.was_cut(last)
    cost = asked(*chat.turns, sizes=(), text="Why?", is_cut=True)
    assert cost.prompt_tokens < 200 and cost.unread_tokens == cost.prompt_tokens
    chat.begin(Turn(Message("user", "More")))
    assert not chat.leave_out([last]), "not while one is answered"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"),
        (6.2, "6 s"),
        (17.0, "15 s"),
        (58.0, "60 s"),
        (100.0, "100 s"),
        (200.0, "3 min"),
    ],
)
def test_an_estimate_is_told_no_finer_than_it_can_be_believed(seconds: float, words: str) -> None:
    assert about(seconds, EN) == words


def test_the_fake_engine_holds_what_a_real_one_does() -> None:
    assert READY.capacity is not None and READY.capacity.geometry == PictureGeometry()
