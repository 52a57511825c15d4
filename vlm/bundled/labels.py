"""What each visual token of a drawn picture shows: the dense labels of training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vlm.bundled.scenes import CHARACTERS, COLOURS, SHAPES, Scene, Thing

CHARACTER_SLOTS = 3
"""Characters whose middle lies in one visual token, from left to right."""
IGNORED = -100
Array = np.ndarray


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


def label_scenes(scenes: list[Scene | None], grid: tuple[int, int]) -> Labels:
    """Label pictures of (rows, columns) visual tokens; None stands for one without truth."""
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
        for character, cell in zip(thing.text, character_cells(thing, grid), strict=True):
            slot = used.get(cell, 0)
            used[cell] = slot + 1
            if slot < CHARACTER_SLOTS:
                labels.characters[index, cell, slot] = 1 + CHARACTERS.index(character)


def character_cells(thing: Thing, grid: tuple[int, int]) -> list[int]:
    """Return the visual token in which the middle of each character of a text lies."""
    rows, columns = grid
    line = min(rows - 1, int(thing.centre[1] * rows))
    return [line * columns + min(columns - 1, int(x * columns)) for x in thing.character_x]
