"""Drawn boxes can be seen on any ground and told apart by everybody."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from vlm.box_drawing import COLOURS, colour_of, draw_boxes, ink_on, luminance, tag_text
from vlm.boxes import Box

BOX = Box("circle", 250, 250, 750, 750)
# How dichromats see linear RGB (Vienot, Brettel and Mollon 1999).
SEEN_BY = {
    "full colour vision": np.eye(3),
    "protanopia": np.array([[0.1121, 0.8853, -0.0005], [0.1127, 0.8897, -0.0001], [0.0045, 0, 1]]),
    "deuteranopia": np.array([[0.292, 0.7054, -0.0003], [0.2934, 0.7089, 0], [-0.0210, 0.0256, 1]]),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def contrast(a: str, b: str) -> float:
    """Contrast of two colours as in WCAG 2: 1 to 21."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str, seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """A colour in CIE L*a*b*, as seen."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(seen @ linear, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("who", SEEN_BY)
def test_colours_stand_apart(who: str) -> None:
    places = [lab(colour, SEEN_BY[who]) for colour in COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in combinations(places, 2)) > 10


@pytest.mark.parametrize("colour", COLOURS)
def test_labels_read_on_their_colour(colour: str) -> None:
    assert contrast(colour, ink_on(colour)) >= 4.5


def test_more_boxes_than_colours_begin_again() -> None:
    assert colour_of(len(COLOURS)) == colour_of(0) != colour_of(1)


@pytest.mark.parametrize("ground", [*COLOURS, "#000000", "#FFFFFF", "#777777"])
@pytest.mark.parametrize("index", range(len(COLOURS)))
def test_a_box_shows_on_any_ground(ground: str, index: int) -> None:
    boxes = [Box("", 0, 0, 1, 1)] * index + [BOX]
    drawn = draw_boxes(Image.new("RGB", (220, 220), ground), boxes)
    across = {"#{:02X}{:02X}{:02X}".format(*drawn.getpixel((x, 150))) for x in range(40, 70)}
    assert max(contrast(ground, colour) for colour in across) >= 4.5
    assert colour_of(index) in across


def test_the_picture_itself_stays_as_it_is() -> None:
    picture = Image.new("RGB", (64, 48), "white")
    drawn = draw_boxes(picture, [BOX])
    assert drawn.size == picture.size and drawn.mode == "RGB"
    assert picture.getcolors() == [(64 * 48, (255, 255, 255))]
    assert len(drawn.getcolors() or ()) > 1


def test_lines_stand_where_the_box_is() -> None:
    drawn = draw_boxes(Image.new("RGB", (440, 880), "white"), [BOX])
    assert "#{:02X}{:02X}{:02X}".format(*drawn.getpixel((111, 440))) == COLOURS[0]
    assert "#{:02X}{:02X}{:02X}".format(*drawn.getpixel((328, 440))) == COLOURS[0]
    assert drawn.getpixel((220, 440)) == (255, 255, 255)


def test_a_point_is_a_dot() -> None:
    point = Box("", 500, 500, 500, 500, is_point=True)
    drawn = draw_boxes(Image.new("RGB", (220, 220), "white"), [point])
    assert "#{:02X}{:02X}{:02X}".format(*drawn.getpixel((110, 110))) == COLOURS[0]


@pytest.mark.parametrize("size", [(1, 1), (3, 400), (400, 3), (20, 20)])
def test_the_smallest_pictures_take_boxes(size: tuple[int, int]) -> None:
    boxes = [
        BOX,
        Box("a long label " * 6, 0, 0, 1000, 1000),
        Box("p", 1000, 1000, 1000, 1000, True),
    ]
    assert draw_boxes(Image.new("L", size), boxes).size == size


def test_labels_at_the_edge_stay_inside_and_do_not_cover_each_other() -> None:
    boxes = [Box("one", 0, 0, 1000, 1000), Box("two", 0, 0, 1000, 1000)]
    drawn = np.asarray(draw_boxes(Image.new("RGB", (400, 300), "gray"), boxes))
    first, second = ((drawn == _rgb(colour)).all(axis=2).sum() for colour in COLOURS[:2])
    # Each label is about 15 x 40 px; the second box's lines cover the first's.
    assert first > 200 and second > 200


def test_a_label_that_no_font_here_can_write_leaves_the_number() -> None:
    assert tag_text(0, "circle", 20)[0] == "1 circle"
    assert tag_text(2, "\U00012000\U000e0fff", 20)[0] == "3"


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
