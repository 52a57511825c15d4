"""Let a server that speaks OpenAI's API answer: the ChatEngine whose model is elsewhere.

One thread runs an event loop with a task for each answer. The queue in front of it and the
stream behind each question are those of the local engine.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace

from vlm.answer_stream import ABANDONED_S, AnswerStream, Job
from vlm.chat import AskRequest, MemoryReading, ModelState, Piece, Rates
from vlm.config import Settings
from vlm.errors import GenerationError, ModelError, ModelNotFoundError, VLMError
from vlm.job_queue import JobQueue
from vlm.memory import ProcessProbe
from vlm.remote.address import read_address
from vlm.remote.conversing import Conversing
from vlm.remote.faults import ServerAwayError
from vlm.remote.model_choice import ready_state
from vlm.remote.upstream import Upstream
from vlm.request_checks import AnswerLimits

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.05
"""How often it is seen whether an answer has been stopped or has lost its reader."""
NO_MODEL_AGAIN_S = 2.0
"""Pause before a server that is still loading its model is asked for it again."""
AWAY_AGAIN_S = 15.0
"""Pause before a server that could not be reached is tried again by itself."""
_CLOSED = "The app is shutting down; start it again to ask."
_BROKE = "The answer ended because of an unexpected fault; the log has it. Try again."


class RemoteEngine:
    """The ChatEngine over a server; made in an instant, it looks for its model by itself."""

    def __init__(self, settings: Settings, abandoned_s: float = ABANDONED_S) -> None:
        """Start the thread that talks to the server. Raises ConfigError.

        Args:
            settings: all settings of this start.
            abandoned_s: an answer nobody has read for so many seconds is stopped.
        """
        self._settings = settings
        self._address = read_address(settings.engine)
        self._upstream = Upstream(self._address, settings.engine.silence_s)
        self._abandoned_s = abandoned_s
        self._queue = JobQueue(settings.server.queue_size, settings.engine.answers_at_once)
        self._limits = AnswerLimits(settings.model.context_tokens, settings.picture.max_pictures)
        self._probe = ProcessProbe()
        self._state = self._finding()
        self._load_error: VLMError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._finder: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._ask_again = asyncio.Event()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._own, name="remote-engine", daemon=True)
        self._thread.start()

    def ask(self, request: AskRequest) -> AnswerStream:
        """Queue a question, also before the server's model is known. Raises BusyError."""
        queue = self._queue
        job = self._job(request)
        with queue.changed:
            if queue.is_closed:
                job.fail(GenerationError(_CLOSED))
            elif self._load_error is not None:
                job.fail(self._load_error)
            else:
                queue.add(job)
                self._loop.call_soon_threadsafe(self._begin_all)
        return AnswerStream(job)

    def read_ahead(self, request: AskRequest) -> AnswerStream:
        """Do nothing: what a server keeps of a picture, only its questions decide."""
        job = self._job(request)
        job.finish(job.clock.stats("cancelled"))
        return AnswerStream(job)

    def _job(self, request: AskRequest) -> Job:
        return Job(request, self._describe_wait, self._queue.remove, self._abandoned_s)

    def state(self) -> ModelState:
        """Say whether the server's model is known; never blocks."""
        return self._state

    def memory(self) -> MemoryReading:
        """Read memory and CPU use of this process, which holds no model."""
        process = self._probe.read()
        return MemoryReading(
            rss_bytes=process.rss_bytes,
            peak_rss_bytes=process.peak_rss_bytes,
            weights_bytes=0,
            kv_cache_bytes=0,
            feature_cache_bytes=0,
            available_bytes=process.free.available_bytes,
            total_bytes=process.free.total_bytes,
            is_container_limit=process.free.is_container_limit,
            cpu_percent=process.cpu_percent,
            cores=process.cores,
            conversations=0,
        )

    def rates(self) -> Rates:
        """Tell nothing: how fast a server is depends on who else asks it."""
        return Rates()

    def forget(self, conversation_id: str) -> None:
        """Stop a conversation's answers; nothing else is kept of it here."""
        with self._queue.changed:
            for job in self._queue.jobs():
                if job.request.conversation_id == conversation_id:
                    job.stop()

    def free_caches(self) -> int:
        """Free nothing: the caches are the server's."""
        return 0

    def retry_load(self) -> None:
        """Ask a server for its models again after that failed; does nothing otherwise."""
        with self._queue.changed:
            if self._load_error is not None and not self._queue.is_closed:
                self._load_error = None
                self._state = self._finding()
                self._loop.call_soon_threadsafe(self._ask_again.set)

    def close(self) -> None:
        """Stop all work and end all connections; later questions fail with a sentence."""
        with self._queue.changed:
            if not self._queue.is_closed:
                self._queue.is_closed = True
                for job in self._queue.jobs():
                    job.stop()
                self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(timeout=10.0)

    def _finding(self) -> ModelState:
        host = self._address.host
        return ModelState("finding", f"Asking {host} for its models.", server=host)

    def _describe_wait(self, job: Job) -> Piece:
        ahead, is_finding = self._queue.place(job), self._state.stage == "finding"
        return Piece("loading" if is_finding else "queued", queue_position=ahead)

    # What follows runs in the engine's own thread only.

    def _own(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run())
        except Exception:
            logger.exception("The thread of the remote engine ended")
        finally:
            self._end()

    async def _run(self) -> None:
        self._finder = asyncio.create_task(self._find())
        await self._closing.wait()
        self._finder.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)
        await self._upstream.close()

    async def _find(self) -> None:
        """Ask for the server's models until it has one."""
        while True:
            again_s: float | None = NO_MODEL_AGAIN_S
            try:
                names = await self._upstream.models()
                state = ready_state(self._address.host, self._settings.model.model, names)
            except VLMError as error:
                self._fail(error)
                again_s = AWAY_AGAIN_S if isinstance(error, ServerAwayError) else None
            except Exception:
                logger.exception("Asking for the models failed")
                self._fail(ModelError(_BROKE))
                again_s = None
            else:
                with self._queue.changed:
                    self._state, self._load_error = state, None
                if state.stage == "ready":
                    self._begin_all()
                    return
            try:
                await asyncio.wait_for(self._ask_again.wait(), again_s)
            except TimeoutError:
                pass
            self._ask_again.clear()

    def _find_anew(self) -> None:
        """Look what a server has that no longer has its model, unless that is looked up."""
        if self._state.stage == "ready":
            self._state = self._finding()
            self._finder = asyncio.create_task(self._find())

    def _fail(self, error: VLMError) -> None:
        """Let all who wait know, and who asks from now on."""
        with self._queue.changed:
            self._load_error = error
            self._state = replace(self._finding(), stage="failed", message=str(error))
            for job in self._queue.take_all():
                job.fail(error)

    def _begin_all(self) -> None:
        """Begin as many waiting questions as may be answered at once."""
        if self._state.stage != "ready":
            return
        while (job := self._queue.take(may_wait=False)) is not None:
            self._queue.begun(job)  # no prompt of one holds up another
            task = asyncio.create_task(self._answer(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, job: Job) -> None:
        """Have one question answered; ends the connection as soon as it is stopped."""
        conversing = Conversing(self._upstream, self._state.model, job, self._limits)
        work = asyncio.create_task(conversing.run())
        try:
            while not work.done() and not job.is_stopped:
                await asyncio.wait((work,), timeout=LOOK_EVERY_S)
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
            if work.cancelled():
                job.finish(conversing.stats("cancelled"))
            elif (error := work.exception()) is None:
                job.finish(work.result())
            elif isinstance(error, VLMError):
                job.fail(error)
                if isinstance(error, ModelNotFoundError):
                    self._find_anew()
            else:
                logger.error("An answer ended with an unexpected error", exc_info=error)
                job.fail(GenerationError(_BROKE))
        finally:
            self._queue.done(job)
            self._begin_all()

    def _end(self) -> None:
        """Leave nobody waiting when the thread ends, whatever the reason."""
        with self._queue.changed:
            self._queue.is_closed = True
            self._state = replace(self._state, stage="closed", message=_CLOSED)
            for job in self._queue.take_all():
                job.fail(GenerationError(_CLOSED))
