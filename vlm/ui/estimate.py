"""Estimate what the question in the input will cost, and whether it fits.

Tokens of pictures are exact; those of words are measured where an answer told them, else
guessed on the high side. Seconds come from measured rates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from vlm.chat import AnswerStats, Capacity, MemoryReading, Rates
from vlm.errors import PictureError
from vlm.picture_size import PictureGeometry, fit_size
from vlm.request_checks import TEXT_TOKENS
from vlm.ui.conversation import Turn

Size = tuple[int, int]
"""Width and height in px."""
Trouble = Literal["too_long", "memory", "cut_off"]

TOKEN_BYTES = 3
"""Bytes of UTF-8 text per token: fewer than most texts have, so the guess is high."""
TURN_TOKENS = 10
"""What the chat template writes around a question and its answer."""


@dataclass(frozen=True)
class Reading:
    """How far the pictures in the input have been read before they are sent."""

    progress: float
    """0..1"""
    left_s: float | None = None
    is_done: bool = False


@dataclass(frozen=True)
class Question:
    """What is about to be asked, after which turns, and how."""

    sizes: tuple[Size, ...]
    """Of the pictures in the input."""
    text: str
    turns: tuple[Turn, ...]
    """The answered turns before it."""
    max_visual_tokens: int
    new_tokens: int
    """The longest answer allowed."""
    system: str = ""
    """The system prompt."""
    is_cut: bool = False
    """Whether turns were dropped since the last answer, which says too much of the chat then."""
    is_read: bool = False
    """Whether its pictures, and the chat before them, have been read ahead."""


@dataclass(frozen=True)
class Cost:
    """What a question costs a model of a certain capacity."""

    question: Question
    capacity: Capacity

    @cached_property
    def visual_tokens(self) -> int:
        """Visual tokens of the pictures in the input."""
        return self._visual(self.question.sizes)

    @cached_property
    def prompt_tokens(self) -> int:
        """The whole chat with the question."""
        return self._chat_words + self._chat_visual + self._question_words + self.visual_tokens

    @property
    def unread_visual_tokens(self) -> int:
        """Visual tokens that the vision tower has yet to encode."""
        if self.question.is_read:
            return 0
        return self.visual_tokens + (0 if self._is_chat_cached else self._chat_visual)

    @property
    def unread_tokens(self) -> int:
        """Prompt tokens that have yet to be forwarded."""
        if self.question.is_read:
            return self._question_words
        cached = self._chat_words + self._chat_visual if self._is_chat_cached else 0
        return self.prompt_tokens - cached

    def first_word_s(self, rates: Rates) -> float | None:
        """Seconds to the first word when nobody else asks; None where a rate is not measured."""
        if rates.prefill_tps is None:
            return None
        read_s = self.unread_tokens / rates.prefill_tps
        if rates.decode_tps:
            read_s = max(read_s, 1 / rates.decode_tps)  # all weights are read at least once
        if not self.unread_visual_tokens:
            return read_s
        if rates.vision_tps is None:
            return None
        return self.unread_visual_tokens / rates.vision_tps + read_s

    @property
    def answer_room(self) -> int:
        """Tokens the context leaves to the answer; 0 or less when the question does not fit."""
        limit, visual = self.capacity.context_tokens, self._chat_visual + self.visual_tokens
        if visual > limit - min(TEXT_TOKENS, limit // 8):
            return 0
        return limit - self.prompt_tokens

    @property
    def need_bytes(self) -> int:
        """Memory that the question and its longest answer take more than is taken now."""
        kept = self._chat_words + self._chat_visual if self._is_chat_cached else 0
        tokens = min(self.prompt_tokens + self.question.new_tokens, self.capacity.context_tokens)
        return max(0, tokens - kept) * self.capacity.kv_token_bytes

    def trouble(self, spare_bytes: int) -> Trouble | None:
        """Say what would go wrong; `spare_bytes`: the memory that may be taken."""
        if self.answer_room <= 0:
            return "too_long"
        if self.need_bytes > spare_bytes:
            return "memory"
        return "cut_off" if self.answer_room < self.question.new_tokens else None

    @cached_property
    def _question_words(self) -> int:
        return _text_tokens(self.question.text) + TURN_TOKENS

    @cached_property
    def _chat_visual(self) -> int:
        return self._visual([size for turn in self.question.turns for size in turn_sizes(turn)])

    @cached_property
    def _chat_words(self) -> int:
        """Tokens of the chat before the question, those of pictures left out."""
        if (stats := self._last_stats) is None:
            said = sum(_turn_words(turn) for turn in self.question.turns)
            return said + _text_tokens(self.question.system)
        return stats.prompt_tokens - stats.visual_tokens + stats.new_tokens

    @property
    def _last_stats(self) -> AnswerStats | None:
        """What the last answer tells of the chat as it stands."""
        turns = self.question.turns
        return turns[-1].stats if turns and not self.question.is_cut else None

    @cached_property
    def _is_chat_cached(self) -> bool:
        """Whether the last answer left the chat in the engine as it will be asked again."""
        stats = self._last_stats
        return stats is not None and stats.visual_tokens == self._chat_visual

    def _visual(self, sizes: Sequence[Size]) -> int:
        tokens = self.question.max_visual_tokens
        return sum(picture_tokens(size, self.capacity.geometry, tokens) for size in sizes)


def picture_tokens(size: Size, geometry: PictureGeometry, max_visual_tokens: int) -> int:
    """Visual tokens of a picture; 0 for one that will be refused."""
    try:
        width, height = fit_size(*size, geometry, max_visual_tokens)
    except PictureError:
        return 0
    return width * height // geometry.token_side_px**2


def turn_sizes(turn: Turn) -> list[Size]:
    """Sizes of the pictures of an earlier question."""
    return [(picture.width_px, picture.height_px) for picture in turn.question.pictures]


def spare_bytes(memory: MemoryReading, min_free_bytes: int) -> int:
    """Memory that may be taken, so that what must stay free does."""
    return max(0, memory.available_bytes - min_free_bytes)


def _turn_words(turn: Turn) -> int:
    answer = turn.stats.new_tokens if turn.stats else _text_tokens(turn.answer)
    return _text_tokens(turn.question.text) + answer + TURN_TOKENS


def _text_tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // TOKEN_BYTES)
