"""Ask about a part: a rectangle drawn on a picture becomes a crop in the input.

The picture lies over the page meanwhile; the rectangle is dragged, or moved by keys. A small
copy of the whole picture goes with the crop; both are ordinary pictures of the message.
"""

from __future__ import annotations

import html
import math
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from vlm.errors import PictureError
from vlm.images import Picture, open_picture
from vlm.ui.boxes_view import picture_source
from vlm.ui.chinese import in_language
from vlm.ui.named_picture import find_picture
from vlm.ui.picture_parts import PictureParts, Rectangle
from vlm.ui.question_box import box_content, filled_box
from vlm.ui.sessions import MOST_SESSIONS, Sessions
from vlm.ui.texts import Texts, texts_in

_SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
_FOCUS_BOX_JS = "() => document.querySelector('#box textarea')?.focus()"


class PartView(NamedTuple):
    """The picture to drag on; hidden until the button is pressed."""

    fold: gr.Column
    picture: gr.HTML


def lay_out_part_view() -> PartView:
    """Put the hidden view where it stands."""
    with gr.Column(visible=False, elem_id="part-view") as fold:
        picture = gr.HTML("", padding=False, js_on_load=_SCRIPT)
    return PartView(fold, picture)


class PartOfPicture:
    """What the button and the dragging do, for the tabs of one page."""

    def __init__(self, sessions: Sessions, parts: PictureParts) -> None:
        self._sessions = sessions
        self._parts = parts
        self._open: OrderedDict[str, str] = OrderedDict()
        """Path of the picture that each tab shows to drag on."""
        self._lock = threading.Lock()

    def connect(self, button: gr.Button, view: PartView, box: gr.MultimodalTextbox) -> None:
        """Show the picture on a press of the button, and take what is dragged on it."""
        options: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        # Gradio shows messages (gr.Info) of queued events only.
        options["concurrency_limit"] = None
        button.click(self.offer, box, list(view), **options)
        view.picture.select(self.cut, box, [box, *view], **options).then(
            None, None, None, js=_FOCUS_BOX_JS, **options
        )
        view.picture.clear(self.close, None, list(view), **options)

    def offer(self, box: dict[str, Any] | None, request: gr.Request) -> tuple[Any, Any]:
        """Show the picture that the input speaks of; a second press hides it."""
        hidden = gr.update(visible=False), ""
        with self._lock:
            if self._open.pop(request.session_hash or "", None) is not None:
                return hidden
        session = self._sessions.get(request.session_hash)
        texts, path = texts_in(session.language), self._spoken_of(box, request)
        if path is None:
            gr.Info(texts.part_needs_picture)
            return hidden
        try:
            picture = open_picture(path, limits=self._parts.limits)
        except PictureError as error:
            gr.Warning(html.escape(in_language(str(error), session.language)))
            return hidden
        with self._lock:
            self._open[request.session_hash or ""] = path
            while len(self._open) > MOST_SESSIONS:
                self._open.popitem(last=False)
        return gr.update(visible=True), part_html(picture, texts)

    def close(self, request: gr.Request) -> tuple[Any, Any]:
        """Hide the picture."""
        with self._lock:
            self._open.pop(request.session_hash or "", None)
        return gr.update(visible=False), ""

    def cut(
        self, box: dict[str, Any] | None, event: gr.EventData, request: gr.Request
    ) -> tuple[Any, Any, Any]:
        """Put the small whole picture and the dragged part into the input."""
        nothing = gr.skip(), gr.skip(), gr.skip()
        with self._lock:
            path = self._open.get(request.session_hash or "")
        rectangle = _read_rectangle(event)
        if path is None or rectangle is None:
            return nothing
        try:
            written = self._parts.cut(path, rectangle)
        except PictureError as error:
            language = self._sessions.get(request.session_hash).language
            gr.Warning(html.escape(in_language(str(error), language)))
            return nothing
        if written is None:
            return nothing
        with self._lock:
            self._open.pop(request.session_hash or "", None)
        text, uploads = box_content(box)
        files = tuple(file for file in uploads if file != path) + written
        if self._sessions.get(request.session_hash).conversation.is_busy:
            # The input shows Stop now, and has to go on doing so.
            filled = gr.update(value={"text": text, "files": list(files)})
        else:
            filled = filled_box(text, files)
        return filled, gr.update(visible=False), ""

    def _spoken_of(self, box: dict[str, Any] | None, request: gr.Request) -> str | None:
        """Path of the picture that the text in the input names, else of the newest one."""
        text, uploads = box_content(box)
        turns = self._sessions.get(request.session_hash).conversation.turns
        messages = [turn.uploads for turn in turns] + [uploads]
        wholes = [[path for path in paths if not self._parts.find(path)] for paths in messages]
        spot = find_picture(text, wholes)
        return wholes[spot.message][spot.picture] if spot else None


def _read_rectangle(event: gr.EventData) -> Rectangle | None:
    """Read what the browser sent, which anyone could have sent; None when it is no rectangle."""
    sides = [getattr(event, side, None) for side in ("left", "top", "right", "bottom")]
    numbers = [float(s) for s in sides if isinstance(s, int | float) and math.isfinite(s)]
    if len(numbers) != 4:
        return None
    left, top, right, bottom = (min(1.0, max(0.0, number)) for number in numbers)
    return left, top, right, bottom


def part_html(picture: Picture, texts: Texts) -> str:
    """Show a picture to choose a part of, by pointer or by keys."""
    source, ratio = picture_source(picture)
    title, hint, keys, place, take, leave = (
        html.escape(words)
        for words in (
            texts.part, texts.part_hint, texts.part_keys, texts.part_place, texts.part_take,
            texts.part_close,
        )
    )  # fmt: skip
    return (
        f'<div class="boxes cutting" role="dialog" aria-modal="true" aria-label="{title}">'
        f'<div class="card"><div class="head"><p id="part-hint">{hint}</p>'
        f'<button type="button" class="leave" aria-label="{leave}" title="{leave}">✕</button></div>'
        f'<div class="stage" style="--ratio:{ratio:.4f}" tabindex="0" role="application" '
        f'aria-label="{title}" aria-describedby="part-hint part-keys">'
        f'<img src="{source}" alt="" draggable="false"><div class="cut"></div></div>'
        f'<div class="foot"><p id="part-keys">{keys}</p>'
        f'<span class="place" role="status" data-words="{place}"></span>'
        f'<button type="button" class="take" disabled>{take}</button></div></div></div>'
    )
