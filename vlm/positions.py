"""Where each token of a prompt stands in time, height and width (Qwen3-VL's M-RoPE).

The numbers are those of transformers' Qwen3VLModel.get_rope_index, without the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.prompt import PictureSpan, Prompt


def position_ids(prompt: Prompt, merge_size: int) -> tuple[Tensor, int]:
    """Return the positions, (3, n) int64 for time, height and width, and the next token's.

    A text token moves all three on by one. A picture's tokens share one time, spread over rows
    and columns, and move the text after them on by the longer side of the picture.
    """
    parts: list[Tensor] = []
    done, position = 0, 0
    for span in prompt.spans:
        parts.append(_line(position, span.start - done))
        position += span.start - done
        parts.append(_grid(position, span, merge_size))
        position += max(span.grid_thw[1:]) // merge_size
        done = span.start + span.length
    parts.append(_line(position, len(prompt.token_ids) - done))
    return torch.cat(parts, dim=1), position + len(prompt.token_ids) - done


def _line(first: int, count: int) -> Tensor:
    return torch.arange(first, first + count).expand(3, count)


def _grid(first: int, span: PictureSpan, merge_size: int) -> Tensor:
    """Positions of one picture's visual tokens, row by row, (3, span.length) int64."""
    frames, rows, columns = (
        span.grid_thw[0],
        span.grid_thw[1] // merge_size,
        span.grid_thw[2] // merge_size,
    )
    if frames * rows * columns != span.length:
        raise ValueError(f"a grid of {span.grid_thw} does not fill {span.length} visual tokens")
    places = torch.cartesian_prod(torch.arange(frames), torch.arange(rows), torch.arange(columns))
    return places.reshape(-1, 3).T + first
