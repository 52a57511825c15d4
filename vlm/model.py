"""One loaded model: its parts, what it is, and a check that it computes at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vlm.decoder import Decoder
from vlm.errors import CheckpointError
from vlm.picture_size import PictureGeometry
from vlm.precision import PrecisionPlan
from vlm.prompt import ChatTokenizer
from vlm.vision import VisionTower


@dataclass(frozen=True)
class ModelInfo:
    """What a loaded model is."""

    name: str
    folder: Path
    parameters: int
    """Number of weights; a tied one counts once."""
    weight_bytes: int
    """Of the packed weights in memory; the embedding table stays in its file."""
    context_tokens: int
    """The longest chat the model was made for."""
    precision: PrecisionPlan
    """The one in use: short memory may have forced a smaller one than was asked for."""
    is_bundled: bool
    notice: str = ""
    """What short memory took away, for people; or empty."""


@dataclass(frozen=True)
class GenerationDefaults:
    """What generation_config.json recommends; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


@dataclass(frozen=True, eq=False)
class QwenVL:
    """A Qwen3-VL ready to run. Holds nothing of any conversation."""

    info: ModelInfo
    geometry: PictureGeometry
    tokenizer: ChatTokenizer
    vision: VisionTower
    decoder: Decoder
    generation: GenerationDefaults = GenerationDefaults()


def self_check(model: QwenVL) -> None:
    """Run a small picture and a short prompt once, and warm the kernels up on the way.

    Raises CheckpointError when the result is not finite or says nothing.
    """
    vision = model.vision.config
    side = 2 * vision.merge_size
    ramp = torch.linspace(-1.0, 1.0, side * side * vision.patch_values)
    features = model.vision.encode(ramp.view(side * side, -1), (1, side, side))
    for level in (features.embeddings, *features.deepstack):
        _refuse_nonsense("vision tower", level, model)
    text_ids = model.tokenizer.encode_plain("Hello, world!")
    hidden = torch.cat((features.embeddings, model.decoder.embed(text_ids)))
    visual_index = torch.arange(len(features.embeddings))
    position_ids = torch.arange(len(hidden)).expand(3, -1)
    hidden = model.decoder.forward(
        hidden, position_ids, model.decoder.new_cache(), features.deepstack, visual_index
    )
    _refuse_nonsense("text decoder", model.decoder.logits(hidden[-1:]), model)


def _refuse_nonsense(what: str, values: torch.Tensor, model: QwenVL) -> None:
    if bool(values.isfinite().all()) and float(values.std()) > 0:
        return
    raise CheckpointError(
        f"{model.info.name} was loaded, but its {what} computes no usable numbers in "
        f"{model.info.precision.name} precision. Try --precision fp32; if that fails too, the "
        "weights are damaged: download the model again."
    )
