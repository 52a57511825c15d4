"""The sample pictures are really drawn, each with a question in both languages."""

from __future__ import annotations

from PIL import Image

from vlm.ui.samples import SIZE_PX, draw_samples


def test_each_sample_is_a_picture_with_something_on_it() -> None:
    samples = draw_samples()
    assert len(samples) == 4
    for sample in samples:
        with Image.open(sample.path) as picture:
            assert picture.size == SIZE_PX
            assert len(picture.getcolors(SIZE_PX[0] * SIZE_PX[1]) or ()) > 2
        assert set(sample.questions) == {"en", "zh"} and all(sample.questions.values())


def test_two_pages_do_not_share_their_files() -> None:
    one, other = ({sample.path for sample in draw_samples()} for _ in range(2))
    assert not one & other
