"""Forward a prompt through the model: pictures -> vision features -> prefill.

Knows nothing of threads or queues: it reports to a Listener, whose check() may raise Stopped
between any two layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from vlm.chat import AskRequest, Piece
from vlm.kv_cache import FeatureCache, KVCache
from vlm.model import QwenVL
from vlm.patches import MeasuredPicture, measure_picture
from vlm.positions import position_ids
from vlm.prompt import PictureSpan, Prompt
from vlm.stats import AnswerClock
from vlm.vision import VisionFeatures


class Listener(Protocol):
    """Who hears about an answer and may end it."""

    def emit(self, piece: Piece) -> None:
        """Take a piece of the answer."""

    def check(self) -> None:
        """Raise Stopped when the answer is no longer wanted."""


class Forwarded:
    """A conversation's cache with one key for each token that went through all layers."""

    def __init__(self, kv_cache: KVCache, keys: list[Hashable]) -> None:
        self.kv_cache = kv_cache
        self._keys = keys

    @property
    def length(self) -> int:
        """Tokens that went through all layers."""
        return len(self._keys)

    def add(self, keys: Sequence[Hashable]) -> None:
        """Note that the whole model has forwarded these tokens."""
        self._keys.extend(keys)

    def cut(self) -> tuple[KVCache, list[Hashable]]:
        """Take away what a stopped pass left in its first layers."""
        self.kv_cache.truncate(self.length)
        return self.kv_cache, self._keys


class PromptPass:
    """Brings the prompts of one answer into its conversation's cache."""

    def __init__(
        self,
        model: QwenVL,
        features: FeatureCache,
        prefill_rows: int,
        listener: Listener,
        clock: AnswerClock,
    ) -> None:
        """Remember where to work and whom to tell.

        prefill_rows: prompt tokens forwarded at once.
        """
        self._model, self._features, self._prefill_rows = model, features, prefill_rows
        self._listener, self._clock = listener, clock

    def forward(
        self,
        prompt: Prompt,
        pictures: Sequence[MeasuredPicture],
        forwarded: Forwarded,
        end: int,
    ) -> tuple[Tensor, int]:
        """Forward the prompt's tokens from those already forwarded to `end`.

        Returns the last rows (n, hidden_size), none where nothing was left to do, and the
        position of the token after the prompt. Raises Stopped.
        """
        features = self._encode_pictures(prompt, pictures, forwarded.length)
        positions, next_position = position_ids(prompt, self._model.geometry.merge_size)
        return self._prefill(prompt, positions, features, forwarded, end), next_position

    def measure(self, request: AskRequest) -> list[MeasuredPicture]:
        """Find the sizes of the pictures of all messages, in order."""
        geometry, tokens = self._model.geometry, request.max_visual_tokens
        return [
            measure_picture(picture, geometry, tokens)
            for message in request.messages
            for picture in message.pictures
        ]

    def _encode_pictures(
        self, prompt: Prompt, pictures: Sequence[MeasuredPicture], cached_tokens: int
    ) -> list[tuple[PictureSpan, VisionFeatures]]:
        """Return the features of the pictures that are not in the cached prefix."""
        wanted = [
            (span, picture)
            for span, picture in zip(prompt.spans, pictures, strict=True)
            if span.start + span.length > cached_tokens
        ]
        self._listener.emit(Piece("vision" if wanted else "prefill"))
        tokens = [picture.visual_tokens for _, picture in wanted]
        encoded = []
        with self._clock.vision():
            for i, (span, picture) in enumerate(wanted):
                done, share = sum(tokens[:i]) / sum(tokens), tokens[i] / sum(tokens)
                encoded.append((span, self._encode(picture, done, share)))
        return encoded

    def _encode(self, picture: MeasuredPicture, done: float, share: float) -> VisionFeatures:
        """Encode one picture, or take its features from the cache."""
        features = self._features.get(picture.key)
        if features is None:
            features = self._model.vision.encode(
                picture.patch().pixel_values,
                picture.grid_thw,
                partial(self._progress, "vision", done, share),
            )
            self._features.put(picture.key, features)
            self._clock.encoded_tokens += picture.visual_tokens
        self._progress("vision", done, share, 1.0)
        return features

    def _prefill(
        self,
        prompt: Prompt,
        positions: Tensor,
        features: Sequence[tuple[PictureSpan, VisionFeatures]],
        forwarded: Forwarded,
        end: int,
    ) -> Tensor:
        """Forward the prompt tokens from the cached prefix to `end`, some rows at a time."""
        start = forwarded.length
        keys, rows = prompt.keys(), self._prefill_rows
        hidden = torch.empty(0)
        with self._clock.prefill():
            for first in range(start, end, rows):
                last = min(first + rows, end)
                done, share = (first - start) / (end - start), (last - first) / (end - start)
                hidden = self._model.decoder.embed(prompt.token_ids[first:last])
                index, levels = _place_features(hidden, features, first)
                hidden = self._model.decoder.forward(
                    hidden,
                    positions[:, first:last],
                    forwarded.kv_cache,
                    levels,
                    index,
                    partial(self._progress, "prefill", done, share),
                )
                forwarded.add(keys[first:last])
                self._clock.prefilled_tokens += last - first
        return hidden

    def _progress(
        self, stage: Literal["vision", "prefill"], done: float, share: float, fraction: float
    ) -> None:
        """Tell how far a stage is: `done` before this step, and a fraction of its share."""
        self._listener.check()
        self._listener.emit(Piece(stage, progress=done + share * fraction))


def _place_features(
    hidden: Tensor, features: Sequence[tuple[PictureSpan, VisionFeatures]], first: int
) -> tuple[Tensor | None, list[Tensor]]:
    """Write the picture embeddings that belong into hidden (n, d), whose row 0 is token `first`.

    Returns the rows that are visual, and per deepstack level what belongs to exactly them.
    """
    rows: list[Tensor] = []
    parts: list[list[Tensor]] = []
    for span, picture in features:
        begin = max(span.start, first)
        end = min(span.start + span.length, first + hidden.shape[0])
        if begin < end:
            here = slice(begin - span.start, end - span.start)
            hidden[begin - first : end - first] = picture.embeddings[here]
            rows.append(torch.arange(begin - first, end - first))
            parts.append([level[here] for level in picture.deepstack])
    if not rows:
        return None, []
    return torch.cat(rows), [torch.cat(level) for level in zip(*parts, strict=True)]
