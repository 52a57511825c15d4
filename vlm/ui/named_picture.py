"""Find out which picture a question speaks of: the one it names by number, else the newest.

Pictures are numbered as the page shows them: within their message when it has several, else
through the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_WORDS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
)  # fmt: skip
_NAMES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_CHINESE = "一二三四五六七八九十"
_NUMBERS = {
    **{word: number for words in (_WORDS, _NAMES) for number, word in enumerate(words, 1)},
    **{sign: number for number, sign in enumerate(_CHINESE, 1)},
    "两": 2,
}
_PICTURE = r"(?:pictures?|images?|photos?|pics?)"
_NAMED = re.compile(
    rf"\b{_PICTURE}\s?(?:number|no\.?|\#)?\s?(?P<after>\d{{1,4}}|{'|'.join(_NAMES)})\b"
    rf"|\b(?P<before>{'|'.join(_WORDS)}|\d{{1,4}}(?:st|nd|rd|th))\s{_PICTURE}\b"
    rf"|第\s?(?P<chinese>\d{{1,4}}|[{_CHINESE}两])\s?[张幅个]?(?:图|照|相片)"
    r"|(?:图片?|照片|图像)\s?(?P<short>\d{1,4})",
    re.IGNORECASE,
)


class Spot(NamedTuple):
    """Where a picture stands: which message with pictures, and which of its pictures, from 0."""

    message: int
    picture: int


def picture_number(question: str) -> int | None:
    """The number by which a question names a picture, from 1; None when it names none."""
    match = _NAMED.search(question)
    if match is None:
        return None
    named = next(filter(None, match.groups())).lower()
    return _NUMBERS.get(named) or int(re.sub(r"\D", "", named))


def find_picture(question: str, messages: Sequence[Sequence[object]]) -> Spot | None:
    """Find the picture that a question speaks of; None when there are no pictures.

    Args:
        question: the question as typed.
        messages: the pictures of each message of the conversation, up to the question's own.
    """
    spots = [
        Spot(message, picture)
        for message, pictures in enumerate(messages)
        for picture in range(len(pictures))
    ]
    if not spots:
        return None
    newest = [spot for spot in spots if spot.message == spots[-1].message]
    number = picture_number(question)
    counted = newest if len(newest) > 1 and number and number <= len(newest) else spots
    return counted[number - 1] if number and number <= len(counted) else spots[-1]
