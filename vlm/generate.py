"""Compute one answer: pictures -> vision -> prefill -> decode.

Knows nothing of threads or queues: it reports to a Listener, whose check() may raise Stopped
between any two layers. Whatever ends an answer, the cache of its conversation holds exactly
the tokens that went through the whole model, or is dropped.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from vlm.chat import AnswerStats, AskRequest, FinishReason, Piece
from vlm.detokenize import TextStream
from vlm.errors import Stopped
from vlm.kv_cache import ConversationCaches, FeatureCache, KVCache
from vlm.model import QwenVL
from vlm.patches import MeasuredPicture, measure_picture
from vlm.positions import position_ids
from vlm.prompt import PictureSpan, Prompt
from vlm.request_checks import AnswerLimits, check_request, room_for_answer
from vlm.sampling import LoopGuard, Sampler
from vlm.stats import AnswerClock
from vlm.vision import VisionFeatures

ROOM_TOKENS = 256
"""Answer tokens a cache has room for from the start; a longer answer makes it grow."""

LOOP_NOTICE = "The answer began to repeat itself, so it was stopped."


class Listener(Protocol):
    """Who hears about an answer and may end it."""

    def emit(self, piece: Piece) -> None:
        """Take a piece of the answer."""

    def check(self) -> None:
        """Raise Stopped when the answer is no longer wanted."""


class Generator:
    """One model with the caches of its conversations; computes one answer at a time."""

    def __init__(
        self,
        model: QwenVL,
        caches: ConversationCaches,
        features: FeatureCache,
        limits: AnswerLimits,
    ) -> None:
        self.model = model
        self.caches = caches
        self.features = features
        self.limits = limits

    @torch.inference_mode()
    def answer(self, request: AskRequest, listener: Listener, clock: AnswerClock) -> AnswerStats:
        """Answer one request, telling the listener piece by piece; also when it is stopped.

        Raises VLMError for what a person may cause. After any other exception too the next
        request works: the conversation's cache is dropped then.
        """
        run = _Run(self, request, listener, clock)
        try:
            reason = run.compute()
        except Stopped:
            reason = "cancelled"
        return clock.stats(reason, tuple(run.token_ids))


class _Run:
    """One answer on its way."""

    def __init__(
        self, generator: Generator, request: AskRequest, listener: Listener, clock: AnswerClock
    ) -> None:
        self.token_ids: list[int] = []
        """The answer so far; the last token may not have been forwarded."""
        self._generator = generator
        self._model = generator.model
        self._limits = generator.limits
        self._request = request
        self._listener = listener
        self._clock = clock

    def compute(self) -> FinishReason:
        """Go from the request to the last token. Raises Stopped and VLMError."""
        request, listener = self._request, self._listener
        check_request(request, self._limits)
        pictures = self._measure_pictures()
        prompt = self._model.tokenizer.encode(request.messages, pictures)
        max_new_tokens = room_for_answer(request, prompt, self._limits)
        listener.check()
        keys: list[Hashable] = prompt.keys()
        caches, conversation_id = self._generator.caches, request.conversation_id
        prefix = caches.take(conversation_id, keys)
        forwarded = _Forwarded(prefix.kv_cache, keys[: prefix.length])
        self._clock.prompt_tokens = len(keys)
        self._clock.visual_tokens = sum(span.length for span in prompt.spans)
        self._clock.cached_tokens = prefix.length
        try:
            prefix.kv_cache.reserve(len(keys) + min(max_new_tokens, ROOM_TOKENS))
            features = self._encode_pictures(prompt, pictures, prefix.length)
            positions, next_position = position_ids(prompt, self._model.geometry.merge_size)
            logits = self._prefill(prompt, positions, features, forwarded)
            reason = self._decode(logits, next_position, max_new_tokens, forwarded)
        except Stopped:
            caches.give_back(conversation_id, *forwarded.cut())
            raise
        except BaseException:
            caches.drop(conversation_id)
            raise
        caches.give_back(conversation_id, *forwarded.cut())
        return reason

    def _measure_pictures(self) -> list[MeasuredPicture]:
        """Find the sizes of the pictures of all messages, in order."""
        geometry, tokens = self._model.geometry, self._request.max_visual_tokens
        return [
            measure_picture(picture, geometry, tokens)
            for message in self._request.messages
            for picture in message.pictures
        ]

    def _encode_pictures(
        self, prompt: Prompt, pictures: Sequence[MeasuredPicture], cached_tokens: int
    ) -> list[tuple[PictureSpan, VisionFeatures]]:
        """Return the features of the pictures that are not in the cached prefix.

        Passes on, before it, what is to be said of the question's own pictures.
        """
        wanted = [
            (span, picture)
            for span, picture in zip(prompt.spans, pictures, strict=True)
            if span.start + span.length > cached_tokens
        ]
        newest = self._request.messages[-1].pictures
        notices = dict.fromkeys(notice for picture in newest for notice in picture.notices)
        self._listener.emit(Piece("vision" if wanted else "prefill", notices=tuple(notices)))
        tokens = [picture.visual_tokens for _, picture in wanted]
        encoded = []
        with self._clock.vision():
            for i, (span, picture) in enumerate(wanted):
                done, share = sum(tokens[:i]) / sum(tokens), tokens[i] / sum(tokens)
                encoded.append((span, self._encode(picture, done, share)))
        return encoded

    def _encode(self, picture: MeasuredPicture, done: float, share: float) -> VisionFeatures:
        """Encode one picture, or take its features from the cache."""
        features = self._generator.features.get(picture.key)
        if features is None:
            features = self._model.vision.encode(
                picture.patch().pixel_values,
                picture.grid_thw,
                partial(self._progress, "vision", done, share),
            )
            self._generator.features.put(picture.key, features)
        self._progress("vision", done, share, 1.0)
        return features

    def _prefill(
        self,
        prompt: Prompt,
        positions: Tensor,
        features: Sequence[tuple[PictureSpan, VisionFeatures]],
        forwarded: _Forwarded,
    ) -> Tensor:
        """Forward the prompt tokens after the cached prefix; return the last one's logits."""
        start, end = forwarded.length, len(prompt.token_ids)
        keys, rows = prompt.keys(), self._limits.prefill_rows
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
            return self._model.decoder.logits(hidden[-1:])[0]

    def _decode(
        self, logits: Tensor, next_position: int, max_new_tokens: int, forwarded: _Forwarded
    ) -> FinishReason:
        """Choose tokens one by one and show their text. Raises GenerationError on NaN."""
        sampler = Sampler(self._request.sampling, logits.shape[0])
        guard = LoopGuard() if self._limits.loop_guard else None
        text = TextStream(self._model.tokenizer)
        while True:
            token_id = sampler.next(logits)
            self._clock.token()
            if token_id in self._model.tokenizer.eos_token_ids:
                return "stop"
            self.token_ids.append(token_id)
            # A character that is never completed is never shown: the stream is not flushed.
            self._say(text.push(token_id))
            if guard is not None and guard.push(token_id):
                self._listener.emit(Piece("decode", notices=(LOOP_NOTICE,)))
                return "loop"
            if len(self.token_ids) >= max_new_tokens:
                return "length"
            logits = self._forward_token(token_id, next_position, forwarded)
            next_position += 1

    def _forward_token(self, token_id: int, position: int, forwarded: _Forwarded) -> Tensor:
        """Forward one chosen token; return the logits (vocab,) of the next."""
        decoder = self._model.decoder
        hidden = decoder.forward(
            decoder.embed([token_id]),
            torch.full((3, 1), position),
            forwarded.kv_cache,
            between_layers=lambda fraction: self._listener.check(),
        )
        forwarded.add([token_id])
        return decoder.logits(hidden)[0]

    def _progress(
        self, stage: Literal["vision", "prefill"], done: float, share: float, fraction: float
    ) -> None:
        """Tell how far a stage is: `done` before this step, and a fraction of its share."""
        self._listener.check()
        self._listener.emit(Piece(stage, progress=done + share * fraction))

    def _say(self, text: str) -> None:
        if text:
            self._listener.emit(Piece("decode", text=text))


class _Forwarded:
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
