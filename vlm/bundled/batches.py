"""Packs scenes and their questions into training batches.

All questions about one picture share its visual tokens: most packs let each question see
only the picture and itself, as in a first turn; the others are one chat, turn after turn.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from vlm.bundled.questions import TOPICS, ask, follow_ups
from vlm.bundled.scenes import (
    CHARACTERS,
    COLOURS,
    PIXELS_PER_CELL,
    SHAPES,
    Scene,
    SceneMix,
    draw_scene,
)
from vlm.bundled.small_talk import HONEST_ANSWER, OUT_OF_SCOPE, SMALL_TALK, Language

CHARACTER_SLOTS = 3
"""Characters whose middle lies in one visual token, from left to right."""
IGNORED = -100
CHAT_TOKENS = 230
"""Tokens of a packed chat, its picture included: equal lengths waste little on padding."""
CROWD = SceneMix(shapes=0.0, text=0.0, both=0.0, one_big=0.0, crowd=1.0)
Turn = tuple[str, str]
Array = np.ndarray

LARGE_GRIDS = ((6, 6), (6, 6), (6, 6), (5, 7), (7, 5), (4, 8), (8, 4), (5, 5), (4, 4), (4, 6))
"""Rows and columns of visual tokens; the checkpoint's limits are 16 and 36 tokens."""


@dataclass
class Labels:
    """What each visual token shows; (pictures, tokens) each, IGNORED where unknown."""

    kind: Array
    colour: Array
    background: Array
    characters: Array
    """(pictures, tokens, 3)"""
    box: Array
    """(pictures, tokens, 4) float32; only meant where kind > 0."""


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


@dataclass(frozen=True)
class EasyVQA:
    """Pictures and questions of the train split of the easy-vqa package."""

    pictures: list[Image.Image]
    questions: list[list[Turn]]


def load_easy_vqa(split: str = "train") -> EasyVQA | None:
    """Read easy-vqa where it is installed."""
    try:
        import easy_vqa
    except ImportError:
        return None
    folder = Path(easy_vqa.__file__).parent / "data" / split
    rows = json.loads((folder / "questions.json").read_text())
    count = 1 + max(row[2] for row in rows)
    pictures = []
    for index in range(count):
        with Image.open(folder / "images" / f"{index}.png") as file:
            pictures.append(file.convert("RGB"))
    questions: list[list[Turn]] = [[] for _ in range(count)]
    for text, answer, index in rows:
        questions[index].append((text, answer))
    return EasyVQA(pictures, questions)


class Packer:
    """Turns texts into ids and packs turns behind the visual tokens of their pictures."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.ids: Callable[[str], list[int]] = functools.lru_cache(200_000)(
            lambda text: tokenizer.encode(text).ids
        )
        self.pad = self.ids("<|image_pad|>")[0]

    def pack(self, parts: list[tuple[str, object]], grid: tuple[int, int]) -> list[Array]:
        """Lay parts ("text" | "picture" | "answer" | "segment") out as ids, positions, segments.

        Returns token_ids (t,), position_ids (3, t), segments (t,), is_answer (t,).
        """
        ids: list[int] = []
        positions: list[tuple[int, int, int]] = []
        segments: list[int] = []
        answers: list[bool] = []
        place, segment, shared_place = 0, 0, 0
        for kind, value in parts:
            if kind == "segment":
                if segment == 0:
                    shared_place = place
                segment, place = segment + 1, shared_place
                continue
            if kind == "picture":
                rows, columns = grid
                new = [self.pad] * (rows * columns)
                positions += [
                    (place, place + r, place + c) for r in range(rows) for c in range(columns)
                ]
                place += max(rows, columns)
            else:
                new = self.ids(str(value))
                positions += [(place + i,) * 3 for i in range(len(new))]
                place += len(new)
            ids += new
            segments += [segment] * len(new)
            answers += [kind == "answer"] * len(new)
        return [
            np.array(ids),
            np.array(positions).T,
            np.array(segments),
            np.array(answers),
        ]


USER, END, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n"


def turn_parts(question: str, answer: str, opened: bool) -> list[tuple[str, object]]:
    """Write one turn in the chat template; `opened` when the user's turn has begun already."""
    return [
        ("text", ("" if opened else USER) + question + END + ASSISTANT),
        ("answer", answer + "<|im_end|>"),
        ("text", "\n"),
    ]


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
        return _batch(pixels, _labels(scenes, grid), [self.packer.pack(c, grid) for c in chats])

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
        if rng.random() < 0.7:
            turns = _questions(rng, scene, 16, self.text_weight)
            return _independent(self._fit_turns(turns, room), _PICTURE)
        language: Language = "en" if rng.random() < 0.55 else "zh"
        turns = [(q.text, q.answer) for q in follow_ups(rng, scene, language)]
        others = _questions(rng, scene, 12, self.text_weight)
        half = self._fit_turns(others, room // 2)
        turns = turns + others if rng.random() < 0.5 else half + turns
        parts: list[tuple[str, object]] = [("text", USER), *_PICTURE, ("segment", None)]
        return parts + _continued(self._fit_turns(turns, room, in_order=True))

    def _fit_turns(self, turns: list[Turn], room: int, in_order: bool = False) -> list[Turn]:
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


def _questions(rng: random.Random, scene: Scene, count: int, text_weight: float) -> list[Turn]:
    # The topics in their order: those that come last in training are asked most.
    weights = [1.0, 1.0, 1.0, 1.3, 1.1, 0.3, 1.7 * text_weight, 0.8, 1.3]
    turns: list[Turn] = []
    for topic in rng.choices(TOPICS, weights, k=count * 2):
        language: Language = "en" if rng.random() < 0.55 else "zh"
        made = ask(rng, scene, topic, language)
        if made is not None and (made.text, made.answer) not in turns:
            turns.append((made.text, made.answer))
    turns = turns[:count]
    if rng.random() < 0.1:
        language, text = rng.choice(OUT_OF_SCOPE)
        turns.append((text, HONEST_ANSWER[language]))
    if rng.random() < 0.15:
        turns += [(t.lower().rstrip(".?"), a) for t, a in turns[:1]]
    return turns


def _continued(turns: list[Turn]) -> list[tuple[str, object]]:
    """Write turns that follow each other; the first has been opened by its picture."""
    parts: list[tuple[str, object]] = []
    for index, (question, answer) in enumerate(turns):
        parts += turn_parts(question, answer, opened=index == 0)
    return parts


def _independent(turns: list[Turn], shown: list[tuple[str, object]]) -> list[tuple[str, object]]:
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


def _asked(rng: random.Random, scene: Scene, language: Language) -> list[Turn]:
    made = (ask(rng, scene, topic, language) for topic in rng.sample(TOPICS[:7], 7))
    return [(q.text, q.answer) for q in made if q is not None][:3]


def _text_only(rng: random.Random) -> list[tuple[str, object]]:
    turns = [(text, answer) for _, text, answer in rng.sample(SMALL_TALK, 5)]
    turns += [(text, HONEST_ANSWER[language]) for language, text in rng.sample(OUT_OF_SCOPE, 4)]
    return _independent(turns, shown=[])


def _batch(pixels: Array, labels: Labels, packed: list[list[Array]]) -> Batch:
    if not packed:
        empty = np.zeros((0, 0), dtype=np.int64)
        return Batch(pixels, labels, empty, empty, empty, empty)
    length = max(len(ids) for ids, *_ in packed)
    token_ids = np.zeros((len(packed), length), dtype=np.int64)
    position_ids = np.zeros((3, len(packed), length), dtype=np.int64)
    segments = np.full((len(packed), length), -1, dtype=np.int64)
    targets = np.full((len(packed), length), IGNORED, dtype=np.int64)
    for row, (ids, positions, segment, is_answer) in enumerate(packed):
        n = len(ids)
        token_ids[row, :n], position_ids[:, row, :n], segments[row, :n] = ids, positions, segment
        targets[row, : n - 1] = np.where(is_answer[1:], ids[1:], IGNORED)
    return Batch(pixels, labels, token_ids, position_ids, segments, targets)


def _labels(scenes: list[Scene | None], grid: tuple[int, int]) -> Labels:
    shape = (len(scenes), grid[0] * grid[1])
    kind, colour, background = (np.full(shape, IGNORED, dtype=np.int64) for _ in range(3))
    characters = np.full((*shape, CHARACTER_SLOTS), IGNORED, dtype=np.int64)
    box = np.zeros((*shape, 4), dtype=np.float32)
    labels = Labels(kind, colour, background, characters, box)
    for index, scene in enumerate(scenes):
        if scene is not None:
            _label_scene(labels, index, scene, grid)
    return labels


def _label_scene(labels: Labels, index: int, scene: Scene, grid: tuple[int, int]) -> None:
    rows, columns = grid
    kind, colour = np.zeros(grid, dtype=np.int64), np.zeros(grid, dtype=np.int64)
    best, box = np.full(grid, 0.12), np.zeros((*grid, 4), dtype=np.float32)
    for thing in scene.things:
        x0, y0, x1, y1 = thing.box
        column, row = np.arange(columns), np.arange(rows)
        over_x = np.clip(
            np.minimum(x1 * columns, column + 1) - np.maximum(x0 * columns, column), 0, 1
        )
        over_y = np.clip(np.minimum(y1 * rows, row + 1) - np.maximum(y0 * rows, row), 0, 1)
        share = over_y[:, None] * over_x[None, :]
        middle = (
            min(rows - 1, int(thing.centre[1] * rows)),
            min(columns - 1, int(thing.centre[0] * columns)),
        )
        share[middle] += 0.2
        chosen = share > best
        best[chosen] = share[chosen]
        kind[chosen] = 1 + (len(SHAPES) if thing.kind == "text" else SHAPES.index(thing.kind))
        colour[chosen] = 1 + list(COLOURS).index(thing.colour)
        box[chosen] = thing.box
    labels.kind[index], labels.colour[index] = kind.ravel(), colour.ravel()
    labels.background[index] = list(COLOURS).index(scene.background)
    labels.box[index] = box.reshape(-1, 4)
    labels.characters[index] = 0
    used: dict[int, int] = {}
    for thing in scene.things:
        line = min(rows - 1, int(thing.centre[1] * rows))
        for character, x in zip(thing.text, thing.character_x, strict=True):
            cell = line * columns + min(columns - 1, int(x * columns))
            slot = used.get(cell, 0)
            used[cell] = slot + 1
            if slot < CHARACTER_SLOTS:
                labels.characters[index, cell, slot] = 1 + CHARACTERS.index(character)
