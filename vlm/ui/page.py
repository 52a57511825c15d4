"""The page: its parts, where they stand, and which handler each event calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from vlm.chat import ChatEngine
from vlm.config import IMAGE_DETAILS, Settings
from vlm.ui.answering import Chat
from vlm.ui.header import header_html
from vlm.ui.options import PRESENCE_PENALTY, TEMPERATURE, TOP_K, TOP_P, new_tokens_range
from vlm.ui.panel import panel_html
from vlm.ui.samples import Sample, draw_samples
from vlm.ui.texts import EN, Texts, other, preferred_language, texts_in

REFRESH_S = 2.0
PICTURE_TYPES = ["image", ".heic", ".heif", ".avif"]
LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Nothing covers the page while it works, and nothing of it is offered as an API."""
_AT_ONCE: dict[str, Any] = {**_QUIET, "queue": False}
"""For what must not wait behind a running answer."""


@dataclass
class Parts:
    """The components of the page."""

    header: gr.HTML
    retry_load: gr.Button
    language: gr.Button
    chat: gr.Chatbot
    line: gr.HTML
    box: gr.MultimodalTextbox
    retry: gr.Button
    undo: gr.Button
    clear: gr.Button
    panel: gr.HTML
    detail: gr.Radio
    webcam_fold: gr.Accordion
    webcam: gr.Image
    settings_fold: gr.Accordion
    options: list[gr.Slider | gr.Number]
    """Temperature, top-p, top-k, presence penalty, new tokens and seed."""


class Page:
    """One page over one engine; everything it remembers belongs to it."""

    def __init__(self, engine: ChatEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self.chat = Chat(engine, settings)
        self._samples = draw_samples()
        self._examples = {
            words: gr.Chatbot(examples=_examples(self._samples, words), render=False).examples
            for words in ("en", "zh")
        }

    def build(self) -> gr.Blocks:
        """Make the page."""
        title = f"{EN.title} · Qwen3-VL"
        # Uploads and shown pictures are kept a day; chats live no longer than their tab.
        page = gr.Blocks(
            title=title, analytics_enabled=False, fill_width=True, delete_cache=(3600, 86400)
        )
        with page:
            parts = self._lay_out()
            self._connect(page, parts)
        return page

    def _lay_out(self) -> Parts:
        texts, state = EN, self._engine.state()
        with gr.Row(elem_id="top", equal_height=True):
            header = gr.HTML(header_html(state, texts), elem_id="header", padding=False)
            retry_load = gr.Button(visible=False, size="sm", elem_id="retry-load", min_width=90)
            language = gr.Button(size="sm", elem_id="language", min_width=70)
        with gr.Row(elem_id="main"):
            with gr.Column(scale=3, min_width=320, elem_id="left"):
                chat = self._chatbot()
                line = gr.HTML("", elem_id="answer-line", padding=False)
                box = self._box()
                with gr.Row(elem_id="buttons"):
                    retry, undo, clear = (
                        gr.Button(size="sm", elem_id=name, min_width=80, interactive=on)
                        for name, on in (("retry", False), ("undo", False), ("clear", True))
                    )
            with gr.Column(scale=1, min_width=280, elem_id="side"):
                panel = gr.HTML("", elem_id="panel", padding=False)
                detail = gr.Radio(
                    detail_choices(self._settings, EN),
                    value=self._settings.picture.max_visual_tokens,
                    elem_id="detail",
                )
                with gr.Accordion(open=False, elem_id="webcam-fold") as webcam_fold:
                    webcam = gr.Image(
                        sources=["webcam"], type="filepath", height=220, elem_id="webcam",
                        show_label=False, webcam_options=gr.WebcamOptions(mirror=False),
                    )  # fmt: skip
                with gr.Accordion(open=False, elem_id="settings-fold") as settings_fold:
                    options = self._option_inputs()
        return Parts(
            header, retry_load, language, chat, line, box, retry, undo, clear, panel, detail,
            webcam_fold, webcam, settings_fold, options,
        )  # fmt: skip

    def _chatbot(self) -> gr.Chatbot:
        return gr.Chatbot(
            elem_id="chat",
            show_label=False,
            height="100%",
            sanitize_html=True,
            latex_delimiters=LATEX,
            buttons=["copy", "copy_all"],
            feedback_options=None,
            allow_file_downloads=False,
            examples=self._examples["en"],
            placeholder=f"### {EN.empty_chat}",
            group_consecutive_messages=False,
        )

    def _box(self) -> gr.MultimodalTextbox:
        return gr.MultimodalTextbox(
            elem_id="box",
            show_label=False,
            file_types=PICTURE_TYPES,
            file_count="multiple",
            sources=["upload"],
            submit_btn=True,
            stop_btn=False,
            lines=1,
            max_lines=8,
            max_plain_text_length=1_000_000,  # a long paste stays text instead of a file
        )

    def _option_inputs(self) -> list[gr.Slider | gr.Number]:
        start = self._settings.generation
        ranges = (
            (TEMPERATURE, start.temperature),
            (TOP_P, start.top_p),
            (TOP_K, start.top_k),
            (PRESENCE_PENALTY, start.presence_penalty),
            (new_tokens_range(self._settings), start.max_new_tokens),
        )
        sliders: list[gr.Slider | gr.Number] = [
            gr.Slider(limits.low, limits.high, value, step=limits.step, buttons=[])
            for limits, value in ranges
        ]
        return [*sliders, gr.Number(start.seed, precision=0, minimum=-1)]

    def _connect(self, page: gr.Blocks, parts: Parts) -> None:
        changes = [parts.chat, parts.box, parts.line, parts.retry, parts.undo]
        asked = [parts.box, parts.detail, *parts.options]
        # The engine has its own queue; Gradio must not hold questions back as well.
        stream: dict[str, Any] = {**_QUIET, "concurrency_limit": None}
        for trigger, handler in (
            (parts.box.submit, self.chat.send),
            (parts.retry.click, self.chat.retry),
        ):
            trigger(handler, asked, changes, **stream).then(
                self.chat.give_back, parts.box, parts.box, **_AT_ONCE
            )
        parts.box.stop(self.chat.stop, None, parts.box, **_AT_ONCE)
        parts.undo.click(self.chat.undo, parts.box, changes, **_AT_ONCE)
        parts.clear.click(self.chat.clear, None, changes, **_AT_ONCE)
        parts.chat.clear(self.chat.clear, None, changes, **_AT_ONCE)
        parts.chat.example_select(self.take_sample, None, parts.box, **_AT_ONCE)
        parts.webcam.change(
            self.take_photo, [parts.box, parts.webcam], [parts.box, parts.webcam], **_AT_ONCE
        )
        readings = [parts.header, parts.retry_load, parts.panel]
        gr.Timer(REFRESH_S).tick(self.refresh, None, readings, **_AT_ONCE)
        parts.retry_load.click(self.load_again, None, readings, **_AT_ONCE)

        def open_page(request: gr.Request) -> dict[Any, Any]:
            session = self.chat.sessions.get(request.session_hash)
            session.language = preferred_language(request.headers.get("accept-language"))
            return self._words(parts, request)

        def switch_language(request: gr.Request) -> dict[Any, Any]:
            session = self.chat.sessions.get(request.session_hash)
            session.language = other(session.language)
            words = self._words(parts, request)
            # The running answer brings its own next view.
            if not session.conversation.is_busy:
                words |= dict(zip(changes, self.chat.show(session), strict=True))
            return words | {parts.box: gr.update(placeholder=texts_in(session.language).ask_here)}

        spoken = [*readings, *changes, *self._worded(parts)]
        page.load(open_page, None, spoken, **_AT_ONCE)
        parts.language.click(switch_language, None, spoken, **_AT_ONCE)
        page.unload(self.chat.leave)

    def refresh(self, request: gr.Request) -> tuple[Any, Any, Any]:
        """Read the engine's state and memory; only a changed header is sent again."""
        session = self.chat.sessions.get(request.session_hash)
        texts, state = texts_in(session.language), self._engine.state()
        header = header_html(state, texts)
        has_changed, session.shown_header = header != session.shown_header, header
        return (
            header if has_changed else gr.skip(),
            gr.update(visible=state.stage == "failed") if has_changed else gr.skip(),
            panel_html(self._engine.memory(), state, texts),
        )

    def load_again(self, request: gr.Request) -> tuple[Any, Any, Any]:
        """Try to load the model again."""
        self._engine.retry_load()
        return self.refresh(request)

    def take_sample(self, event: gr.SelectData, request: gr.Request) -> Any:
        """Put a sample picture and its question into the input."""
        index = event.index if isinstance(event.index, int) else -1
        if not 0 <= index < len(self._samples):
            return gr.skip()
        sample = self._samples[index]
        session = self.chat.sessions.get(request.session_hash)
        return {"text": sample.questions[session.language], "files": [sample.path]}

    def take_photo(self, box: dict[str, Any] | None, photo: str | None) -> tuple[Any, Any]:
        """Move a photo from the webcam into the input."""
        if not photo:
            return gr.skip(), gr.skip()
        files = [*((box or {}).get("files") or ()), photo]
        return {"text": (box or {}).get("text") or "", "files": files}, None

    def _worded(self, parts: Parts) -> list[Any]:
        return [
            parts.language, parts.clear, parts.detail, parts.webcam_fold, parts.settings_fold,
            *parts.options,
        ]  # fmt: skip

    def _words(self, parts: Parts, request: gr.Request) -> dict[Any, Any]:
        """Put the session's language on every part that has words."""
        session = self.chat.sessions.get(request.session_hash)
        texts = texts_in(session.language)
        session.shown_header = ""
        header, retry_load, panel = self.refresh(request)
        retry_load["value"] = texts.retry_load
        words = {
            parts.header: header,
            parts.retry_load: retry_load,
            parts.panel: panel,
            parts.language: gr.update(value=texts.other_language),
            parts.chat: gr.update(
                examples=self._examples[texts.language], placeholder=f"### {texts.empty_chat}"
            ),
            parts.box: gr.update(placeholder=texts.ask_here),
            parts.retry: gr.update(value=f"↻ {texts.retry}"),
            parts.undo: gr.update(value=f"↶ {texts.undo}"),
            parts.clear: gr.update(value=f"✕ {texts.clear}"),
            parts.detail: self._detail_update(texts),
            parts.webcam_fold: gr.update(label=texts.webcam),
            parts.settings_fold: gr.update(label=texts.settings),
        }
        names = ("temperature", "top_p", "top_k", "presence_penalty", "max_new_tokens", "seed")
        for part, name in zip(parts.options, names, strict=True):
            words[part] = gr.update(label=getattr(texts, name), info=getattr(texts, f"{name}_info"))
        return words

    def _detail_update(self, texts: Texts) -> Any:
        choices = detail_choices(self._settings, texts)
        return gr.update(label=texts.detail, info=texts.detail_info, choices=choices)


def detail_choices(settings: Settings, texts: Texts) -> list[tuple[str, int]]:
    """The levels of picture detail as (label, visual tokens); a custom one when it is set."""
    labels = dict(texts.details)
    choices = [(labels[name], tokens) for name, tokens in IMAGE_DETAILS.items()]
    custom = settings.picture.max_visual_tokens
    if custom not in IMAGE_DETAILS.values():
        choices.append((texts.custom_detail.format(count=custom), custom))
    return choices


def _examples(samples: list[Sample], language: Any) -> list[Any]:
    return [
        {
            "icon": sample.path,
            "text": sample.questions[language],
            "display_text": sample.questions[language],
            "files": [sample.path],
        }
        for sample in samples
    ]
