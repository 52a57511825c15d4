"""Pictures to try, drawn at start, each with a question in both languages."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vlm.ui.texts import Language

SIZE_PX = (640, 480)
_INK = (34, 38, 46)
_MENU = (
    ("Soup of the day", "5.50"),
    ("Cheese toast", "4.20"),
    ("Apple cake", "3.80"),
    ("Lemon tea", "2.40"),
    ("Coffee", "2.90"),
)


@dataclass(frozen=True)
class Sample:
    """A picture file and what to ask about it."""

    path: str
    questions: dict[Language, str]


def draw_samples() -> list[Sample]:
    """Draw the sample pictures into a folder that is gone when this process ends.

    Not into Gradio's own folder: that is swept of old files, also by other processes.
    """
    folder = Path(tempfile.mkdtemp(prefix="sample-pictures-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return [
        Sample(_save(draw, folder / f"{name}.png"), {"en": english, "zh": chinese})
        for name, draw, english, chinese in _SAMPLES
    ]


def _save(draw: Callable[[ImageDraw.ImageDraw], None], path: Path) -> str:
    picture = Image.new("RGB", SIZE_PX, "white")
    draw(ImageDraw.Draw(picture))
    picture.save(path)
    return str(path)


def _font(size_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size_px)


def _draw_shapes(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, *SIZE_PX), fill=(248, 248, 248))
    pen.ellipse((60, 60, 220, 220), fill=(222, 32, 36))
    pen.polygon([(500, 70), (590, 220), (410, 220)], fill=(40, 72, 214))
    pen.rectangle((250, 270, 410, 430), fill=(46, 168, 62))


def _draw_word(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, *SIZE_PX), fill=(40, 72, 214))
    pen.text((320, 240), "HELLO", font=_font(150), fill=(248, 248, 248), anchor="mm")


def _draw_menu(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, *SIZE_PX), fill=(250, 245, 234))
    pen.text((320, 62), "Corner Bakery", font=_font(54), fill=(126, 74, 38), anchor="mm")
    pen.line((80, 108, 560, 108), fill=(126, 74, 38), width=3)
    for row, (dish, price) in enumerate(_MENU):
        y = 156 + 64 * row
        pen.text((80, y), dish, font=_font(34), fill=_INK, anchor="lm")
        pen.text((560, y), price, font=_font(34), fill=_INK, anchor="rm")


def _draw_chart(pen: ImageDraw.ImageDraw) -> None:
    pen.text((320, 44), "Visitors per day", font=_font(36), fill=_INK, anchor="mm")
    pen.line((80, 400, 600, 400), fill=_INK, width=3)
    days = (("Mon", 120), ("Tue", 85), ("Wed", 160), ("Thu", 205), ("Fri", 290))
    for column, (day, count) in enumerate(days):
        x = 110 + 98 * column
        pen.rectangle((x, 400 - count, x + 62, 399), fill=(0, 132, 132))
        pen.text((x + 31, 385 - count), str(count), font=_font(24), fill=_INK, anchor="mm")
        pen.text((x + 31, 428), day, font=_font(26), fill=_INK, anchor="mm")


_SAMPLES: tuple[tuple[str, Callable[[ImageDraw.ImageDraw], None], str, str], ...] = (
    ("shapes", _draw_shapes, "How many shapes are there?", "图中有几个图形？"),
    ("word", _draw_word, "What does the text say?", "图中的文字是什么？"),
    ("menu", _draw_menu, "What do a soup and a coffee cost together?", "汤和咖啡一共多少钱？"),
    ("chart", _draw_chart, "On which day did most visitors come?", "哪一天的访客最多？"),
)
