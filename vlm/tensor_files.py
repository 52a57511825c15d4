"""The tensors of a checkpoint's safetensors files: accounted for, then read one by one.

A tensor is a view into the mapped file until it is packed; closing the file gives its pages
back, so reading a model never holds two copies of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vlm.errors import CheckpointError
from vlm.hub_cache import shard_names
from vlm.skeleton import EMBED, LM_HEAD, Skeleton

FLOAT_BYTES = {"BF16": 2, "F16": 2, "F32": 4}
NAMES_SHOWN = 12


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies and what it looks like, from the files' headers."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    """safetensors' name, such as "BF16"."""

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return prod(self.shape) * FLOAT_BYTES[self.dtype]


class TensorFiles:
    """All tensors of one checkpoint folder, by name."""

    def __init__(self, folder: Path) -> None:
        """Read the headers of all shards. Raises CheckpointError for a missing or cut one."""
        self.folder = folder
        self.tensors: dict[str, StoredTensor] = {}
        for shard in shard_names(folder):
            with _open(folder / shard) as file:
                for name in file.keys():  # noqa: SIM118  # safe_open is no dict
                    self._add(name, file.get_slice(name), folder / shard)

    def _add(self, name: str, stored: Any, path: Path) -> None:
        if name in self.tensors:
            raise CheckpointError(
                f"{path} and {self.tensors[name].file.name} both hold {name}; "
                "download the model again."
            )
        self.tensors[name] = StoredTensor(path, tuple(stored.get_shape()), stored.get_dtype())

    def account(self, skeleton: Skeleton) -> None:
        """Check that every expected tensor is here, in its shape, and no other one.

        Raises CheckpointError with the lists.
        """
        expected = skeleton.shapes
        if skeleton.is_tied and LM_HEAD in self.tensors:
            self._check_tie()
        found = {n: t for n, t in self.tensors.items() if not (skeleton.is_tied and n == LM_HEAD)}
        faults = [
            _listed("missing", sorted(expected.keys() - found.keys())),
            _listed("unexpected", sorted(found.keys() - expected.keys())),
            _listed(
                "of another shape than config.json says",
                [
                    f"{name} {list(found[name].shape)} instead of {list(shape)}"
                    for name, shape in expected.items()
                    if name in found and found[name].shape != shape
                ],
            ),
            _listed(
                "not in bf16, fp16 or fp32",
                [f"{n} ({t.dtype})" for n, t in found.items() if t.dtype not in FLOAT_BYTES],
            ),
        ]
        if any(faults):
            raise CheckpointError(
                f"The weights in {self.folder} do not fit the model:"
                f"{''.join(faults)}\nDownload the model again, or check that all files belong "
                "together."
            )

    def _check_tie(self) -> None:
        """A checkpoint that ties lm_head may still hold it, but then equal to the table."""
        with self.reading([LM_HEAD, EMBED]) as read:
            if not (EMBED in self.tensors and read.finite(LM_HEAD).equal(read.finite(EMBED))):
                raise CheckpointError(
                    f"config.json in {self.folder} ties lm_head to the embeddings, but the two "
                    "differ in the weights. Set tie_word_embeddings to what the model was "
                    "trained with, or download it again."
                )

    @contextmanager
    def reading(self, names: list[str]) -> Iterator[ReadTensor]:
        """Map the files of some tensors while the block runs, and read them by name."""
        files: dict[Path, Any] = {}
        try:
            for name in names:
                path = self.tensors[name].file
                if path not in files:
                    files[path] = _open(path).__enter__()
            yield ReadTensor(self, files)
        finally:
            for file in files.values():
                file.__exit__(None, None, None)

    def mapped(self, name: str) -> Tensor:
        """Return a tensor that stays mapped: its pages come from the file when used."""
        with self.reading([name]) as read:
            return read(name)


class ReadTensor:
    """Reads tensors of open files by name, as views that end with the files' mapping."""

    def __init__(self, files: TensorFiles, handles: dict[Path, Any]) -> None:
        self._files = files
        self._handles = handles

    def __call__(self, name: str) -> Tensor:
        """Return a view (shape and dtype as stored). Raises CheckpointError."""
        stored = self._files.tensors[name]
        try:
            tensor: Tensor = self._handles[stored.file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{name} cannot be read from {stored.file} ({error}); download it again."
            ) from error
        return tensor

    def finite(self, name: str) -> Tensor:
        """Return the same after a look at all its numbers. Raises CheckpointError."""
        tensor = self(name)
        # Not every CPU's attention hands a NaN on, so the model's output would not tell. The sum is
        # quick, but may overflow 16 bits.
        if not bool(tensor.sum().isfinite()) and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{name} in {self._files.tensors[name].file} holds numbers that are not finite: "
                "the file is damaged. Delete it and download it again."
            )
        return tensor


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing, but the index names it; download the model again."
        ) from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is cut off or damaged ({error}); delete it and download it again."
        ) from error


def _listed(what: str, names: list[str]) -> str:
    """Return one line of a fault list, or nothing when there is no fault."""
    if not names:
        return ""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"\n- {len(names)} {what}: {', '.join(names[:NAMES_SHOWN])}{more}"
