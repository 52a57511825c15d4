"""The picture a question speaks of is the one it names by number, else the newest."""

from __future__ import annotations

import pytest
from PIL import Image

from vlm.images import Picture, open_picture
from vlm.ui.named_picture import Spot, find_picture, picture_number


@pytest.mark.parametrize(
    ("question", "number"),
    [
        ("Find the cat in picture 2.", 2),
        ("in the second picture", 2),
        ("In Image #3: boxes please", 3),
        ("photo two", 2),
        ("the 2nd photo", 2),
        ("图2里的猫", 2),
        ("标出第二张图中的猫", 2),
        ("第3张照片", 3),
        ("图片 1 里有什么", 1),
        ("第两张图", 2),
        ("Find the cat.", None),
        ("How many pictures hang there? 2 pictures?", None),
        ("the second cat in the picture", None),
        ("Is this picture 10000 years old?", None),
        ("第二只猫在图中哪里", None),
        ("", None),
    ],
)
def test_a_question_names_a_picture_by_number(question: str, number: int | None) -> None:
    assert picture_number(question) == number


def pictures(*counts: int) -> list[tuple[Picture, ...]]:
    """Messages with so many pictures each."""
    one = open_picture(Image.new("RGB", (8, 8)))
    return [(one,) * count for count in counts]


@pytest.mark.parametrize(
    ("question", "counts", "spot"),
    [
        ("Find it", (), None),
        ("Find it", (0, 0), None),
        ("Find it", (1,), Spot(0, 0)),
        ("Find it", (1, 0, 2, 0), Spot(2, 1)),
        ("picture 1", (1, 0, 2), Spot(2, 0)),
        ("picture 3", (1, 0, 2), Spot(2, 1)),
        ("picture 1", (1, 0, 1), Spot(0, 0)),
        ("picture 2", (1, 0, 1), Spot(2, 0)),
        ("picture 9", (1, 0, 2), Spot(2, 1)),
        ("picture 0", (1, 1), Spot(1, 0)),
    ],
)
def test_the_picture_is_found(question: str, counts: tuple[int, ...], spot: Spot | None) -> None:
    assert find_picture(question, pictures(*counts)) == spot
