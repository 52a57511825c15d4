"""Quick tasks and presets: what one press fills into the input and the answer settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gradio as gr

from vlm.config import Settings
from vlm.presets import load_presets
from vlm.ui.options import read_visual_tokens
from vlm.ui.question_box import box_content
from vlm.ui.sessions import Session
from vlm.ui.texts import texts_in

TASK_PRESETS = {
    "describe": "balanced",
    "read": "read_text",
    "chart": "precise",
    "boxes": "find_boxes",
    "translate": "read_text",
}
"""The preset that each quick task sets."""


def preset_order() -> list[str]:
    """Names of the presets, the common ones first, then what else lies in the folder."""
    known = ["precise", "balanced", "creative", "read_text", "find_boxes"]
    here = load_presets()
    return [name for name in known if name in here] + sorted(here.keys() - set(known))


class Dials(NamedTuple):
    """The answer settings on the page, named as its parts; the seed stays as it is."""

    preset: Any
    detail: Any
    temperature: Any
    top_p: Any
    top_k: Any
    presence_penalty: Any
    max_new_tokens: Any


class Tasks:
    """The handlers of presets and quick tasks of one page."""

    def __init__(self, settings: Settings, session_of: Callable[[gr.Request], Session]) -> None:
        self._settings = settings
        self._session_of = session_of

    def choose(self, preset: str | None) -> Dials:
        """Set what a preset says; nothing for what is no preset."""
        chosen = load_presets().get(preset or "")
        if chosen is None:
            return Dials(*(gr.skip() for _ in Dials._fields))
        drawn, detail = chosen.generation, chosen.max_visual_tokens
        return Dials(
            preset=chosen.name,
            detail=gr.skip() if detail is None else read_visual_tokens(self._settings, detail),
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            top_k=drawn.top_k,
            presence_penalty=drawn.presence_penalty,
            max_new_tokens=min(drawn.max_new_tokens, self._settings.model.context_tokens),
        )

    def starter(self, task: str) -> Callable[..., tuple[Any, ...]]:
        """Give the handler of one task's button."""

        def start(box: dict[str, Any] | None, request: gr.Request) -> tuple[Any, ...]:
            """Fill in the task's question, keeping the pictures, and set its preset."""
            texts = texts_in(self._session_of(request).language)
            _, uploads = box_content(box)
            filled = gr.update(value={"text": texts.task_prompt(task), "files": list(uploads)})
            return filled, *self.choose(TASK_PRESETS[task])

        return start

    def reset(self) -> tuple[Any, ...]:
        """Set everything as it was at the start: the preset, the dials, seed and system prompt."""
        start = self._settings.generation
        dials = Dials(
            preset=None,
            detail=self._settings.picture.max_visual_tokens,
            temperature=start.temperature,
            top_p=start.top_p,
            top_k=start.top_k,
            presence_penalty=start.presence_penalty,
            max_new_tokens=start.max_new_tokens,
        )
        return *dials, start.seed, ""
