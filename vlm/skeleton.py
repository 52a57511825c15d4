"""The empty model of a config: which tensors a checkpoint must hold, in which shapes.

accelerate builds transformers' own class without memory for its weights, so names, shapes,
ties and rotary frequencies come from the reference implementation, not from a second list.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from torch import Tensor

from vlm.architecture import CONFIG_FILE, check_architecture, read_json
from vlm.errors import CheckpointError

EMBED = "model.language_model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, eq=False)
class Skeleton:
    """What transformers' empty model expects."""

    shapes: dict[str, tuple[int, ...]]
    """Every parameter by name; the tied lm_head is not among them."""
    is_tied: bool
    """True when lm_head is the embedding table."""
    text_inv_freq: Tensor
    """(head_dim / 2,) fp32, which no checkpoint holds."""
    vision_inv_freq: Tensor
    """(head_dim / 4,) fp32 of the vision tower."""

    @property
    def parameters(self) -> int:
        """Number of weights, a tied one counted once."""
        return sum(prod(shape) for shape in self.shapes.values())


def build_skeleton(folder: Path) -> Skeleton:
    """Build the empty model of a folder's config.json. Raises CheckpointError.

    Takes no memory for weights and some seconds for the first import of transformers.
    """
    config_dict = read_json(folder / CONFIG_FILE)
    check_architecture(config_dict, str(folder))
    from accelerate import init_empty_weights
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    try:
        config = Qwen3VLConfig.from_dict(config_dict)
        # Rotary frequencies are in no checkpoint: they must be real, not empty.
        with init_empty_weights(include_buffers=False):
            model = Qwen3VLForConditionalGeneration(config)
        model.tie_weights()
    except Exception as error:  # the classes check with errors of many kinds
        raise CheckpointError(
            f"{folder / CONFIG_FILE} describes no model that can be built ({error}); "
            "download the model again."
        ) from error
    decoder, vision = model.model.language_model, model.model.visual
    is_tied = model.lm_head.weight is decoder.embed_tokens.weight
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    if is_tied:
        del shapes[LM_HEAD]
    return Skeleton(shapes, is_tied, decoder.rotary_emb.inv_freq, vision.rotary_pos_emb.inv_freq)
