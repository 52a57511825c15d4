"""One answer on its way: its prompt, then token after token, with guesses where they pay.

Whatever ends an answer, the cache of its conversation holds exactly
the tokens that went through the whole model, or is dropped.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from vlm.chat import AnswerStats, AskRequest, FinishReason, Piece
from vlm.decoder import Segment
from vlm.detokenize import TextStream
from vlm.errors import Stopped
from vlm.guesses import Guesser
from vlm.kv_cache import ConversationCaches, FeatureCache
from vlm.model import QwenVL
from vlm.patches import MeasuredPicture
from vlm.prompt import Prompt
from vlm.prompt_pass import Forwarded, Listener, PromptPass
from vlm.request_checks import AnswerLimits, check_request, room_for_answer
from vlm.sampling import LoopGuard, Sampler
from vlm.stats import AnswerClock

ROOM_TOKENS = 256
"""Answer tokens a cache has room for from the start; a longer answer makes it grow."""

LOOP_NOTICE = "The answer began to repeat itself, so it was stopped."


class AnswerRun:
    """The state of one answer; `begin`, then `rows` and `take` in turn until it is over."""

    def __init__(
        self,
        model: QwenVL,
        caches: ConversationCaches,
        features: FeatureCache,
        limits: AnswerLimits,
        request: AskRequest,
        listener: Listener,
        clock: AnswerClock,
    ) -> None:
        self._model, self._caches = model, caches
        self._limits, self._request = limits, request
        self._listener, self._clock = listener, clock
        self._pass = PromptPass(model, features, limits.prefill_rows, listener, clock)
        self._token_ids: list[int] = []
        """The answer so far; the last token may not have been forwarded."""
        self._reason: FinishReason | None = None
        self.error: Exception | None = None
        """What ended the answer before its time, other than Stopped."""

    @property
    def is_over(self) -> bool:
        """True once nothing is left to compute; the cache has been given back then."""
        return self._reason is not None or self.error is not None

    def stats(self) -> AnswerStats:
        """Return what the answer cost so far."""
        return self._clock.stats(self._reason or "cancelled", tuple(self._token_ids))

    def begin(self) -> None:
        """Compute up to the first token. Raises VLMError for what a person may cause."""
        try:
            prompt, pictures, max_new_tokens = self._read_request()
        except Stopped:
            self._reason = "cancelled"
            return
        self._max_new_tokens = max_new_tokens
        self._take_cache(prompt)
        try:
            room = len(prompt.token_ids) + min(max_new_tokens, ROOM_TOKENS)
            self._forwarded.kv_cache.reserve(room)
            self._pass_on_notices()
            end = len(prompt.token_ids)
            hidden, position = self._pass.forward(prompt, pictures, self._forwarded, end)
            self._next_position = position
            with self._clock.prefill():
                logits = self._model.decoder.logits(hidden[-1:])[0]
            self._sampler = Sampler(self._request.sampling, logits.shape[0])
            self._guard = LoopGuard() if self._limits.loop_guard else None
            self._guesser = Guesser(prompt.token_ids)
            # A character that is never completed is never shown: the stream is not flushed.
            self._text = TextStream(self._model.tokenizer)
            self._choose(logits)
        except BaseException as error:
            self._break_off(error)
            if not isinstance(error, Stopped):
                raise
        if self._reason is not None:
            self._give_back()

    def read_ahead(self) -> None:
        """Forward the chat as far as its last picture, so that a question finds that done.

        Raises VLMError, as the question itself will.
        """
        try:
            prompt, pictures, _ = self._read_request()
        except Stopped:
            return
        if not prompt.spans:
            self._reason = "stop"
            return
        self._take_cache(prompt)
        try:
            end = prompt.spans[-1].start + prompt.spans[-1].length
            self._pass.forward(prompt, pictures, self._forwarded, end)
        except BaseException as error:
            self._break_off(error)
            if not isinstance(error, Stopped):
                raise
            return
        self._reason = "stop"
        self._give_back()

    def objection(self) -> Exception | None:
        """Ask the listener whether to go on; return what it raises."""
        try:
            self._listener.check()
        except Exception as error:
            return error
        return None

    def rows(self, most_guesses: int) -> list[int]:
        """Return the tokens to forward next: the one chosen last, and guesses after it."""
        if not self._request.may_guess:
            most_guesses = 0
        room = self._max_new_tokens - len(self._token_ids) - 1
        most = min(most_guesses, self._limits.guess_tokens, room)
        return [self._token_ids[-1], *(self._guesser.guess(most) if most > 0 else [])]

    def segment(self, rows: Sequence[int]) -> tuple[Segment, Tensor]:
        """Return where those tokens belong: their cache, and position_ids (3, rows)."""
        positions = torch.arange(self._next_position, self._next_position + len(rows))
        return Segment(self._forwarded.kv_cache, len(rows)), positions.expand(3, -1)

    def take(self, rows: Sequence[int], logits: Tensor) -> None:
        """Choose tokens from logits (rows, vocab), as far as the guesses were right."""
        try:
            right = 0
            while True:
                self._forwarded.add([rows[right]])
                self._choose(logits[right])
                if self.is_over or right + 1 == len(rows) or self._token_ids[-1] != rows[right + 1]:
                    break
                right += 1
            if len(rows) > 1:
                self._guesser.learn(right)
            self._next_position += right + 1
            self._forwarded.cut()
        except Exception as error:
            self.end_with(error)
        if self._reason is not None:
            self._give_back()

    def end_with(self, error: Exception) -> None:
        """End the answer because of an error; Stopped keeps what has been computed."""
        self._break_off(error)
        if not isinstance(error, Stopped):
            self.error = error

    def _break_off(self, error: BaseException) -> None:
        if isinstance(error, Stopped):
            self._reason = "cancelled"
            self._give_back()
        else:
            self._caches.drop(self._request.conversation_id)

    def _give_back(self) -> None:
        self._caches.give_back(self._request.conversation_id, *self._forwarded.cut())

    def _read_request(self) -> tuple[Prompt, list[MeasuredPicture], int]:
        """Check the request; return its prompt, its pictures and the room for the answer."""
        check_request(self._request, self._limits)
        pictures = self._pass.measure(self._request)
        prompt = self._model.tokenizer.encode(self._request.messages, pictures)
        max_new_tokens = room_for_answer(self._request, prompt, self._limits)
        self._listener.check()
        return prompt, pictures, max_new_tokens

    def _pass_on_notices(self) -> None:
        """Say what is to be said of the question's own pictures."""
        newest = self._request.messages[-1].pictures
        notices = dict.fromkeys(notice for picture in newest for notice in picture.notices)
        if notices:
            self._listener.emit(Piece("vision", notices=tuple(notices)))

    def _take_cache(self, prompt: Prompt) -> None:
        keys: list[Hashable] = prompt.keys()
        prefix = self._caches.take(self._request.conversation_id, keys)
        self._forwarded = Forwarded(prefix.kv_cache, keys[: prefix.length])
        self._clock.prompt_tokens = len(keys)
        self._clock.visual_tokens = sum(span.length for span in prompt.spans)
        self._clock.cached_tokens = prefix.length

    def _choose(self, logits: Tensor) -> None:
        """Choose a token from logits (vocab,) and show its text. Raises GenerationError on NaN."""
        token_id = self._sampler.next(logits)
        self._clock.token()
        if token_id in self._model.tokenizer.eos_token_ids:
            self._reason = "stop"
            return
        self._token_ids.append(token_id)
        self._guesser.push(token_id)
        if text := self._text.push(token_id):
            self._listener.emit(Piece("decode", text=text))
        if self._guard is not None and self._guard.push(token_id):
            self._listener.emit(Piece("decode", notices=(LOOP_NOTICE,)))
            self._reason = "loop"
        elif len(self._token_ids) >= self._max_new_tokens:
            self._reason = "length"
