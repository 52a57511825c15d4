"""Positions equal those of transformers' Qwen3VLModel.get_rope_index."""

import itertools

import pytest
import torch
from transformers import AutoConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from vlm.positions import position_ids
from vlm.prompt import PictureSpan, Prompt

TEXT, PAD = 7, 9


@pytest.fixture(scope="module")
def model(bundled_folder):
    with torch.device("meta"):
        return Qwen3VLModel(AutoConfig.from_pretrained(bundled_folder))


def prompt_of(*parts):
    """Lay out a prompt from text lengths (int) and grids (rows, columns)."""
    token_ids, spans = [], []
    for part in parts:
        if isinstance(part, int):
            token_ids += [TEXT] * part
        else:
            length = part[0] * part[1] // 4
            spans.append(PictureSpan(len(token_ids), length, (1, *part), "key"))
            token_ids += [PAD] * length
    return Prompt(tuple(token_ids), tuple(spans))


def check(model, prompt):
    ids = torch.tensor([prompt.token_ids])
    grids = torch.tensor([span.grid_thw for span in prompt.spans]) if prompt.spans else None
    expected, delta = model.get_rope_index(ids, (ids == PAD).int(), image_grid_thw=grids)
    positions, next_position = position_ids(prompt, merge_size=2)
    assert positions.dtype == torch.int64
    assert torch.equal(positions, expected[:, 0])
    assert next_position == len(prompt.token_ids) + delta.item()
    if not prompt.spans or prompt.spans[-1].start + prompt.spans[-1].length < len(ids[0]):
        assert next_position == positions.max() + 1


@pytest.mark.parametrize("length", [1, 2, 500])
def test_text_only(model, length):
    check(model, prompt_of(length))
    assert position_ids(prompt_of(length), 2)[1] == length


def test_one_picture_of_every_grid(model):
    for rows, columns in itertools.product(range(2, 41, 2), repeat=2):
        check(model, prompt_of(5, (rows, columns), 11))


@pytest.mark.parametrize("grid", [(2, 400), (400, 2), (72, 70)])
def test_strips_and_large_pictures(model, grid):
    check(model, prompt_of(5, grid, 3))


def test_several_pictures_and_pictures_across_turns(model):
    check(model, prompt_of(4, (8, 12), 2, (8, 12), 2, (2, 2), 30))
    check(model, prompt_of(4, (8, 12), 30, (20, 6), 17, (6, 20), 40))


def test_a_picture_at_either_end(model):
    check(model, prompt_of((4, 6), 3))
    check(model, prompt_of(3, (4, 6), 1))


def test_a_grid_that_does_not_fit_its_span_is_refused():
    wrong = Prompt((TEXT, PAD, PAD), (PictureSpan(1, 2, (1, 4, 6), "key"),))
    with pytest.raises(ValueError, match="does not fill 2"):
        position_ids(wrong, 2)
