"""Compute answers: one alone, or the tokens of several together.

The weights are what a token costs: reading them once for several conversations, or for
several guessed tokens of one, gives more tokens for nearly the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vlm.answer_run import AnswerRun
from vlm.chat import AnswerStats, AskRequest
from vlm.kv_cache import ConversationCaches, FeatureCache
from vlm.memory_floor import MemoryFloor
from vlm.model import QwenVL
from vlm.prompt_pass import Listener
from vlm.request_checks import AnswerLimits
from vlm.stats import AnswerClock

ROWS_AT_ONCE = 4
"""As many rows as one pass takes for hardly more than the time of one."""


class Generator:
    """One model with the caches of its conversations; one thread at a time may use it."""

    def __init__(
        self,
        model: QwenVL,
        caches: ConversationCaches,
        features: FeatureCache,
        limits: AnswerLimits,
        min_free_bytes: int = 0,
    ) -> None:
        """min_free_bytes: memory of the machine that no answer may begin without."""
        self.model = model
        self.caches = caches
        self.features = features
        self.limits = limits
        self.floor = MemoryFloor(min_free_bytes, lambda: caches.free() + features.clear())

    def answer(self, request: AskRequest, listener: Listener, clock: AnswerClock) -> AnswerStats:
        """Answer one request, telling the listener piece by piece; also when it is stopped.

        Raises VLMError for what a person may cause. After any other exception too the next
        request works: the conversation's cache is dropped then.
        """
        run = self.begin(request, listener, clock)
        while not run.is_over:
            self.step([run])
        if run.error is not None:
            raise run.error
        return run.stats()

    @torch.inference_mode()
    def begin(self, request: AskRequest, listener: Listener, clock: AnswerClock) -> AnswerRun:
        """Compute an answer up to its first token. Raises what `answer` raises."""
        self.floor.keep()
        run = self._run(request, listener, clock)
        run.begin()
        return run

    @torch.inference_mode()
    def read_ahead(
        self, request: AskRequest, listener: Listener, clock: AnswerClock
    ) -> AnswerStats:
        """Forward a chat as far as its last picture and keep it. Raises what `answer` raises."""
        self.floor.keep()
        run = self._run(_with_words(request), listener, clock)
        run.read_ahead()
        return run.stats()

    @torch.inference_mode()
    def step(self, runs: Sequence[AnswerRun]) -> None:
        """Give each running answer its next token or tokens; errors end up in the run."""
        wanted = [run for run in runs if _is_wanted(run)]
        if not wanted:
            return
        guesses = max(0, ROWS_AT_ONCE // len(wanted) - 1)
        rows = [run.rows(guesses) for run in wanted]
        placed = [run.segment(tokens) for run, tokens in zip(wanted, rows, strict=True)]
        decoder = self.model.decoder
        try:
            hidden = decoder.forward_together(
                decoder.embed([token_id for tokens in rows for token_id in tokens]),
                torch.cat([positions for _, positions in placed], 1),
                [segment for segment, _ in placed],
                lambda fraction: _check_any(wanted),
            )
            logits = decoder.logits(hidden).split([len(tokens) for tokens in rows])
        except Exception as error:
            for run in wanted:
                run.end_with(error)
            return
        for run, tokens, given in zip(wanted, rows, logits, strict=True):
            run.take(tokens, given)

    def _run(self, request: AskRequest, listener: Listener, clock: AnswerClock) -> AnswerRun:
        return AnswerRun(
            self.model, self.caches, self.features, self.limits, request, listener, clock
        )


def _with_words(request: AskRequest) -> AskRequest:
    """Put some words into a question that is still to be typed; pictures come before them."""
    *earlier, last = request.messages
    return replace(request, messages=(*earlier, replace(last, text=last.text or "?")))


def _is_wanted(run: AnswerRun) -> bool:
    """Ask for each answer, before a step, whether to go on; end those that are not wanted."""
    if not run.is_over and (error := run.objection()) is not None:
        run.end_with(error)
    return not run.is_over


def _check_any(runs: Sequence[AnswerRun]) -> None:
    """Raise, in the middle of a step, only when no answer in it is wanted any more."""
    errors = [run.objection() for run in runs]
    if None not in errors and errors[0] is not None:
        raise errors[0]
