"""The presets in configs/presets/: they load, say why, and differ where they should."""

from __future__ import annotations

import re
import tomllib

import pytest

from vlm.config import GenerationSettings
from vlm.presets import PRESET_FOLDER, load_presets

KEY = re.compile(r"^[a-z_]+ = [^#]+(#.*)?$", re.MULTILINE)
PRESETS = load_presets()


def test_these_presets_are_here() -> None:
    assert set(PRESETS) == {"precise", "balanced", "creative", "read_text", "find_boxes"}


@pytest.mark.parametrize("name", PRESETS)
def test_every_key_has_a_comment_with_its_reason(name: str) -> None:
    text = (PRESET_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    keys = list(KEY.finditer(text))
    assert len(keys) == sum(len(table) for table in content.values())
    assert all(len((key[1] or "").split()) >= 5 for key in keys)
    assert {"temperature", "top_p", "top_k", "presence_penalty"} <= content["generation"].keys()
    assert set(content) <= {"generation", "picture"}


def test_balanced_is_what_the_model_card_says_and_what_a_start_uses() -> None:
    assert PRESETS["balanced"].generation == GenerationSettings()


@pytest.mark.parametrize("name", ["precise", "read_text", "find_boxes"])
def test_what_has_one_right_answer_is_not_drawn_or_penalised(name: str) -> None:
    generation = PRESETS[name].generation
    assert (generation.temperature, generation.presence_penalty) == (0.0, 0.0)


def test_only_small_print_and_boxes_ask_for_more_of_a_picture() -> None:
    asked = {name: preset.max_visual_tokens for name, preset in PRESETS.items()}
    assert asked == {
        "precise": None, "balanced": None, "creative": None, "read_text": 1280, "find_boxes": 1280,
    }  # fmt: skip
