"""The pictures and questions that precisions are compared on: shapes, writing and a chart."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

from vlm.images import Picture, open_picture

SIZE_PX = (448, 320)
QUESTIONS = ("What is in this picture?", "Describe the picture.", "图中有什么？")
_INK = (34, 38, 46)
_FIELD = (248, 248, 248)


def draw_pictures() -> list[Picture]:
    """Draw the pictures, the same on every machine and in every run."""
    return [draw_shapes(), _word(), _chart()]


def _canvas(ground: tuple[int, int, int]) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    picture = Image.new("RGB", SIZE_PX, ground)
    return picture, ImageDraw.Draw(picture)


def draw_shapes() -> Picture:
    """Draw a circle, a rectangle and a triangle."""
    picture, pen = _canvas(_FIELD)
    pen.ellipse((40, 40, 160, 160), fill=(222, 32, 36))
    pen.rectangle((250, 50, 370, 150), fill=(40, 72, 214))
    pen.polygon([(220, 180), (290, 290), (150, 290)], fill=(46, 168, 62))
    return open_picture(picture, name="shapes")


def _word() -> Picture:
    picture, pen = _canvas((40, 72, 214))
    font = ImageFont.load_default(110)
    pen.text((224, 160), "HELLO", font=font, fill=_FIELD, anchor="mm")
    return open_picture(picture, name="word")


def _chart() -> Picture:
    picture, pen = _canvas((250, 245, 234))
    pen.line((40, 270, 410, 270), fill=_INK, width=3)
    font = ImageFont.load_default(26)
    for column, count in enumerate((12, 8, 16, 21)):
        x = 60 + 90 * column
        pen.rectangle((x, 270 - 10 * count, x + 56, 269), fill=(0, 132, 132))
        pen.text((x + 28, 296), str(count), font=font, fill=_INK, anchor="mm")
    return open_picture(picture, name="chart")
