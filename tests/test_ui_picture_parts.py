"""A part is cut at full detail, and what is found in it has its place on the whole picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from vlm.boxes import Box
from vlm.errors import PictureError
from vlm.images import DEFAULT_LIMITS
from vlm.ui.picture_parts import WHOLE_PX, Part, PictureParts


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's own folder for files."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return tmp_path


def picture(folder: Path, size: tuple[int, int] = (3000, 2000)) -> str:
    """A white picture with a red field from a quarter to a half of each side."""
    image = Image.new("RGB", size, "white")
    edges = (size[0] // 4, size[1] // 4, size[0] // 2 - 1, size[1] // 2 - 1)
    ImageDraw.Draw(image).rectangle(edges, fill="red")
    path = folder / "sent.png"
    image.save(path)
    return str(path)


def test_the_part_keeps_every_pixel_and_the_whole_picture_is_small(folder: Path) -> None:
    parts = PictureParts(replace(DEFAULT_LIMITS, kept_px=500_000))
    written = parts.cut(picture(folder), (0.25, 0.25, 0.5, 0.5))
    assert written is not None
    with Image.open(written[0]) as whole, Image.open(written[1]) as part:
        assert part.size == (750, 500)
        assert part.getcolors() == [(750 * 500, (255, 0, 0))]
        assert whole.width * whole.height <= 1.01 * WHOLE_PX
        assert whole.width / whole.height == pytest.approx(1.5, abs=0.01)


def test_both_files_know_where_they_come_from(folder: Path) -> None:
    parts, path = PictureParts(DEFAULT_LIMITS), picture(folder, (300, 200))
    written = parts.cut(path, (0.25, 0.25, 0.5, 0.5))
    assert written is not None
    assert parts.find(written[0]) == Part(path, (0, 0, 1, 1))
    assert parts.find(written[1]) == Part(path, (0.25, 0.25, 0.5, 0.5))
    assert parts.find(path) is None


def test_a_slip_of_the_hand_cuts_nothing(folder: Path) -> None:
    parts, path = PictureParts(DEFAULT_LIMITS), picture(folder, (300, 200))
    assert parts.cut(path, (0.5, 0.5, 0.5, 0.5)) is None
    assert parts.cut(path, (0.1, 0.1, 0.9, 0.15)) is None


def test_a_picture_that_is_gone_is_told(folder: Path) -> None:
    with pytest.raises(PictureError, match="no longer there"):
        PictureParts(DEFAULT_LIMITS).cut(str(folder / "gone.png"), (0, 0, 1, 1))


def test_a_box_in_the_part_has_its_place_on_the_whole_picture() -> None:
    part = Part("", (0.25, 0.5, 0.5, 1.0))
    box = part.on_whole(Box("a", 0, 500, 1000, 1000))
    assert box == Box("a", 250, 750, 500, 1000)
    assert Part("", (0, 0, 1, 1)).on_whole(box) == box
