"""Let several answers take turns at one model: the work of the owner thread.

A question's prompt is computed in one go, but between its layers the answers that already
run get their next tokens; those tokens are computed together. Reading ahead happens while
nobody waits.
"""

from __future__ import annotations

import logging
import time

from vlm.answer_run import AnswerRun
from vlm.answer_stream import Job
from vlm.chat import Piece
from vlm.errors import GenerationError, Stopped, VLMError
from vlm.generate import Generator
from vlm.job_queue import JobQueue
from vlm.stats import RateMeter

logger = logging.getLogger(__name__)

LONGEST_SILENCE_S = 0.35
"""Running answers get a token at least so often while a new question's prompt is computed,
give or take the time of one layer and of one token."""


class Turns:
    """The answers on their way; belongs to the owner thread."""

    def __init__(self, generator: Generator, queue: JobQueue, meter: RateMeter) -> None:
        self._generator = generator
        self._queue = queue
        self._meter = meter
        self._runs: dict[Job, AnswerRun] = {}
        self._stepped_at = 0.0
        self._forgotten: set[str] = set()

    def next(self) -> None:
        """Begin the next job if there is one, and give all running answers a token."""
        job = self._queue.take(may_wait=not self._runs)
        if job is not None:
            self._begin(job)
        self._step()

    def forget_later(self, conversation_id: str) -> None:
        """Drop a conversation once its running answer has given its cache back; any thread."""
        self._forgotten.add(conversation_id)

    def check(self, job: Job) -> None:
        """Raise Stopped when a job has to end; else let others go on. Called between layers."""
        if job.is_ahead:
            if self._queue.makes_way(job) or (job.is_stopped and not self._queue.is_joined(job)):
                raise Stopped
        else:
            job.check()
        is_due = job.is_ahead or time.monotonic() - self._stepped_at > LONGEST_SILENCE_S
        if job not in self._runs and is_due:
            self._step()

    def _begin(self, job: Job) -> None:
        """Compute a job's prompt; whatever goes wrong reaches the one who asked."""
        job.clock.start()
        listener = _Listener(job, self)
        try:
            if job.is_ahead:
                self._read_ahead(job, listener)
            else:
                self._meter.note_turn(job.clock)
                run = self._generator.begin(job.request, listener, job.clock)
                self._runs[job] = run
                if job.clock.first_token_at is not None:  # not stopped before
                    self._meter.note_prompt(job.clock)
                self._end_if_over(job, run)
        except Exception as error:
            self._fail(job, error)
        finally:
            self._queue.begun(job)

    def _read_ahead(self, job: Job, listener: _Listener) -> None:
        stats = self._generator.read_ahead(job.request, listener, job.clock)
        if stats.finish_reason == "cancelled" and not job.is_stopped:
            self._queue.put_back(job)
            return
        if stats.finish_reason == "stop":
            self._meter.note_prompt(job.clock)
        with self._queue.changed:  # forget() looks and marks under the same lock
            job.finish(stats)
            self._drop_forgotten(job)

    def _step(self) -> None:
        """Give every running answer its next token, all in one pass."""
        if not self._runs:
            return
        self._generator.step(list(self._runs.values()))
        self._stepped_at = time.monotonic()
        for job, run in list(self._runs.items()):
            self._end_if_over(job, run)

    def _end_if_over(self, job: Job, run: AnswerRun) -> None:
        if run.error is not None:
            self._fail(job, run.error)
        elif run.is_over:
            self._meter.note_answer(job.clock)
            with self._queue.changed:
                job.finish(run.stats())
                self._forget(job)

    def _fail(self, job: Job, error: Exception) -> None:
        if isinstance(error, VLMError):
            job.fail(error)
        else:
            logger.error("An answer failed", exc_info=error)
            job.fail(_explain(error))
        self._forget(job)

    def _forget(self, job: Job) -> None:
        self._runs.pop(job, None)
        self._queue.done(job)
        self._drop_forgotten(job)

    def _drop_forgotten(self, job: Job) -> None:
        conversation_id = job.request.conversation_id
        if conversation_id in self._forgotten:
            self._forgotten.discard(conversation_id)
            self._generator.caches.drop(conversation_id)


class _Listener:
    """Stands between a computation and its job."""

    def __init__(self, job: Job, turns: Turns) -> None:
        self._job, self._turns = job, turns

    def emit(self, piece: Piece) -> None:
        """Hand on a piece."""
        self._job.emit(piece)

    def check(self) -> None:
        """Raise Stopped when the work has to end."""
        self._turns.check(self._job)


def _explain(error: Exception) -> GenerationError:
    """Turn an unexpected exception into a sentence; its details belong in the log."""
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return GenerationError(
            "The memory of this machine was not enough for this answer. "
            "Lower the image detail, send fewer pictures, or start a new chat."
        )
    return GenerationError(
        "The model stopped unexpectedly; the log has the details. "
        "Send the question again, and start a new chat if it happens twice."
    )
