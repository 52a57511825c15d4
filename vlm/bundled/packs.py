"""Lays the turns of a chat out as token ids, positions, segments and what answers speak of."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from vlm.bundled.labels import Array, Labels, character_cells
from vlm.bundled.questions import Question, naming_words
from vlm.bundled.scenes import Thing

EDGE_WEIGHT = 6.0


@dataclass(frozen=True)
class Told:
    """An answer, and which visual tokens show what it speaks of."""

    text: str
    shown: tuple[tuple[int, Array], ...]
    """From a character on: (visual tokens,) bool, the tokens that show the thing."""
    words: tuple[str, ...] = ()
    """Words of the question that say which thing is meant, as far as they stand in it."""

    def __str__(self) -> str:
        return self.text


Turn = tuple[str, str | Told]
"""A question and its answer."""


def tell(question: Question, labels: Labels, grid: tuple[int, int]) -> Told:
    """Point an answer at the visual tokens that show what it speaks of; labels of one picture."""
    shown: list[tuple[int, Array]] = []
    text = coarse_boxes(question.answer) if question.topic == "boxes" else question.answer
    for place, thing in _about(question, text):
        if question.topic == "read":
            for index, cell in enumerate(character_cells(thing, grid)):
                shown.append((place + index, np.arange(grid[0] * grid[1]) == cell))
            continue
        is_here = np.abs(labels.box[0] - np.array(thing.box, dtype=np.float32)).sum(1) < 1e-5
        shown.append((place, is_here & (labels.kind[0] > 0)))
    words = (
        naming_words(question.about[0][1], question.language) if len(question.about) == 1 else ()
    )
    return Told(text, tuple(shown), words)


def coarse_boxes(answer: str) -> str:
    """Round the edges of boxes to fifties: the tower sees them no finer than to about twenty.

    Taught the tens, the language model learned nothing of them and guessed.
    """
    return re.sub(
        r"\[\d[\d, ]*\]",
        lambda edges: re.sub(r"\d+", lambda edge: str(round(int(edge[0]) / 50) * 50), edges[0]),
        answer,
    )


def _about(question: Question, text: str) -> list[tuple[int, Thing]]:
    """Give the things that a text speaks of, with where it begins to."""
    things = [thing for _, thing in question.about]
    if question.topic != "boxes" or len(things) < 2:
        return list(question.about)
    return [
        (found.start(), thing) for found, thing in zip(re.finditer("{", text), things, strict=True)
    ]


class Packer:
    """Turns texts into ids and packs turns behind the visual tokens of their pictures."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode = tokenizer.encode
        self.ids: Callable[[str], list[int]] = functools.lru_cache(200_000)(
            lambda text: tokenizer.encode(text).ids
        )
        self.pad = self.ids("<|image_pad|>")[0]
        self.digits = {self.ids(digit)[0] for digit in "0123456789"}

    def pack(self, parts: list[tuple[str, object]], grid: tuple[int, int]) -> list[Array]:
        """Lay parts ("text" | "picture" | "answer" | "segment") out as ids, positions, segments.

        Returns token_ids (t,), position_ids (3, t), segments (t,), and weights (t,), shown and
        asked (t, t) as in Batch, but by the token itself.
        """
        ids: list[int] = []
        positions: list[tuple[int, int, int]] = []
        segments: list[int] = []
        weights: list[float] = []
        shown: list[tuple[int, Array]] = []
        asked: list[tuple[int, list[int]]] = []
        first_visual, said, said_at = 0, "", 0
        place, segment, shared_place = 0, 0, 0
        for kind, value in parts:
            if kind == "segment":
                if segment == 0:
                    shared_place = place
                segment, place = segment + 1, shared_place
                continue
            if kind == "picture":
                rows, columns = grid
                first_visual = len(ids)
                new = [self.pad] * (rows * columns)
                positions += [
                    (place, place + r, place + c) for r in range(rows) for c in range(columns)
                ]
                place += max(rows, columns)
            else:
                new = self.ids(str(value))
                if isinstance(value, Told):
                    shown += self._shown(value, len(ids))
                    asked.append((len(ids), self._asked(value, said, said_at)))
                said, said_at = str(value), len(ids)
                positions += [(place + i,) * 3 for i in range(len(new))]
                place += len(new)
            ids += new
            segments += [segment] * len(new)
            weights += self._weights(new) if kind == "answer" else [0.0] * len(new)
        seen, named = (np.zeros((len(ids), len(ids)), dtype=bool) for _ in range(2))
        for token, visual in shown:
            seen[token, first_visual : first_visual + len(visual)] = visual
        for token, words in asked:
            named[token, words] = True
        arrays = [np.array(ids), np.array(positions).T, np.array(segments), np.array(weights)]
        return [*arrays, seen, named]

    def _weights(self, answer: list[int]) -> list[float]:
        """Weigh the tokens of an answer: those that say where the edge of a box lies count more.

        All others of a box are the same every time. The last digit of a number is always 0.
        """
        share = 1 / len(answer)
        return [
            share * (EDGE_WEIGHT if {token, after} <= self.digits else 1.0)
            for token, after in itertools.pairwise([*answer, -1])
        ]

    def _asked(self, told: Told, question: str, first: int) -> list[int]:
        """Find the tokens of a question that say which thing is meant."""
        places = [(question.find(word), len(word)) for word in told.words]
        return [
            first + index
            for index, (start, end) in enumerate(self.encode(question).offsets)
            if any(at >= 0 and start < at + length and end > at for at, length in places)
        ]

    def _shown(self, told: Told, first: int) -> list[tuple[int, Array]]:
        """Give each token of an answer the visual tokens of the thing it speaks of."""
        found = []
        for index, (start, _) in enumerate(self.encode(told.text).offsets):
            begun = [visual for place, visual in told.shown if place <= start]
            if begun:
                found.append((first + index, begun[-1]))
        return found


USER, END, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n"


def turn_parts(question: str, answer: str | Told, opened: bool) -> list[tuple[str, object]]:
    """Write one turn in the chat template; `opened` when the user's turn has begun already."""
    return [
        ("text", ("" if opened else USER) + question + END + ASSISTANT),
        ("answer", answer),
        ("answer", "<|im_end|>"),
        ("text", "\n"),
    ]
