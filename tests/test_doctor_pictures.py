"""What precisions are compared on is the same everywhere, and more than one kind of picture."""

from vlm.commands.doctor_pictures import QUESTIONS, SIZE_PX, draw_pictures


def test_pictures_are_drawn_alike_every_time_and_differ_from_each_other() -> None:
    first, second = draw_pictures(), draw_pictures()
    hashes = [picture.content_hash for picture in first]
    assert hashes == [picture.content_hash for picture in second]
    assert len(set(hashes)) == len(hashes) >= 3
    assert {picture.image.size for picture in first} == {SIZE_PX}
    assert all(len(picture.image.getcolors(100_000) or ()) >= 2 for picture in first)


def test_questions_are_asked_in_both_languages() -> None:
    assert any(question.isascii() for question in QUESTIONS)
    assert any(not question.isascii() for question in QUESTIONS)
