"""Show the picture an answer speaks of, with the answer's boxes on it, and offer both to save."""

from __future__ import annotations

import base64
import html
import io
import shutil
import threading
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from gradio.events import Dependency
from gradio.utils import get_upload_folder
from PIL import Image

from vlm.box_drawing import colour_of, draw_boxes, ink_on
from vlm.boxes import SCALE, Box, boxes_json, read_boxes
from vlm.errors import PictureError
from vlm.images import Picture, open_picture
from vlm.ui.conversation import Conversation, Turn
from vlm.ui.named_picture import Spot, find_picture
from vlm.ui.picture_parts import PictureParts
from vlm.ui.sessions import Sessions
from vlm.ui.texts import EN, Texts, texts_in

LONGEST_SIDE_PX = 1024
# Hover or focus on a box or its name, on a phone a tap, dims the other boxes. The chat, which
# gives room for them, keeps its end in sight.
_SCRIPT = """
const choose = (chosen) => {
    for (const part of element.querySelectorAll('[data-box]'))
        part.classList.toggle('chosen', part.dataset.box === chosen);
    element.querySelector('.boxes')?.classList.toggle('choosing', chosen !== undefined);
};
for (const kind of ['pointerover', 'focusin', 'click'])
    element.addEventListener(kind, (e) => choose(e.target.closest('[data-box]')?.dataset.box));
for (const kind of ['pointerleave', 'focusout'])
    element.addEventListener(kind, () => choose());
const follow = () => setTimeout(() => {
    const chat = document.querySelector('#chat .bubble-wrap');
    if (props.value && chat) chat.scrollTop = chat.scrollHeight;
}, 150);
follow();
watch('value', follow);
"""


class BoxesParts(NamedTuple):
    """The components under the chat; hidden while the last answer has no boxes."""

    fold: gr.Accordion
    view: gr.HTML
    png: gr.DownloadButton
    json: gr.DownloadButton


def lay_out_boxes() -> BoxesParts:
    """Put the components where they stand."""
    with gr.Accordion(EN.boxes, open=True, visible=False, elem_id="boxes") as fold:
        view = gr.HTML("", elem_id="boxes-view", padding=False, js_on_load=_SCRIPT)
        with gr.Row(elem_id="boxes-files"):
            buttons = [
                gr.DownloadButton(text, size="sm", min_width=70, elem_id=f"boxes-{kind}")
                for kind, text in (("png", EN.boxes_png), ("json", EN.boxes_json))
            ]
    return BoxesParts(fold, view, *buttons)


@dataclass(eq=False)
class _Drawn:
    """An answer's boxes on their picture; its files are gone when nothing holds it any more."""

    turn: Turn
    answer: str
    picture: Picture
    spot: Spot
    is_one_of_several: bool
    boxes: list[Box]
    png_path: Path
    json_path: Path


class BoxesView:
    """The boxes of each conversation's last answer."""

    def __init__(self, sessions: Sessions, parts: PictureParts) -> None:
        self._sessions = sessions
        self._parts = parts
        self._drawn: weakref.WeakKeyDictionary[Conversation, _Drawn] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def show_after(self, events: Sequence[Dependency], parts: BoxesParts) -> None:
        """Show the last answer's boxes once one of the events has been handled."""
        at_once: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        for event in events:
            event.then(self.show, None, list(parts), queue=False, **at_once)

    def show(self, request: gr.Request) -> tuple[Any, ...]:
        """Update the parts to the last answer of the tab's conversation."""
        session = self._sessions.get(request.session_hash)
        drawn, texts = self._draw(session.conversation), texts_in(session.language)
        if drawn is None:
            return (gr.update(visible=False), "", gr.update(value=None), gr.update(value=None))
        found = texts.found_in if drawn.is_one_of_several else texts.found
        title = found.format(count=len(drawn.boxes), number=drawn.spot.picture + 1)
        return (
            gr.update(visible=True, label=title),
            boxes_html(drawn.boxes, drawn.picture, texts),
            gr.update(value=str(drawn.png_path), label=texts.boxes_png),
            gr.update(value=str(drawn.json_path), label=texts.boxes_json),
        )

    def _draw(self, chat: Conversation) -> _Drawn | None:
        """Draw the last answer's boxes, once; None when there are none."""
        turns = list(chat.turns)
        turn = turns[-1] if turns and turns[-1].end not in ("running", "failed") else None
        with self._lock:
            drawn = self._drawn.pop(chat, None)
            if turn and drawn and drawn.turn is turn and drawn.answer == turn.answer:
                self._drawn[chat] = drawn
                return drawn
        drawn = _draw(turn, turns, self._parts) if turn else None
        with self._lock:
            return self._drawn.setdefault(chat, drawn) if drawn else None


def _draw(turn: Turn, turns: Sequence[Turn], parts: PictureParts) -> _Drawn | None:
    boxes = read_boxes(turn.answer)
    messages = [shown.question.pictures for shown in turns]
    spot = find_picture(turn.question.text, messages) if boxes else None
    if spot is None:
        return None
    picture = messages[spot.message][spot.picture]
    picture, boxes = _on_whole(picture, boxes, turns[spot.message].uploads[spot.picture :], parts)
    png_path, json_path = _write(boxes, picture, spot.picture + 1)
    several = len(messages[spot.message]) > 1
    drawn = _Drawn(turn, turn.answer, picture, spot, several, boxes, png_path, json_path)
    weakref.finalize(drawn, shutil.rmtree, png_path.parent, ignore_errors=True)
    return drawn


def _on_whole(
    picture: Picture, boxes: list[Box], uploads: Sequence[str], parts: PictureParts
) -> tuple[Picture, list[Box]]:
    """Place what was found in a part on the whole picture, while its file is there."""
    part = parts.find(uploads[0]) if uploads else None
    if part is None:
        return picture, boxes
    try:
        whole = open_picture(part.whole, limits=parts.limits)
    except PictureError:
        return picture, boxes
    return whole, [part.on_whole(box) for box in boxes]


def _write(boxes: Sequence[Box], picture: Picture, number: int) -> tuple[Path, Path]:
    """Write both files into a folder of their own; its random name keeps visitors apart."""
    folder = Path(get_upload_folder()) / "boxes" / uuid.uuid4().hex
    folder.mkdir(parents=True)
    png_path = folder / f"picture-{number}-boxes.png"
    json_path = png_path.with_suffix(".json")
    draw_boxes(picture.image, boxes).save(png_path, compress_level=3)
    text = boxes_json(boxes, picture.name, picture.width_px, picture.height_px)
    json_path.write_text(text, encoding="utf-8")
    return png_path, json_path


def boxes_html(boxes: Sequence[Box], picture: Picture, texts: Texts) -> str:
    """Show a picture with boxes and the list of their names; every name is escaped."""
    source, ratio = picture_source(picture)
    # A box inside another one lies above it, so that both can be pointed at.
    by_area = sorted(range(len(boxes)), key=lambda i: -_area(boxes[i]))
    layers = {index: layer for layer, index in enumerate(by_area, 1)}
    marks = "".join(_mark(i, box, layers[i]) for i, box in enumerate(boxes))
    names = "".join(_name(i, box, picture, texts) for i, box in enumerate(boxes))
    return (
        f'<div class="boxes"><div class="stage" style="--ratio:{ratio:.4f}">'
        f'<img src="{source}" alt="{html.escape(texts.boxed_picture)}">{marks}</div>'
        f'<ol aria-label="{html.escape(texts.boxes)}">{names}</ol></div>'
    )


def picture_source(picture: Picture) -> tuple[str, float]:
    """A small copy of a picture as an address that holds it whole, and its width over height."""
    small = picture.image.copy()
    small.thumbnail((LONGEST_SIDE_PX, LONGEST_SIDE_PX), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    small.save(data, "WEBP", quality=85, method=2)
    source = f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"
    return source, small.width / small.height


def _area(box: Box) -> float:
    return (box.x2 - box.x1) * (box.y2 - box.y1)


def _style(index: int) -> str:
    colour = colour_of(index)
    return f"--box:{colour};--ink:{ink_on(colour)}"


def _mark(index: int, box: Box, layer: int) -> str:
    left, top, right, bottom = (100 * edge / SCALE for edge in (box.x1, box.y1, box.x2, box.y2))
    kind = "mark point" if box.is_point else "mark"
    # A label at the upper edge stands inside its box, one at the right edge ends there.
    kind += (" low" if top < 8 else "") + (" left" if left > 60 else "")
    label = html.escape(f"{index + 1} {box.label}".rstrip())
    return (
        f'<div class="{kind}" data-box="{index}" aria-hidden="true" style="{_style(index)};'
        f"left:{left:.2f}%;top:{top:.2f}%;width:{right - left:.2f}%;height:{bottom - top:.2f}%;"
        f'z-index:{layer}"><span>{label}</span></div>'
    )


def _name(index: int, box: Box, picture: Picture, texts: Texts) -> str:
    left, top, right, bottom = box.in_pixels(picture.width_px, picture.height_px)
    place = f"{left}, {top}" if box.is_point else f"{left}, {top} – {right}, {bottom}"
    label = html.escape(box.label or texts.no_label)
    return (
        f'<li><button type="button" data-box="{index}" style="{_style(index)}">'
        f"<b>{index + 1}</b><span>{label}</span><small>{place}</small></button></li>"
    )
