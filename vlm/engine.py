"""Run the model in one owner thread: a queue in front of it, a stream behind every question.

Only that thread touches the model and the caches of the conversations. Everybody else
hands in a Job and reads its pieces, so no two answers ever compute at once.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from vlm.answer_stream import ABANDONED_S, AnswerStream, Job
from vlm.chat import AskRequest, MemoryReading, ModelState, Piece
from vlm.config import Settings
from vlm.errors import BusyError, GenerationError, ModelError, Stopped, VLMError
from vlm.generate import Generator
from vlm.loading import load_generator
from vlm.memory import ProcessProbe

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
        self._changed = threading.Condition()
        self._waiting: list[Job] = []
        self._running: Job | None = None
        self._forgotten: set[str] = set()
        """Conversations to drop once their running answer has given its cache back."""
        self._probe = ProcessProbe(settings.model.threads or None)
        self._is_closed = False
        self._generator: Generator | None = None
        self._state = ModelState("finding", "Looking for the model.")
        self._load_error: VLMError | None = None
        self._thread = threading.Thread(target=self._own, name="model-owner", daemon=True)
        self._thread.start()

    def ask(self, request: AskRequest) -> AnswerStream:
        """Queue a question, also while the model is loading. Raises BusyError."""
        job = Job(request, self._describe_wait, self._remove, self._abandoned_s)
        with self._changed:
            self._drop_stopped()
            if self._is_closed:
                job.fail(GenerationError(_CLOSED))
            elif self._load_error is not None:
                job.fail(_copy(self._load_error))
            else:
                self._refuse_when_busy(request.conversation_id)
                self._waiting = [*self._waiting, job]
                self._changed.notify_all()
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

    def forget(self, conversation_id: str) -> None:
        """Stop and drop all that is kept for a conversation; returns at once."""
        with self._changed:
            for job in self._jobs():
                if job.request.conversation_id == conversation_id:
                    job.stop()
                    if job is self._running:
                        self._forgotten.add(conversation_id)
        if (generator := self._generator) is not None:
            generator.caches.drop(conversation_id)

    def retry_load(self) -> None:
        """Try to load the model again after it failed; does nothing otherwise."""
        with self._changed:
            if self._load_error is not None:
                self._load_error = None
                self._state = ModelState("finding", "Looking for the model.")
                self._changed.notify_all()

    def close(self) -> None:
        """Stop all work and end the owner thread; later questions fail with a sentence."""
        with self._changed:
            self._is_closed = True
            for job in self._jobs():
                job.stop()
            self._changed.notify_all()
        self._thread.join(timeout=10.0)

    # What follows keeps the queue. Its list is replaced, never changed, so that it can be read
    # without the lock.

    def _jobs(self) -> list[Job]:
        running = [] if self._running is None else [self._running]
        return running + self._waiting

    def _refuse_when_busy(self, conversation_id: str) -> None:
        """Raise BusyError for a full queue, or a chat that is being answered (repeated clicks)."""
        active = [job.request.conversation_id for job in self._jobs() if not job.is_stopped]
        if conversation_id in active:
            raise BusyError(
                "This chat is already being answered. Wait for the answer, or press Stop first."
            )
        limit = self._settings.server.queue_size
        if len(self._waiting) >= limit:
            raise BusyError(
                f"{len(self._waiting)} questions are waiting already and the limit is {limit}. "
                "Try again in a minute."
            )

    def _drop_stopped(self) -> None:
        for job in self._waiting:
            if job.is_stopped:
                self._remove(job)

    def _remove(self, job: Job) -> None:
        """Take a stopped job out of the queue at once, if it is still there."""
        with self._changed:
            if job in self._waiting:
                self._waiting = [other for other in self._waiting if other is not job]
                job.finish(job.clock.stats("cancelled"))

    def _describe_wait(self, job: Job) -> Piece:
        """Say what a job that has not begun waits for."""
        jobs, state = self._jobs(), self._state
        ahead = jobs.index(job) if job in jobs else 0
        if state.stage in ("finding", "downloading", "loading"):
            progress = state.done_bytes / state.total_bytes if state.total_bytes else 0.0
            return Piece("loading", progress=progress, queue_position=ahead)
        return Piece("queued", queue_position=ahead)

    # What follows runs in the owner thread only.

    def _own(self) -> None:
        try:
            while not self._is_closed:
                if self._generator is None:
                    self._load()
                elif (job := self._next_job()) is not None:
                    self._serve(job, self._generator)
        except Exception:
            logger.exception("The owner thread ended")
        finally:
            self._end()

    def _load(self) -> None:
        """Load the model, or fail all who wait and sleep until retry_load() or close()."""
        try:
            self._generator = load_generator(self._settings, self._report)
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
        with self._changed:
            self._load_error = failure
            self._state = replace(self._state, stage="failed", message=str(failure), eta_s=None)
            waiting, self._waiting = self._waiting, []
            for job in waiting:
                job.fail(_copy(failure))
            self._changed.wait_for(lambda: self._load_error is None or self._is_closed)

    def _report(self, state: ModelState) -> None:
        """Show a state of loading. Raises Stopped when the engine is being closed."""
        if self._is_closed:
            raise Stopped
        self._state = state

    def _next_job(self) -> Job | None:
        """Wait for the next job, first come first served; None when there is nothing to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            self._drop_stopped()
            if self._waiting and not self._is_closed:
                self._running, *self._waiting = self._waiting
            return self._running

    def _serve(self, job: Job, generator: Generator) -> None:
        """Answer one job; whatever goes wrong reaches the one who asked."""
        job.clock.start()
        try:
            job.finish(generator.answer(job.request, job, job.clock))
        except VLMError as error:
            job.fail(_copy(error))
        except Exception as error:
            logger.exception("An answer failed")
            job.fail(_explain(error))
        finally:
            with self._changed:
                self._running = None
                if job.request.conversation_id in self._forgotten:
                    self._forgotten.discard(job.request.conversation_id)
                    generator.caches.drop(job.request.conversation_id)

    def _end(self) -> None:
        """Leave nobody waiting when the owner thread ends, whatever the reason."""
        with self._changed:
            self._is_closed = True
            self._state = replace(self._state, stage="closed", message=_CLOSED, eta_s=None)
            waiting, self._waiting = self._waiting, []
            for job in waiting:
                job.fail(GenerationError(_CLOSED))
            self._generator = None


def _copy(error: VLMError) -> VLMError:
    """Return an equal error for a reader: the traceback of a raised one keeps tensors alive."""
    return type(error)(*error.args)


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
