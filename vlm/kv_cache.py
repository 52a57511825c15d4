"""Keys and values of each conversation, and features of each picture, within byte budgets."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vlm.vision import VisionFeatures

GROWTH = 1.5
BLOCK_TOKENS = 64


class KVCache:
    """Keys and values of one conversation, preallocated and written in place.

    A pass that ends early leaves the first layers longer than the last; `length` counts the
    tokens all layers hold, and `truncate(length)` makes the layers equal again.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self._shape = (kv_heads, head_dim)
        self._dtype = dtype
        self._capacity = 0
        self._lengths = [0] * layers
        self._keys = [torch.empty((kv_heads, 0, head_dim), dtype=dtype) for _ in range(layers)]
        self._values = [torch.empty((kv_heads, 0, head_dim), dtype=dtype) for _ in range(layers)]

    @property
    def length(self) -> int:
        """Tokens that every layer holds."""
        return min(self._lengths)

    @property
    def is_even(self) -> bool:
        """Whether all layers hold the same tokens; False after a pass that ended early."""
        return min(self._lengths) == max(self._lengths)

    @property
    def nbytes(self) -> int:
        """Bytes reserved, used or not."""
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values))

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all; grows by half at least, so appends copy little."""
        if tokens <= self._capacity:
            return
        wanted = max(tokens, int(self._capacity * GROWTH))
        capacity = -(-wanted // BLOCK_TOKENS) * BLOCK_TOKENS
        for layer, used in enumerate(self._lengths):
            self._keys[layer] = self._grown(self._keys[layer], used, capacity)
            self._values[layer] = self._grown(self._values[layer], used, capacity)
        self._capacity = capacity

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return views of a layer's keys and values, each (kv_heads, its length, head_dim)."""
        used = self._lengths[layer]
        return self._keys[layer][:, :used], self._values[layer][:, :used]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v (kv_heads, n, head_dim) after a layer's tokens; return `layer(layer)`."""
        start = self._lengths[layer]
        end = start + k.shape[1]
        self.reserve(end)
        self._keys[layer][:, start:end] = k
        self._values[layer][:, start:end] = v
        self._lengths[layer] = end
        return self.layer(layer)

    def place(self, layer: int, tokens: int) -> tuple[Tensor, Tensor, int]:
        """Count `tokens` more in a layer; return its whole buffers and where to write them.

        Room must have been reserved. The buffers are (kv_heads, capacity, head_dim).
        """
        start = self._lengths[layer]
        self._lengths[layer] = start + tokens
        return self._keys[layer], self._values[layer], start

    def truncate(self, tokens: int) -> None:
        """Forget all after the first `tokens`, in every layer; costs nothing.

        Raises ValueError when a layer holds fewer.
        """
        if not 0 <= tokens <= self.length:
            raise ValueError(f"cannot cut a cache of {self.length} tokens to {tokens}")
        self._lengths = [tokens] * len(self._lengths)

    def _grown(self, tensor: Tensor, used: int, capacity: int) -> Tensor:
        kv_heads, head_dim = self._shape
        larger = torch.empty((kv_heads, capacity, head_dim), dtype=self._dtype)
        larger[:, :used] = tensor[:, :used]
        return larger


@dataclass(frozen=True, eq=False)
class CachedPrefix:
    """A cache taken for one answer; it holds exactly the first `length` keys asked for."""

    kv_cache: KVCache
    length: int


@dataclass(frozen=True, eq=False)
class _Kept:
    kv_cache: KVCache
    keys: tuple[Hashable, ...]


class ConversationCaches:
    """The caches of all conversations: one each, never shared, least recently used out first.

    While an answer runs its cache is out: the caller alone has it, and only its bytes are
    counted here. Safe to read from any thread.
    """

    def __init__(self, budget_bytes: int, new_cache: Callable[[], KVCache]) -> None:
        self._budget_bytes = budget_bytes
        self._new_cache = new_cache
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._out: dict[str, KVCache] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes reserved by all caches, those that are out included."""
        with self._lock:
            return self._kept_bytes() + sum(cache.nbytes for cache in self._out.values())

    @property
    def count(self) -> int:
        """Conversations that have a cache, here or out."""
        with self._lock:
            return len(self._kept.keys() | self._out.keys())

    def take(self, conversation_id: str, keys: Sequence[Hashable]) -> CachedPrefix:
        """Hand out the conversation's cache, cut to the longest valid prefix of `keys`.

        `keys` has one entry per prompt token: a token id, or (picture key, i) for the i-th
        token of a picture. At least one token is left to compute, and a picture is either
        in the prefix whole or not at all.
        """
        with self._lock:
            kept = self._kept.pop(conversation_id, None)
            if kept is None:
                kv_cache, length = self._new_cache(), 0
            else:
                kv_cache, length = kept.kv_cache, common_prefix(kept.keys, keys)
                kv_cache.truncate(length)
            self._out[conversation_id] = kv_cache
            return CachedPrefix(kv_cache, length)

    def give_back(self, conversation_id: str, kv_cache: KVCache, keys: Sequence[Hashable]) -> None:
        """Keep a cache that was taken; `keys` describes every token it holds.

        It is dropped when the conversation was dropped or taken anew meanwhile. Raises
        ValueError, keeping nothing, when the keys do not match the cache's length.
        """
        with self._lock:
            if self._out.get(conversation_id) is not kv_cache:
                return
            del self._out[conversation_id]
            if len(keys) != kv_cache.length or not kv_cache.is_even:
                raise ValueError(
                    f"a cache of {kv_cache.length} tokens was given back with {len(keys)} keys"
                )
            if keys:
                self._kept[conversation_id] = _Kept(kv_cache, tuple(keys))
            while self._kept and self._kept_bytes() > self._budget_bytes:
                self._kept.popitem(last=False)

    def drop(self, conversation_id: str) -> None:
        """Forget a conversation; a cache that is out will not come back."""
        with self._lock:
            self._kept.pop(conversation_id, None)
            self._out.pop(conversation_id, None)

    def free(self) -> int:
        """Forget all caches but those that are out, which come back; return their bytes."""
        with self._lock:
            freed = self._kept_bytes()
            self._kept.clear()
            return freed

    def _kept_bytes(self) -> int:
        return sum(kept.kv_cache.nbytes for kept in self._kept.values())


def common_prefix(cached: Sequence[Hashable], wanted: Sequence[Hashable]) -> int:
    """Count the leading tokens that can be reused: see ConversationCaches.take."""
    length = 0
    for old, new in zip(cached, wanted, strict=False):
        if old != new:
            break
        length += 1
    length = max(0, min(length, len(wanted) - 1))
    for keys in (cached, wanted):
        if length < len(keys):
            length -= _offset_in_picture(keys[length])
    return length


def _offset_in_picture(key: Hashable) -> int:
    """Return how many tokens of the same picture come before this one."""
    return key[1] if isinstance(key, tuple) else 0


class FeatureCache:
    """Vision features by picture key, least recently used out first; safe in any thread."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._kept: OrderedDict[str, VisionFeatures] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all features kept."""
        with self._lock:
            return self._kept_bytes()

    def get(self, key: str) -> VisionFeatures | None:
        """Return a picture's features, or None when they are not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: str, features: VisionFeatures) -> None:
        """Keep a picture's features; those above the whole budget are not kept."""
        with self._lock:
            self._kept.pop(key, None)
            if features.nbytes > self._budget_bytes:
                return
            self._kept[key] = features
            while self._kept_bytes() > self._budget_bytes:
                self._kept.popitem(last=False)

    def clear(self) -> int:
        """Forget all features; return their bytes."""
        with self._lock:
            freed = self._kept_bytes()
            self._kept.clear()
            return freed

    def _kept_bytes(self) -> int:
        return sum(features.nbytes for features in self._kept.values())
