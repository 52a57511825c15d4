"""The sample pictures are really drawn, each with a question its model can answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from vlm.bundled.evaluate import answer, open_generator
from vlm.chat import Message
from vlm.images import open_picture
from vlm.ui.samples import SIZE_PX, draw_samples


def test_each_sample_is_a_picture_with_something_on_it() -> None:
    samples = draw_samples()
    assert len(samples.real) == 3 and len(samples.built_in) == 4
    for sample in samples.built_in + samples.real:
        for path in sample.paths:
            with Image.open(path) as picture:
                assert picture.size == SIZE_PX
                assert len(picture.getcolors(SIZE_PX[0] * SIZE_PX[1]) or ()) > 1
        assert set(sample.questions) == {"en", "zh"} and all(sample.questions.values())


def test_two_pages_do_not_share_their_files() -> None:
    one, other = (
        {path for sample in draw_samples().real for path in sample.paths} for _ in range(2)
    )
    assert not one & other


def test_a_model_is_offered_what_it_can_answer() -> None:
    samples = draw_samples()
    assert samples.fitting(True) is samples.built_in and samples.fitting(False) is samples.real
    assert max(len(sample.paths) for sample in samples.built_in) == 2


@pytest.mark.parametrize(
    ("language", "answers"),
    [("en", ["Top left", "CAFE", "Circle", "Blue"]), ("zh", ["左上角", "CAFE", "圆形", "蓝色"])],
)
def test_the_built_in_model_answers_its_samples(
    bundled_folder: Path, language: str, answers: list[str]
) -> None:
    generator = open_generator(bundled_folder, "fp32")
    for sample, truth in zip(draw_samples().built_in, answers, strict=True):
        pictures = tuple(open_picture(Path(path)) for path in sample.paths)
        question = Message("user", sample.questions[language], pictures)  # type: ignore[index]
        assert answer(generator, f"{language} {truth}", [question]) == truth
