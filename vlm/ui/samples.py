"""Pictures to try, drawn at start, each with a question that the loaded model can answer."""

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
    """Picture files and what to ask about them."""

    paths: tuple[str, ...]
    questions: dict[Language, str]


@dataclass(frozen=True)
class Samples:
    """What to offer: photos and documents are beyond the built-in model."""

    built_in: tuple[Sample, ...]
    real: tuple[Sample, ...]

    def fitting(self, is_built_in: bool) -> tuple[Sample, ...]:
        """Return the samples for the built-in model, or for a real one."""
        return self.built_in if is_built_in else self.real


def draw_samples() -> Samples:
    """Draw the sample pictures into a folder that is gone when this process ends.

    Not into Gradio's own folder: that is swept of old files, also by other processes.
    """
    folder = Path(tempfile.mkdtemp(prefix="sample-pictures-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built_in, real = (
        tuple(
            Sample(tuple(_save(draw, folder) for draw in drawn), {"en": english, "zh": chinese})
            for drawn, english, chinese in kind
        )
        for kind in (_BUILT_IN, _REAL)
    )
    return Samples(built_in, real)


def _save(draw: Callable[[ImageDraw.ImageDraw], None], folder: Path) -> str:
    picture = Image.new("RGB", SIZE_PX, "white")
    draw(ImageDraw.Draw(picture))
    path = folder / f"{draw.__name__.removeprefix('_draw_')}.png"
    picture.save(path)
    return str(path)


def _font(size_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size_px)


def _draw_shapes(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, *SIZE_PX), fill=(248, 248, 248))
    pen.ellipse((50, 30, 180, 160), fill=(222, 32, 36))
    pen.polygon([(530, 20), (600, 150), (460, 150)], fill=(40, 72, 214))
    pen.rectangle((260, 330, 390, 460), fill=(46, 168, 62))


def _draw_word(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, *SIZE_PX), fill=(40, 72, 214))
    pen.text((320, 240), "CAFE", font=_font(170), fill=(248, 248, 248), anchor="mm")


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


def _draw_scene(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, *SIZE_PX), fill=(176, 216, 240))
    pen.ellipse((500, 40, 590, 130), fill=(250, 214, 70))
    pen.ellipse((-200, 300, 460, 760), fill=(120, 178, 92))
    pen.ellipse((220, 330, 900, 800), fill=(94, 156, 78))
    pen.rectangle((150, 220, 330, 370), fill=(240, 232, 214))
    pen.polygon([(130, 222), (240, 130), (350, 222)], fill=(178, 60, 48))
    pen.rectangle((218, 290, 262, 370), fill=(112, 74, 46))
    for x in (172, 282):
        pen.rectangle((x, 246, x + 34, 278), fill=(120, 170, 206), outline=_INK, width=2)
    pen.rectangle((462, 260, 484, 380), fill=(112, 74, 46))
    pen.ellipse((408, 150, 538, 290), fill=(52, 120, 58))


def _draw_triangle(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, *SIZE_PX), fill=(40, 72, 214))
    pen.regular_polygon((320, 240, 170), 3, fill=(248, 224, 40))


def _draw_circle(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, *SIZE_PX), fill=(248, 248, 248))
    pen.ellipse((170, 90, 470, 390), fill=(222, 32, 36))


_Drawn = tuple[tuple[Callable[[ImageDraw.ImageDraw], None], ...], str, str]
_BUILT_IN: tuple[_Drawn, ...] = (
    ((_draw_shapes,), "Where is the circle?", "圆形在哪里？"),
    ((_draw_word,), "What does the text say?", "图中的文字是什么？"),
    (
        (_draw_triangle, _draw_circle),
        "In the second picture: What shape is red?",
        "第二张图：红色的是什么形状？",
    ),
    ((_draw_triangle,), "What colour is the background?", "背景是什么颜色？"),
)
_REAL: tuple[_Drawn, ...] = (
    ((_draw_scene,), "Describe this scene.", "描述一下这个场景。"),
    ((_draw_menu,), "What do a soup and a coffee cost together?", "汤和咖啡一共多少钱？"),
    ((_draw_chart,), "On which day did most visitors come?", "哪一天的访客最多？"),
)
