"""A checkpoint folder -> a model ready to run: planned for the memory, accounted for, packed.

Laid out like a hub snapshot: config.json, one or several safetensors, preprocessor_config.json,
generation_config.json, tokenizer.json and a chat template.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm.architecture import CONFIG_FILE, read_json
from vlm.decoder import Decoder, DecoderWeights
from vlm.decoder_config import DecoderConfig
from vlm.errors import CheckpointError
from vlm.linear import PackedLinear, available_kinds, int8_input_levels
from vlm.memory import free_memory
from vlm.memory_plan import MemoryPlan, WeightUnit, plan_memory, smaller_plans
from vlm.model import GenerationDefaults, ModelInfo, QwenVL, self_check
from vlm.packing import (
    BLOCK,
    DEEPSTACK,
    HEAD,
    LAST_NORM,
    LAYER,
    MERGER,
    PATCH_EMBED,
    POSITIONS,
    UnitPacker,
    weight_units,
)
from vlm.picture_size import PictureGeometry
from vlm.precision import PrecisionPlan
from vlm.prompt import ChatTokenizer
from vlm.skeleton import EMBED, LM_HEAD, Skeleton, build_skeleton
from vlm.tensor_files import TensorFiles
from vlm.vision import VisionConfig, VisionTower, VisionWeights

logger = logging.getLogger(__name__)

OnLoadProgress = Callable[[int, int], None]
"""Told (done_bytes, total_bytes) of the weights read; may raise to stop."""

WORKING_TOKENS = 2048
"""Tokens of chat and patches of a picture that must fit beside the weights, at least."""
PACK_BYTES = 2 * 4 * 32 * 2**20
"""Copies one thread makes of the matrix it packs."""
MAX_PACK_THREADS = 4


def load_model(
    folder: Path,
    plan: PrecisionPlan,
    on_progress: OnLoadProgress = lambda done_bytes, total_bytes: None,
    *,
    name: str = "",
    is_bundled: bool = False,
    available_bytes: int | None = None,
) -> QwenVL:
    """Load a checkpoint, in a smaller precision or partly from disk when memory is short.

    Args:
        folder: laid out like a hub snapshot.
        plan: the precision wanted.
        on_progress: told the bytes read; what it raises ends the loading.
        name: what to call the model; the folder's name by default.
        available_bytes: memory to take; by default what is free, a container's limit included.
    Raises: CheckpointError, MemoryLimitError.
    """
    config = read_json(folder / CONFIG_FILE)
    skeleton = build_skeleton(folder)
    decoder_config, vision_config = (
        DecoderConfig.from_config(config),
        VisionConfig.from_config(config),
    )
    tokenizer, geometry = ChatTokenizer.from_folder(folder), PictureGeometry.from_folder(folder)
    _check_parts(config, tokenizer, geometry, vision_config)
    files = TensorFiles(folder)
    files.account(skeleton)
    units = weight_units(skeleton)
    threads = min(MAX_PACK_THREADS, torch.get_num_threads())
    memory = plan_memory(
        units,
        [plan, *smaller_plans(plan, available_kinds())],
        free_memory().available_bytes if available_bytes is None else available_bytes,
        working_bytes(decoder_config, vision_config, threads),
    )
    if memory.notice:
        logger.warning("%s", memory.notice)
    loader = _Loader(files, units, memory, on_progress)
    decoder, vision = loader.load(decoder_config, vision_config, threads)
    _check_rotary(skeleton, decoder, vision)
    info = ModelInfo(
        name=name or folder.resolve().name,
        folder=folder,
        parameters=skeleton.parameters,
        weight_bytes=loader.weight_bytes,
        context_tokens=decoder_config.context_tokens,
        precision=memory.precision,
        is_bundled=is_bundled,
        notice=memory.notice,
    )
    model = QwenVL(info, geometry, tokenizer, vision, decoder, _generation_defaults(folder))
    self_check(model)
    return model


def working_bytes(decoder: DecoderConfig, vision: VisionConfig, threads: int) -> int:
    """Return what answering takes beside the weights, or packing while loading: the larger."""
    kv_token = 2 * decoder.layers * decoder.kv_heads * decoder.head_dim
    decoder_row = 6 * decoder.hidden_size + 3 * decoder.intermediate_size
    vision_row = 6 * vision.hidden_size + 2 * vision.intermediate_size
    answering = 4 * (WORKING_TOKENS * (kv_token + vision_row) + 256 * decoder_row)
    largest = decoder.hidden_size * max(decoder.vocab_size, 2 * decoder.intermediate_size)
    return max(answering + 4 * decoder.vocab_size, threads * min(PACK_BYTES, 8 * largest))


class _Loader:
    """Packs all units of one checkpoint, several at once."""

    def __init__(
        self,
        files: TensorFiles,
        units: list[WeightUnit],
        memory: MemoryPlan,
        on_progress: OnLoadProgress,
    ) -> None:
        self._files = files
        self._units = {unit.name: unit for unit in units}
        self._memory = memory
        self._on_progress = on_progress
        self._packed: dict[str, Any] = {}
        self._used: set[str] = {EMBED}
        self.weight_bytes = 0

    def load(
        self, decoder: DecoderConfig, vision: VisionConfig, threads: int
    ) -> tuple[Decoder, VisionTower]:
        """Pack everything and put it together. Raises CheckpointError."""
        self._pack_all(threads)
        unused = self._files.tensors.keys() - self._used
        if unused - {f"{HEAD}.weight"}:
            raise CheckpointError(
                f"{self._files.folder} holds weights this app has no use for: "
                f"{', '.join(sorted(unused)[:12])}. Use a dense Qwen3-VL Instruct model."
            )
        if LM_HEAD in self._files.tensors:  # else the head was packed from the table
            # Through a mapping of its own: looking at it all must not keep it all in memory.
            with self._files.reading([EMBED]) as read:
                read.finite(EMBED)
        packed = self._packed
        decoder_weights = DecoderWeights(
            embed=self._files.mapped(EMBED),
            layers=tuple(packed[f"{LAYER}.{i}"] for i in range(decoder.layers)),
            norm=packed[LAST_NORM],
            lm_head=packed[HEAD],
        )
        vision_weights = VisionWeights(
            patch_embed=packed[PATCH_EMBED],
            positions=packed[POSITIONS],
            blocks=tuple(packed[f"{BLOCK}.{i}"] for i in range(vision.layers)),
            merger=packed[MERGER],
            deepstack=tuple(
                packed[f"{DEEPSTACK}.{i}"] for i in range(len(vision.deepstack_layers))
            ),
        )
        self.weight_bytes = sum(_weight_bytes(weights) for weights in packed.values())
        return Decoder(decoder, decoder_weights), VisionTower(vision, weights=vision_weights)

    def _pack_all(self, threads: int) -> None:
        """Pack the units in threads of their own, the largest first."""
        if "int8" in available_kinds():
            int8_input_levels()  # its first call measures; threads must not do that at once
        jobs = sorted(self._units.values(), key=lambda unit: -unit.matrix_elements)
        total = sum(self._stored_bytes(unit) for unit in jobs)
        done = 0
        self._on_progress(done, total)
        own_threads = torch.get_num_threads()
        # One thread per unit keeps all cores busy; torch's own threads would only add to that.
        torch.set_num_threads(1)
        pool = ThreadPoolExecutor(threads, thread_name_prefix="pack")
        try:
            futures = {pool.submit(self._pack, unit): unit for unit in jobs}
            for future in as_completed(futures):
                self._take(futures[future], future)
                done += self._stored_bytes(futures[future])
                self._on_progress(done, total)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            torch.set_num_threads(own_threads)

    def _take(self, unit: WeightUnit, future: Future[tuple[Any, set[str]]]) -> None:
        self._packed[unit.name], used = future.result()
        self._used |= used

    def _names(self, unit: WeightUnit) -> list[str]:
        names = [
            name
            for name in self._files.tensors
            if name == unit.name or name.startswith(f"{unit.name}.")
        ]
        return names or [EMBED]  # the head of a model that ties it to the embeddings

    def _stored_bytes(self, unit: WeightUnit) -> int:
        return sum(self._files.tensors[name].nbytes for name in self._names(unit))

    def _pack(self, unit: WeightUnit) -> tuple[Any, set[str]]:
        """Read and pack one unit; its files are mapped only meanwhile."""
        precision = self._memory.precision
        kind = precision.vision if unit.part == "vision" else precision.language
        is_offloaded = unit.name in self._memory.offloaded
        with self._files.reading(self._names(unit)) as read:
            packer = UnitPacker(self._files, read.finite, kind, is_offloaded)
            return _pack_unit(packer, unit.name), packer.used


def _pack_unit(packer: UnitPacker, name: str) -> Any:
    if name.startswith(f"{LAYER}."):
        return packer.layer(name)
    if name.startswith(f"{BLOCK}."):
        return packer.block(name)
    if name.startswith((MERGER, DEEPSTACK)):
        return packer.merger(name)
    if name == PATCH_EMBED:
        return packer.linear(name, has_bias=True)
    if name == HEAD:
        return packer.head()
    return packer.vector(name)


def _weight_bytes(weights: Any) -> int:
    """Add up the packed bytes of a unit."""
    if isinstance(weights, Tensor):
        return weights.nbytes
    if dataclasses.is_dataclass(weights):
        return sum(_weight_bytes(getattr(weights, f.name)) for f in dataclasses.fields(weights))
    packed: PackedLinear = weights
    return packed.weight_bytes


def _check_parts(
    config: dict[str, Any],
    tokenizer: ChatTokenizer,
    geometry: PictureGeometry,
    vision: VisionConfig,
) -> None:
    """Refuse files of different models in one folder. Raises CheckpointError."""
    pairs = {
        "image_token_id": (config.get("image_token_id"), tokenizer.image_token_id),
        "patch_size": (vision.patch_size, geometry.patch_size),
        "temporal_patch_size": (vision.temporal_patch_size, geometry.temporal_patch_size),
        "merge_size": (vision.merge_size, geometry.merge_size),
    }
    for what, (in_config, elsewhere) in pairs.items():
        if in_config != elsewhere:
            raise CheckpointError(
                f"The model's files do not belong together: {what} is {in_config} in config.json "
                f"but {elsewhere} in its tokenizer or preprocessor_config.json. Download it again."
            )


def _check_rotary(skeleton: Skeleton, decoder: Decoder, vision: VisionTower) -> None:
    """Compare the rotary frequencies with the reference's: no checkpoint holds them."""
    pairs = {
        "text": (skeleton.text_inv_freq, decoder.inv_freq),
        "vision": (skeleton.vision_inv_freq, vision.inv_freq),
    }
    for what, (expected, ours) in pairs.items():
        if expected.shape != ours.shape or not torch.allclose(expected, ours, rtol=1e-6, atol=0):
            raise CheckpointError(
                f"The rotary frequencies of the {what} part differ from the reference "
                "implementation's; config.json asks for a kind of positions that is not "
                "supported. Use a dense Qwen3-VL Instruct model."
            )


def _generation_defaults(folder: Path) -> GenerationDefaults:
    path = folder / "generation_config.json"
    values = read_json(path) if path.is_file() else {}
    return GenerationDefaults(values.get("temperature"), values.get("top_p"), values.get("top_k"))
