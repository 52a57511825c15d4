"""The page: which handler each event calls, and what is refreshed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr
from gradio.events import Dependency

from vlm.chat import ChatEngine
from vlm.config import Settings
from vlm.ui.answer_line import answer_line
from vlm.ui.answering import PRESSED_JS, Changes, Chat
from vlm.ui.boxes_view import BoxesView
from vlm.ui.cost_view import CostView
from vlm.ui.header import header_html
from vlm.ui.history_view import History
from vlm.ui.panel import panel_html
from vlm.ui.part_of_picture import PartOfPicture
from vlm.ui.parts import Parts, lay_out, wording
from vlm.ui.picture_parts import PictureParts
from vlm.ui.question_box import picture_limits
from vlm.ui.reading_ahead import ReadingAhead
from vlm.ui.readings import Readings
from vlm.ui.samples import Sample, draw_samples
from vlm.ui.tasks import Dials, Tasks
from vlm.ui.texts import EN, Language, other, preferred_language, texts_in
from vlm.ui.upkeep import Upkeep

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Nothing covers the page while it works, and nothing of it is offered as an API."""
_LANGUAGES: dict[str, Language] = {"en": "en", "zh": "zh"}
"""By what a browser may have kept."""
_AT_ONCE: dict[str, Any] = {**_QUIET, "queue": False}
"""For what must not wait behind a running answer."""


class Page:
    """One page over one engine; everything it remembers belongs to it."""

    def __init__(self, engine: ChatEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self.chat = Chat(engine, settings)
        self._history = History(self.chat)
        cut = PictureParts(picture_limits(settings))
        self._boxes = BoxesView(self.chat.sessions, cut)
        self._part = PartOfPicture(self.chat.sessions, cut)
        self._cost = CostView(self.chat, ReadingAhead(engine, settings))
        self._tasks = Tasks(settings, lambda request: self.chat.sessions.get(request.session_hash))
        self._readings = Readings(engine.memory)
        self._upkeep = Upkeep(
            engine, settings, lambda request: self.chat.sessions.get(request.session_hash)
        )
        self._samples = draw_samples()
        self._examples = {
            (built_in, language): _examples(self._samples.fitting(built_in), language)
            for built_in in (False, True)
            for language in ("en", "zh")
        }

    def build(self) -> gr.Blocks:
        """Make the page."""
        title = f"{EN.title} · Qwen3-VL"
        # Uploads and shown pictures are kept a day; chats live no longer than their tab.
        page = gr.Blocks(
            title=title, analytics_enabled=False, fill_width=True, delete_cache=(3600, 86400)
        )
        with page:
            parts = lay_out(self._settings, self._examples[self._is_built_in(), "en"])
            self._connect(page, parts)
        return page

    def _connect(self, page: gr.Blocks, parts: Parts) -> None:
        changes = [getattr(parts, name) for name in Changes._fields]
        asked = [parts.box, parts.detail, parts.system_prompt, *parts.sampling]
        # The engine has its own queue; Gradio must not hold questions back as well.
        stream: dict[str, Any] = {**_QUIET, "concurrency_limit": None}
        answered = [
            trigger(handler, asked, changes, **stream).then(
                self.chat.give_back, parts.box, parts.box, **_AT_ONCE
            )
            for trigger, handler in (
                (parts.box.submit, self.chat.send),
                (parts.retry.click, self.retry),
            )
        ]
        shown = [*answered]
        parts.box.stop(self.chat.stop, None, parts.box, **_AT_ONCE)
        for press, change, inputs in (
            (parts.undo.click, self.chat.undo, parts.box),
            (parts.written.edit, self.chat.edit, parts.box),
            (parts.cancel_edit.click, self.chat.cancel_edit, None),
        ):
            shown.append(press(change, inputs, changes, **_AT_ONCE))
        kept = parts.history.wire
        for press in (parts.clear.click, parts.chat.clear):
            shown.append(press(self._history.new_chat, None, [*changes, kept], **_AT_ONCE))
        # Whatever changes a chat changes its texts.
        parts.written.change(self._history.save, None, kept, trigger_mode="always_last", **_AT_ONCE)
        parts.chat.example_select(self.take_sample, None, parts.box, **_AT_ONCE)
        self._connect_dials(parts, answered)
        parts.box.submit(
            None, parts.pressed, parts.pressed, js=PRESSED_JS, trigger_mode="multiple", **_QUIET
        )
        parts.pressed.change(self.chat.remind, None, changes, **_AT_ONCE)
        parts.header.change(self.offer_samples, None, parts.chat, **_AT_ONCE)
        parts.webcam.change(
            self.take_photo, [parts.box, parts.webcam], [parts.box, parts.webcam], **_AT_ONCE
        )
        readings = [parts.header, parts.retry_load, parts.panel]
        parts.panel.tick(self.refresh, None, readings, **_AT_ONCE)
        parts.free_caches.click(self._upkeep.free, None, parts.effect, **_AT_ONCE).then(
            self.refresh_now, None, readings, **_AT_ONCE
        )
        warmed = [parts.warm_up, parts.effect]
        parts.warm_up.click(self._upkeep.warm_up, None, warmed, **stream)
        parts.retry_load.click(self.load_again, None, readings, **_AT_ONCE)

        def open_page(remembered: str | None, request: gr.Request) -> dict[Any, Any]:
            session = self.chat.sessions.get(request.session_hash)
            preferred = preferred_language(request.headers.get("accept-language"))
            session.language = _LANGUAGES.get(remembered or "", preferred)
            return self._words(parts, request)

        def switch_language(request: gr.Request) -> dict[Any, Any]:
            session = self.chat.sessions.get(request.session_hash)
            session.language = other(session.language)
            words = self._words(parts, request)
            if session.conversation.is_busy:  # the running answer brings its own next view
                words[parts.line] = answer_line(
                    session.conversation.turns, texts_in(session.language)
                )
                words[parts.note] = ""
            else:
                for part, change in zip(changes, self.chat.show(session), strict=True):
                    words[part] = _merged(words.get(part), change)
            return words

        spoken = [parts.named(name) for name in wording(EN, self._settings)]
        spoken += [part for part in (*readings, *changes) if part not in spoken]
        spoken.append(parts.shown_language)
        remembered = parts.shown_language
        opened = page.load(
            open_page, remembered, spoken, js="() => rememberedLanguage.read()", **_AT_ONCE
        )
        remembered.change(None, remembered, None, js="(l) => rememberedLanguage.show(l)", **_QUIET)
        shown += self._history.connect(parts.history, opened, changes, parts.note)
        switched = parts.language.click(switch_language, None, spoken, **_AT_ONCE)
        switched.then(self._history.save, None, kept, **_AT_ONCE)
        switched.then(None, remembered, None, js="(l) => rememberedLanguage.write(l)", **_QUIET)
        shown.append(switched)
        shown.append(self._cost.connect(parts, answered, switched, changes))
        self._boxes.show_after(shown, parts.boxes)
        self._part.connect(parts.part, parts.part_view, parts.box)
        page.unload(self.chat.leave)

    def _connect_dials(self, parts: Parts, answered: Sequence[Dependency]) -> None:
        """Presets and quick tasks set the dials; a dial that is moved is no preset any more.

        `answered` are the events that end with an answer.
        """
        dials = [getattr(parts, name) for name in Dials._fields]
        parts.preset.input(self._tasks.pick, [parts.preset, parts.detail], dials, **_AT_ONCE)
        for event in answered:
            event.then(self._tasks.settle, dials, dials, **_AT_ONCE)
        parts.clear.click(self._tasks.drop, dials, dials, **_AT_ONCE)
        for task, button in parts.tasks.items():
            start = self._tasks.starter(task)
            button.click(start, [parts.box, *dials], [parts.box, *dials], **_AT_ONCE)
        reset = [*dials, parts.seed, parts.system_prompt]
        parts.reset.click(self._tasks.reset, None, reset, **_AT_ONCE)
        for dial in dials[1:]:
            dial.input(None, None, parts.preset, js="() => null", **_QUIET)

    def refresh(self, request: gr.Request) -> tuple[Any, Any, Any]:
        """Read the engine's state and memory; only a changed header is sent again."""
        session = self.chat.sessions.get(request.session_hash)
        texts, state = texts_in(session.language), self._engine.state()
        header = header_html(state, texts)
        has_changed, session.shown_header = header != session.shown_header, header
        return (
            header if has_changed else gr.skip(),
            gr.update(visible=state.stage == "failed") if has_changed else gr.skip(),
            panel_html(self._readings.latest(), state, texts, self._readings.points()),
        )

    def refresh_now(self, request: gr.Request) -> tuple[Any, Any, Any]:
        """Refresh after something changed, when a reading of a moment ago is too old."""
        self._readings.latest(is_new=True)
        return self.refresh(request)

    def retry(
        self, request: gr.Request, box: dict[str, Any] | None, *options: Any
    ) -> Iterator[Changes]:
        """Answer the last question again, a quick task in its own way."""
        yield from self.chat.retry(request, box, *self._tasks.options_again(request, options))

    def load_again(self, request: gr.Request) -> tuple[Any, Any, Any]:
        """Try to load the model again."""
        self._engine.retry_load()
        return self.refresh(request)

    def take_sample(self, event: gr.SelectData, request: gr.Request) -> Any:
        """Put a sample picture and its question into the input."""
        session = self.chat.sessions.get(request.session_hash)
        samples = self._samples.fitting(session.offers_built_in)
        index = event.index if isinstance(event.index, int) else -1
        if not 0 <= index < len(samples):
            return gr.skip()
        sample = samples[index]
        return {"text": sample.questions[session.language], "files": list(sample.paths)}

    def offer_samples(self, request: gr.Request) -> Any:
        """Show the samples that the loaded model can answer, when another one was loaded."""
        session = self.chat.sessions.get(request.session_hash)
        if session.offers_built_in == self._is_built_in():
            return gr.skip()
        session.offers_built_in = not session.offers_built_in
        return gr.update(examples=self._examples[session.offers_built_in, session.language])

    def _is_built_in(self) -> bool:
        return self._engine.state().is_bundled or self._settings.model.model == "bundled"

    def take_photo(self, box: dict[str, Any] | None, photo: str | None) -> tuple[Any, Any]:
        """Move a photo from the webcam into the input."""
        if not photo:
            return gr.skip(), gr.skip()
        files = [*((box or {}).get("files") or ()), photo]
        return {"text": (box or {}).get("text") or "", "files": files}, None

    def _words(self, parts: Parts, request: gr.Request) -> dict[Any, Any]:
        """Put the session's language on every part that has words."""
        session = self.chat.sessions.get(request.session_hash)
        texts = texts_in(session.language)
        words = {
            parts.named(name): gr.update(**changes)
            for name, changes in wording(texts, self._settings).items()
        }
        session.offers_built_in = self._is_built_in()
        words[parts.chat]["examples"] = self._examples[session.offers_built_in, texts.language]
        session.shown_header = ""
        header, retry_load, panel = self.refresh(request)
        words[parts.retry_load] |= retry_load
        told = {parts.header: header, parts.panel: panel, parts.shown_language: texts.language}
        return words | told


def _merged(words: Any, change: Any) -> Any:
    """Join a part's new words with what else changes on it."""
    if words is None:
        return change
    if isinstance(change, dict) and change.get("__type__") == "update":
        return words | change
    return words | {"value": change}


def _examples(samples: tuple[Sample, ...], language: Language) -> Any:
    """Give samples the form in which the chat component serves their files."""
    examples: list[Any] = [
        {
            "icon": sample.paths[0],
            "text": sample.questions[language],
            "display_text": sample.questions[language],
            "files": list(sample.paths),
        }
        for sample in samples
    ]
    return gr.Chatbot(examples=examples, render=False).examples
