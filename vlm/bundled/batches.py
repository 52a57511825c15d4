"""Packs scenes and their questions into training batches.

All questions about one picture share its visual tokens: most packs let each question see
only the picture and itself, as in a first turn; the others are one chat, turn after turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from vlm.bundled.easy_vqa_split import EasyVQA
from vlm.bundled.labels import IGNORED, Array, Labels, label_scenes
from vlm.bundled.packs import USER, Packer, Turn, tell, turn_parts
from vlm.bundled.questions import TOPICS, Question, ask, follow_ups
from vlm.bundled.scenes import (
    PIXELS_PER_CELL,
    Scene,
    SceneMix,
    draw_scene,
)
from vlm.bundled.small_talk import HONEST_ANSWER, OUT_OF_SCOPE, SMALL_TALK, Language

CHAT_TOKENS = 230
"""Tokens of a packed chat, its picture included: equal lengths waste little on padding."""
CROWD = SceneMix(shapes=0.0, text=0.0, both=0.0, one_big=0.0, crowd=1.0)

LARGE_GRIDS = ((6, 6), (6, 6), (6, 6), (5, 7), (7, 5), (4, 8), (8, 4), (5, 5), (4, 4), (4, 6))
"""Rows and columns of visual tokens; the checkpoint's limits are 16 and 36 tokens."""


@dataclass
class Batch:
    """Pictures of one size, what is on them, and the chats about them."""

    pixels: Array
    """(pictures, height, width, 3) uint8"""
    labels: Labels
    token_ids: Array
    """(chats, t) int64"""
    position_ids: Array
    """(3, chats, t) int64"""
    segments: Array
    """(chats, t) int64: 0 is seen by all, -1 is padding, others see 0 and themselves."""
    targets: Array
    """(chats, t) int64: the next token where it belongs to an answer, else IGNORED."""
    shown: Array
    """(chats, t, t) bool: by token that predicts part of an answer, the visual tokens that
    show what that part speaks of."""
    asked: Array
    """(chats, t, t) bool: by token that predicts an answer's first, the tokens of the question
    that say which thing is meant."""
    weights: Array
    """(chats, t) float32: 1 / tokens of the answer that the next token belongs to, more for
    the digits of boxes, 0 where it belongs to no answer."""


_PICTURE: list[tuple[str, object]] = [
    ("text", "<|vision_start|>"),
    ("picture", None),
    ("text", "<|vision_end|>"),
]
_ORDINALS = {
    "en": (("In the first picture: ", "Picture 1: "), ("In the second picture: ", "Picture 2: ")),
    "zh": (("第一张图：", "图1："), ("第二张图：", "图2：")),
}


class BatchMaker:
    """Makes the batch with a given number, always the same one for the same seed."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int,
        pictures: int,
        mix: SceneMix,
        grids: tuple[tuple[int, int], ...],
        with_chats: bool = True,
        easy_vqa: EasyVQA | None = None,
        text_weight: float = 1.0,
        silent_pictures: int = 0,
    ) -> None:
        self.packer = Packer(tokenizer)
        self.seed, self.pictures, self.mix, self.grids = seed, pictures, mix, grids
        self.with_chats, self.easy_vqa, self.text_weight = with_chats, easy_vqa, text_weight
        self.silent_pictures = silent_pictures

    def make(self, number: int) -> Batch:
        """Make batch `number`."""
        rng = random.Random(self.seed * 1_000_003 + number)
        grid = rng.choice(self.grids)
        # Equal work for every batch: more pictures when they are small.
        tokens = grid[0] * grid[1]
        work = (tokens + 30) / 66 if self.with_chats else tokens / 36
        count = max(2, round(self.pictures / work) // 2 * 2)
        scenes: list[Scene | None] = []
        pictures: list[Image.Image] = []
        chats: list[list[tuple[str, object]]] = []
        while len(pictures) < count:
            easy = self.easy_vqa is not None and rng.random() < 0.1
            two = self.with_chats and not easy and len(pictures) + 2 <= count and rng.random() < 0.1
            if easy:
                assert self.easy_vqa is not None
                index = rng.randrange(len(self.easy_vqa.pictures))
                pictures.append(self.easy_vqa.pictures[index])
                scenes.append(None)
                known = self.easy_vqa.questions[index]
                turns = self._fit_turns(rng.sample(known, len(known)), CHAT_TOKENS - 40)
                chats.append(_independent(turns, _PICTURE))
                continue
            new = [self._scene(rng, grid) for _ in range(2 if two else 1)]
            scenes += new
            pictures += [scene.picture for scene in new]
            if self.with_chats:
                chats.append(_pair(rng, new) if two else self._single(rng, new[0], grid))
        if self.with_chats and rng.random() < 0.3:
            chats.append(_text_only(rng))
        # Crowded pictures with dense labels only; they come last, after those of the chats.
        for _ in range(self.silent_pictures):
            scene = self._scene(rng, grid, CROWD)
            scenes.append(scene)
            pictures.append(scene.picture)
        pixels = np.stack([_fit(picture, grid) for picture in pictures])
        return _batch(
            pixels, label_scenes(scenes, grid), [self.packer.pack(c, grid) for c in chats]
        )

    def _scene(
        self, rng: random.Random, grid: tuple[int, int], mix: SceneMix | None = None
    ) -> Scene:
        scale = rng.choice((1.0, 1.5, 2.0, 2.0, 2.7))
        return draw_scene(
            rng, grid[1] * PIXELS_PER_CELL, grid[0] * PIXELS_PER_CELL, mix or self.mix, scale
        )

    def _single(
        self, rng: random.Random, scene: Scene, grid: tuple[int, int]
    ) -> list[tuple[str, object]]:
        """Write a chat about one picture, of nearly the same length for every picture."""
        room = CHAT_TOKENS - grid[0] * grid[1] - 6
        labels = label_scenes([scene], grid)
        if rng.random() < 0.7:
            turns = _questions(rng, scene, 16, self.text_weight, labels, grid)
            return _independent(self._fit_turns(turns, room), _PICTURE)
        language: Language = "en" if rng.random() < 0.55 else "zh"
        turns = [(q.text, tell(q, labels, grid)) for q in follow_ups(rng, scene, language)]
        others = _questions(rng, scene, 12, self.text_weight, labels, grid)
        half = self._fit_turns(others, room // 2)
        turns = turns + others if rng.random() < 0.5 else half + turns
        parts: list[tuple[str, object]] = [("text", USER), *_PICTURE, ("segment", None)]
        return parts + _continued(self._fit_turns(turns, room, in_order=True))

    def _fit_turns(self, turns: Sequence[Turn], room: int, in_order: bool = False) -> list[Turn]:
        """Keep the turns that fit; in order: only those before the first that does not."""
        kept: list[Turn] = []
        for turn in turns:
            length = sum(
                len(self.packer.ids(str(text))) for _, text in turn_parts(*turn, opened=False)
            )
            if length <= room or not kept:
                kept.append(turn)
                room -= length
            elif in_order:
                break
        return kept

    def stream(self, first: int) -> Iterator[Batch]:
        """Yield batches first, first + 1, ... without end."""
        while True:
            yield self.make(first)
            first += 1


def _fit(picture: Image.Image, grid: tuple[int, int]) -> Array:
    size = (grid[1] * PIXELS_PER_CELL, grid[0] * PIXELS_PER_CELL)
    return np.asarray(picture.resize(size, Image.Resampling.BICUBIC))


def _questions(
    rng: random.Random,
    scene: Scene,
    count: int,
    text_weight: float,
    labels: Labels,
    grid: tuple[int, int],
) -> list[Turn]:
    # The topics in their order: those that come last in training are asked most.
    weights = [1.0, 1.0, 1.4, 1.3, 1.2, 0.3, 2.2 * text_weight, 1.0, 5.0]
    asked: list[Question] = []
    for topic in rng.choices(TOPICS, weights, k=count * 2):
        language: Language = "en" if rng.random() < 0.55 else "zh"
        made = ask(rng, scene, topic, language)
        if made is not None and made not in asked:
            asked.append(made)
    turns: list[Turn] = [(q.text, tell(q, labels, grid)) for q in asked[:count]]
    if rng.random() < 0.1:
        language, text = rng.choice(OUT_OF_SCOPE)
        turns.append((text, HONEST_ANSWER[language]))
    if rng.random() < 0.15:
        turns += [(t.lower().rstrip(".?"), a) for t, a in turns[:1]]
    return turns


def _continued(turns: Sequence[Turn]) -> list[tuple[str, object]]:
    """Write turns that follow each other; the first has been opened by its picture."""
    parts: list[tuple[str, object]] = []
    for index, (question, answer) in enumerate(turns):
        parts += turn_parts(question, answer, opened=index == 0)
    return parts


def _independent(
    turns: Sequence[Turn], shown: list[tuple[str, object]]
) -> list[tuple[str, object]]:
    """Write turns that see what is shown and themselves only."""
    parts: list[tuple[str, object]] = [("text", USER), *shown]
    for question, answer in turns:
        parts += [("segment", None), *turn_parts(question, answer, opened=True)]
    return parts


def _pair(rng: random.Random, scenes: list[Scene]) -> list[tuple[str, object]]:
    """Write a chat about two pictures: both in one turn, or the second in a later turn."""
    language: Language = "en" if rng.random() < 0.55 else "zh"
    parts: list[tuple[str, object]] = [("text", USER), *_PICTURE]
    if rng.random() < 0.5:
        parts += _PICTURE
        for _ in range(6):
            which = rng.randrange(2)
            for question, answer in _asked(rng, scenes[which], language)[:1]:
                before = rng.choice(_ORDINALS[language][which])
                parts += [("segment", None), *turn_parts(before + question, answer, opened=True)]
        return parts
    parts.append(("segment", None))
    parts += _continued(_asked(rng, scenes[0], language))
    parts += [("text", USER), *_PICTURE]
    parts += _continued(_asked(rng, scenes[1], language))
    return parts


def _asked(rng: random.Random, scene: Scene, language: Language) -> list[tuple[str, str]]:
    made = (ask(rng, scene, topic, language) for topic in rng.sample(TOPICS[:7], 7))
    return [(q.text, q.answer) for q in made if q is not None][:3]


def _text_only(rng: random.Random) -> list[tuple[str, object]]:
    turns: list[Turn] = [(text, answer) for _, text, answer in rng.sample(SMALL_TALK, 5)]
    turns += [(text, HONEST_ANSWER[language]) for language, text in rng.sample(OUT_OF_SCOPE, 4)]
    return _independent(turns, shown=[])


def _batch(pixels: Array, labels: Labels, packed: list[list[Array]]) -> Batch:
    if not packed:
        empty = np.zeros((0, 0), dtype=np.int64)
        return Batch(pixels, labels, *[empty] * 7)
    length = max(len(ids) for ids, *_ in packed)
    token_ids = np.zeros((len(packed), length), dtype=np.int64)
    position_ids = np.zeros((3, len(packed), length), dtype=np.int64)
    segments = np.full((len(packed), length), -1, dtype=np.int64)
    targets = np.full((len(packed), length), IGNORED, dtype=np.int64)
    shown, asked = (np.zeros((len(packed), length, length), dtype=bool) for _ in range(2))
    weights = np.zeros((len(packed), length), dtype=np.float32)
    for row, (ids, positions, segment, weight, seen, named) in enumerate(packed):
        n = len(ids)
        token_ids[row, :n], position_ids[:, row, :n], segments[row, :n] = ids, positions, segment
        targets[row, : n - 1] = np.where(weight[1:] > 0, ids[1:], IGNORED)
        weights[row, : n - 1] = weight[1:]
        shown[row, : n - 1, :n] = seen[1:]
        asked[row, : n - 1, :n] = named[1:]
    return Batch(pixels, labels, token_ids, position_ids, segments, targets, shown, asked, weights)
