"""Quick tasks and presets: each prompt is one the model follows, each preset one that is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlm.boxes import read_boxes
from vlm.bundled.evaluate import answer, open_generator
from vlm.chat import Message
from vlm.config import Settings
from vlm.images import open_picture
from vlm.presets import load_presets
from vlm.ui.options import TEMPERATURE, TOP_K, TOP_P, Range, new_tokens_range
from vlm.ui.samples import draw_samples
from vlm.ui.sessions import Session
from vlm.ui.tasks import TASK_PRESETS, Dials, Tasks, preset_order
from vlm.ui.texts import EN, ZH, Texts

TASKS = Tasks(Settings(), lambda request: Session())


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
    *dials, seed, system_prompt = TASKS.reset()
    start = Dials(*dials)
    assert (start.temperature, start.detail, start.preset) == (0.7, 512, None)
    assert (seed, system_prompt) == (-1, "")


def test_an_unknown_preset_changes_nothing() -> None:
    assert all(isinstance(change, dict) for change in TASKS.choose("../default"))


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
