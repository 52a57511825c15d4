"""Quick tasks and presets: each prompt is one the model follows, each preset one that is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import gradio as gr
import pytest

from vlm.boxes import read_boxes
from vlm.bundled.evaluate import answer, open_generator
from vlm.chat import Message
from vlm.config import Settings
from vlm.images import open_picture
from vlm.presets import load_presets
from vlm.ui.conversation import Turn
from vlm.ui.options import TEMPERATURE, TOP_K, TOP_P, Range, new_tokens_range
from vlm.ui.samples import draw_samples
from vlm.ui.sessions import Session
from vlm.ui.tasks import TASK_PRESETS, Dials, Tasks, preset_order
from vlm.ui.texts import EN, ZH, Texts

TASKS = Tasks(Settings(), lambda request: Session())
NOBODY = cast(gr.Request, None)
START = Dials(None, 512, 0.7, 0.8, 20, 1.5, 512)
READ = Dials(*TASKS.choose("read_text"))


def test_each_task_has_its_words_and_a_preset_that_is_here() -> None:
    for texts in (EN, ZH):
        assert [name for name, _, _ in texts.tasks] == list(TASK_PRESETS)
        assert [name for name, _ in texts.presets] == preset_order()
    assert set(TASK_PRESETS.values()) <= set(load_presets())


@pytest.mark.parametrize("name", preset_order())
def test_a_preset_stays_within_what_the_page_allows(name: str) -> None:
    generation = load_presets()[name].generation
    ranges: dict[str, Range] = {
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "top_k": TOP_K,
        "max_new_tokens": new_tokens_range(Settings()),
    }
    for key, limits in ranges.items():
        value = getattr(generation, key)
        assert limits.bound(value, -1.0) == value


def test_a_preset_sets_the_dials_and_reset_brings_the_start_back() -> None:
    chosen = TASKS.choose("read_text")
    assert (chosen.temperature, chosen.detail, chosen.max_new_tokens) == (0.0, 1280, 1500)
    *dials, seed, system_prompt = TASKS.reset(NOBODY)
    start = Dials(*dials)
    assert (start.temperature, start.detail, start.preset) == (0.7, 512, None)
    assert (seed, system_prompt) == (-1, "")


def test_an_unknown_preset_changes_nothing() -> None:
    assert all(isinstance(change, dict) for change in TASKS.choose("../default"))


@pytest.fixture
def session() -> Session:
    """A tab with an empty chat."""
    return Session()


@pytest.fixture
def tasks(session: Session) -> Tasks:
    """The handlers of a page with that tab alone."""
    return Tasks(Settings(), lambda request: session)


def press(tasks: Tasks, task: str, dials: Dials) -> Dials:
    filled, *given = tasks.starter(task)(NOBODY, None, *dials)
    assert filled["value"]["text"] == EN.task_prompt(task)
    return Dials(*given)


def answer_one(session: Session, end: Any = "stop") -> None:
    assert session.conversation.begin(Turn(Message("user", "What is it?")))
    session.conversation.finish(session.conversation.turns[-1], end)


def is_unchanged(dials: Dials) -> bool:
    return all(isinstance(change, dict) for change in dials)


def test_after_the_answer_to_a_task_the_dials_go_back(tasks: Tasks, session: Session) -> None:
    given = press(tasks, "read", START)
    assert (given.detail, given.temperature) == (1280, 0.0)
    assert is_unchanged(tasks.settle(NOBODY, *given)), "nothing was asked yet"
    answer_one(session)
    moved = given._replace(top_k=7)
    assert tasks.settle(NOBODY, *moved) == START._replace(top_k=7)
    assert is_unchanged(tasks.settle(NOBODY, *START))


def test_a_second_task_starts_from_what_was_set_before_the_first(
    tasks: Tasks, session: Session
) -> None:
    custom = START._replace(detail=256, temperature=1.1)
    read = press(tasks, "read", custom)
    described = press(tasks, "describe", read)
    assert described.detail == 256
    answer_one(session)
    # While that answer is not over for the page, another task is pressed.
    again = press(tasks, "read", described)
    assert is_unchanged(tasks.settle(NOBODY, *again))
    answer_one(session)
    assert tasks.settle(NOBODY, *again) == custom


def test_a_task_that_failed_or_was_not_asked_keeps_its_dials_until_the_chat_is_left(
    tasks: Tasks, session: Session
) -> None:
    given = press(tasks, "read", START)
    answer_one(session, "failed")
    assert is_unchanged(tasks.settle(NOBODY, *given))
    assert tasks.drop(NOBODY, *given) == START
    assert is_unchanged(tasks.drop(NOBODY, *START))


def test_retry_repeats_a_task_in_its_way_and_other_questions_in_the_pages(
    tasks: Tasks, session: Session
) -> None:
    given = press(tasks, "read", START)
    answer_one(session)
    assert tasks.settle(NOBODY, *given) == START
    page = (START.detail, "Be kind.", *START[2:], 5)
    asked = (READ.detail, "Be kind.", *READ[2:], 5)
    assert tasks.options_again(NOBODY, page) == asked
    assert tasks.options_again(NOBODY, (256, *page[1:])) == (256, *asked[1:])
    answer_one(session)
    assert tasks.options_again(NOBODY, page) == page


def test_a_preset_that_was_picked_stays_and_leaves_nothing_of_a_task(
    tasks: Tasks, session: Session
) -> None:
    given = press(tasks, "read", START)
    picked = tasks.pick("creative", given.detail, NOBODY)
    assert (picked.preset, picked.detail) == ("creative", 512)
    answer_one(session)
    assert is_unchanged(tasks.settle(NOBODY, *picked))


@pytest.mark.parametrize("texts", [EN, ZH])
def test_the_built_in_model_follows_the_prompts(bundled_folder: Path, texts: Texts) -> None:
    generator = open_generator(bundled_folder, "fp32")
    shapes, word = (sample.paths[0] for sample in draw_samples().built_in[:2])

    def ask(task: str, path: str) -> str:
        question = Message("user", texts.task_prompt(task), (open_picture(Path(path)),))
        return answer(generator, f"{texts.language} {task}", [question])

    assert ask("read", word) == "CAFE"
    background = {"en": "white background", "zh": "白色背景"}[texts.language]
    assert background in ask("describe", shapes)
    assert len(read_boxes(ask("boxes", shapes))) >= 2
