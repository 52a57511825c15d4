"""Quick tasks and presets: what one press fills into the input and the answer settings.

A preset stays until another choice. A task's preset is for its one question: after the answer
the dials go back to what they were, except those that were moved by hand meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import gradio as gr

from vlm.chat import Message
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


@dataclass(frozen=True)
class _Task:
    """A quick task that was pressed: what it changed, and which question was asked with it."""

    before: Dials
    given: Dials
    earlier: tuple[Message, ...]
    """The questions of the chat when the task was pressed; another one is the task's."""
    asked: Message | None = None

    def settled(self, page: Dials) -> Dials:
        """The dials after the task: a dial that was moved by hand stays."""
        return _exchange(page, self.given, self.before)

    def again(self, page: Dials) -> Dials:
        """The dials to repeat the task's answer with: a dial that was moved since counts."""
        return _exchange(page, self.before, self.given)


def _exchange(page: Dials, old: Dials, new: Dials) -> Dials:
    return Dials(*(n if p == o else p for p, o, n in zip(page, old, new, strict=True)))


class Tasks:
    """The handlers of presets and quick tasks of one page."""

    def __init__(self, settings: Settings, session_of: Callable[[gr.Request], Session]) -> None:
        self._settings = settings
        self._session_of = session_of
        self._pressed: WeakKeyDictionary[Session, _Task] = WeakKeyDictionary()
        """Tasks whose dials are still set."""
        self._asked: WeakKeyDictionary[Session, _Task] = WeakKeyDictionary()
        """The last task that was asked, for Retry."""
        self._lock = threading.Lock()

    def choose(self, preset: str | None) -> Dials:
        """Set what a preset says; nothing for what is no preset."""
        chosen = load_presets().get(preset or "")
        if chosen is None:
            return _unchanged()
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

    def pick(self, preset: str | None, detail: Any, request: gr.Request) -> Dials:
        """Set the preset that a person chose; it outlives the next answer."""
        chosen = self.choose(preset)
        with self._lock:
            task = self._pressed.pop(self._session_of(request), None)
        if task is not None and preset and not isinstance(chosen.detail, int):
            detail = task.before.detail if detail == task.given.detail else detail
            chosen = chosen._replace(detail=detail)
        return chosen

    def starter(self, task: str) -> Callable[..., tuple[Any, ...]]:
        """Give the handler of one task's button."""

        def start(request: gr.Request, box: dict[str, Any] | None, *dials: Any) -> tuple[Any, ...]:
            """Fill in the task's question, keeping the pictures, and set its preset."""
            session = self._session_of(request)
            _, uploads = box_content(box)
            prompt = texts_in(session.language).task_prompt(task)
            filled = gr.update(value={"text": prompt, "files": list(uploads)})
            return filled, *self._press(session, TASK_PRESETS[task], Dials(*dials))

        return start

    def _press(self, session: Session, preset: str, page: Dials) -> Dials:
        """Set a task's preset, from what the dials were before an earlier task."""
        self._note_asked(session)
        with self._lock:
            earlier = self._pressed.get(session)
            before = earlier.settled(page) if earlier else page
            given = self.choose(preset)
            if not isinstance(given.detail, int):
                given = given._replace(detail=before.detail)
            self._pressed[session] = _Task(before, given, _questions(session))
            return given

    def settle(self, request: gr.Request, *dials: Any) -> Dials:
        """Set the dials back once the question of a task has its answer."""
        session = self._session_of(request)
        turns = session.conversation.turns
        self._note_asked(session)
        with self._lock:
            task = self._pressed.get(session)
            # A question that failed is in the input again, to be sent as it was meant.
            if task is None or task.asked is None or turns[-1:] and turns[-1].end == "failed":
                return _unchanged()
            del self._pressed[session]
        return task.settled(Dials(*dials))

    def drop(self, request: gr.Request, *dials: Any) -> Dials:
        """Set the dials back because the chat was left before a task was asked."""
        with self._lock:
            task = self._pressed.pop(self._session_of(request), None)
        return task.settled(Dials(*dials)) if task else _unchanged()

    def options_again(self, request: gr.Request, options: tuple[Any, ...]) -> tuple[Any, ...]:
        """The answer settings for Retry: those of the task, when the last question was one.

        `options` are picture detail, system prompt, the other dials and the seed.
        """
        session = self._session_of(request)
        self._note_asked(session)
        with self._lock:
            task = self._asked.get(session)
        if task is None or not any(task.asked is one for one in _questions(session)[-1:]):
            return options
        detail, system_prompt, *drawn, seed = options
        _, detail, *drawn = task.again(Dials(None, detail, *drawn))
        return (detail, system_prompt, *drawn, seed)

    def _note_asked(self, session: Session) -> None:
        """Remember which question was asked with the pressed task."""
        with self._lock:
            task, last = self._pressed.get(session), _questions(session)[-1:]
            if task and last and not any(last[0] is one for one in task.earlier):
                self._pressed[session] = self._asked[session] = replace(task, asked=last[0])

    def reset(self, request: gr.Request) -> tuple[Any, ...]:
        """Set everything as it was at the start: the preset, the dials, seed and system prompt."""
        with self._lock:
            self._pressed.pop(self._session_of(request), None)
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


def _questions(session: Session) -> tuple[Message, ...]:
    return tuple(turn.question for turn in session.conversation.turns)


def _unchanged() -> Dials:
    return Dials(*(gr.skip() for _ in Dials._fields))
