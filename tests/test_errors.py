"""The exception tree: one root that is safe to show, one sentence each, as drawn in the file."""

import inspect
import re

import pytest

from vlm import errors

CLASSES = {
    name: cls
    for name, cls in inspect.getmembers(errors, inspect.isclass)
    if cls.__module__ == "vlm.errors"
}


def test_the_drawn_tree_is_the_real_tree() -> None:
    drawn: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)(\w+Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            drawn[match[2]] = above[depth - 1] if depth else None
    real = {
        name: cls.__base__.__name__ if cls is not errors.VLMError else None
        for name, cls in CLASSES.items()
        if issubclass(cls, errors.VLMError)
    }
    assert drawn == real


def test_stopped_is_no_error_to_show() -> None:
    assert not issubclass(errors.Stopped, errors.VLMError)


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_each_says_in_one_sentence_what_it_means(cls: type) -> None:
    assert re.fullmatch(r"[A-Z][^\n]+\.", inspect.getdoc(cls) or "")


def test_a_message_survives_unchanged() -> None:
    sentence = "This picture is 9000 px wide; the limit is 4096 px. Make it smaller."
    assert str(errors.PictureError(sentence)) == sentence
