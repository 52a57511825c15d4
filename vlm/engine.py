"""Run the model in one owner thread: a queue in front of it, a stream behind every question.

Only that thread touches the model and the caches of the conversations. Everybody else
hands in a Job and reads its pieces.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from vlm.answer_stream import ABANDONED_S, AnswerStream, Job
from vlm.chat import AskRequest, MemoryReading, ModelState, Piece, Rates
from vlm.config import Settings
from vlm.errors import GenerationError, ModelError, Stopped, VLMError
from vlm.generate import Generator
from vlm.job_queue import JobQueue
from vlm.loading import load_generator
from vlm.memory import ProcessProbe
from vlm.stats import RateMeter
from vlm.turns import Turns

logger = logging.getLogger(__name__)

_CLOSED = "The app is shutting down; start it again to ask."


class Engine:
    """The ChatEngine of this process; made in an instant, it loads its model by itself."""

    def __init__(self, settings: Settings, abandoned_s: float = ABANDONED_S) -> None:
        """Start the owner thread, which finds, downloads and loads the model.

        Args:
            settings: all settings of this start.
            abandoned_s: an answer nobody has read for so many seconds is stopped.
        """
        self._settings = settings
        self._abandoned_s = abandoned_s
        self._queue = JobQueue(settings.server.queue_size, settings.server.answers_at_once)
        self._probe = ProcessProbe(settings.model.threads or None)
        self._meter = RateMeter()
        self._generator: Generator | None = None
        self._turns: Turns | None = None
        self._state = ModelState("finding", "Looking for the model.")
        self._load_error: VLMError | None = None
        self._thread = threading.Thread(target=self._own, name="model-owner", daemon=True)
        self._thread.start()

    def ask(self, request: AskRequest) -> AnswerStream:
        """Queue a question, also while the model is loading. Raises BusyError."""
        return self._add(request, is_ahead=False)

    def read_ahead(self, request: AskRequest) -> AnswerStream:
        """Read the pictures of a chat while nobody waits, so that its question finds them read.

        The question, in the same conversation, joins a read-ahead that still runs. The stream
        tells the progress; who loses hold of it ends the work.
        """
        return self._add(request, is_ahead=True)

    def _add(self, request: AskRequest, is_ahead: bool) -> AnswerStream:
        queue = self._queue
        job = Job(request, self._describe_wait, queue.remove, self._abandoned_s, is_ahead)
        with queue.changed:
            if queue.is_closed:
                job.fail(GenerationError(_CLOSED))
            elif self._load_error is not None:
                job.fail(self._load_error)
            elif is_ahead:
                queue.add_ahead(job)
            else:
                queue.add(job)
        return AnswerStream(job)

    def state(self) -> ModelState:
        """Say where the model is; never blocks."""
        return self._state

    def memory(self) -> MemoryReading:
        """Read memory and CPU use; never blocks on the model."""
        process, generator = self._probe.read(), self._generator
        return MemoryReading(
            rss_bytes=process.rss_bytes,
            peak_rss_bytes=process.peak_rss_bytes,
            weights_bytes=generator.model.info.weight_bytes if generator else 0,
            kv_cache_bytes=generator.caches.nbytes if generator else 0,
            feature_cache_bytes=generator.features.nbytes if generator else 0,
            available_bytes=process.free.available_bytes,
            total_bytes=process.free.total_bytes,
            is_container_limit=process.free.is_container_limit,
            cpu_percent=process.cpu_percent,
            cores=process.cores,
            conversations=generator.caches.count if generator else 0,
        )

    def rates(self) -> Rates:
        """Say how fast answers came lately; never blocks."""
        return self._meter.rates()

    def forget(self, conversation_id: str) -> None:
        """Stop and drop all that is kept for a conversation; returns at once."""
        with self._queue.changed:
            for job in self._queue.jobs():
                if job.request.conversation_id == conversation_id:
                    job.stop()
                    if self._turns is not None and not job.is_over:
                        self._turns.forget_later(conversation_id)
        if (generator := self._generator) is not None:
            generator.caches.drop(conversation_id)

    def free_caches(self) -> int:
        """Drop all caches that no running answer holds; return their bytes.

        Safe beside a running answer: its cache and the features it reads are its own.
        """
        if (generator := self._generator) is None:
            return 0
        return generator.caches.free() + generator.features.clear()

    def retry_load(self) -> None:
        """Try to load the model again after it failed; does nothing otherwise."""
        with self._queue.changed:
            if self._load_error is not None:
                self._load_error = None
                self._state = ModelState("finding", "Looking for the model.")
                self._queue.changed.notify_all()

    def close(self) -> None:
        """Stop all work and end the owner thread; later questions fail with a sentence."""
        with self._queue.changed:
            self._queue.is_closed = True
            for job in self._queue.jobs():
                job.stop()
            self._queue.changed.notify_all()
        self._thread.join(timeout=10.0)

    def _describe_wait(self, job: Job) -> Piece:
        """Say what a job that has not begun waits for."""
        ahead, state = self._queue.place(job), self._state
        if state.stage in ("finding", "downloading", "loading"):
            progress = state.done_bytes / state.total_bytes if state.total_bytes else 0.0
            return Piece("loading", progress=progress, queue_position=ahead)
        return Piece("queued", queue_position=ahead)

    # What follows runs in the owner thread only.

    def _own(self) -> None:
        try:
            while not self._queue.is_closed:
                if self._turns is None:
                    self._load()
                else:
                    self._turns.next()
        except Exception:
            logger.exception("The owner thread ended")
        finally:
            self._end()

    def _load(self) -> None:
        """Load the model, or fail all who wait and sleep until retry_load() or close()."""
        try:
            generator = load_generator(self._settings, self._report)
            self._generator, self._turns = generator, Turns(generator, self._queue, self._meter)
            return
        except Stopped:
            return
        except VLMError as error:
            failure = error
        except Exception:
            logger.exception("Loading the model failed")
            failure = ModelError(
                "The model could not be loaded because of an unexpected fault; "
                "the log has the details. Try again, or choose another model with --model."
            )
        with self._queue.changed:
            self._load_error = failure
            self._state = replace(self._state, stage="failed", message=str(failure), eta_s=None)
            for job in self._queue.take_all():
                job.fail(failure)
            self._queue.changed.wait_for(lambda: self._load_error is None or self._queue.is_closed)

    def _report(self, state: ModelState) -> None:
        """Show a state of loading. Raises Stopped when the engine is being closed."""
        if self._queue.is_closed:
            raise Stopped
        self._state = state

    def _end(self) -> None:
        """Leave nobody waiting when the owner thread ends, whatever the reason."""
        with self._queue.changed:
            self._queue.is_closed = True
            self._state = replace(self._state, stage="closed", message=_CLOSED, eta_s=None)
            for job in self._queue.take_all():
                job.fail(GenerationError(_CLOSED))
            self._generator = self._turns = None
