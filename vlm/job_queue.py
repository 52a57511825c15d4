"""Who is served next: questions that wait, answers that run, pictures to be read ahead.

Questions of different visitors take turns: one visitor's second waits behind others' first.
Who comes from one place ("PLACE/NAME") shares that place's turns: names are free, places are not.
Safe to use from any thread; the lists are replaced, never changed, so that they can be read
without the lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

from vlm.answer_stream import Job
from vlm.chat import AskRequest
from vlm.errors import BusyError

MOST_VISITORS = 1000
"""So many visitors' last turns are remembered."""


class JobQueue:
    """The jobs of one engine, first come first served; reading ahead comes last."""

    def __init__(self, most_waiting: int, answers_at_once: int) -> None:
        """Start empty.

        most_waiting: questions that may wait; answers_at_once: answers that may run together.
        """
        self.changed = threading.Condition()
        self.is_closed = False
        self._most_waiting, self._places = most_waiting, answers_at_once
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._ahead: list[Job] = []
        """Read-aheads that wait."""
        self._turns = 0
        self._last_turns: dict[str, int] = {}
        """By visitor: the number of their last turn, the longest ago first."""
        self._came_at: WeakKeyDictionary[Job, int] = WeakKeyDictionary()
        """By job: how many turns there had been when it came."""
        self._begun: Job | None = None
        """The job whose prompt is being computed, a question or a read-ahead."""

    def jobs(self) -> list[Job]:
        """All jobs: those that run, then those that wait, then read-aheads."""
        begun = [] if self._begun is None or self._begun in self._running else [self._begun]
        return self._running + begun + self._waiting + self._ahead

    def add(self, job: Job) -> None:
        """Let a question wait. Raises BusyError for a full queue or a chat being answered."""
        with self.changed:
            self.drop_stopped()
            conversation_id = job.request.conversation_id
            # Repeated clicks are one job.
            if self._is_asked(conversation_id):
                raise BusyError(
                    "This chat is already being answered. Wait for the answer, or press Stop first."
                )
            if len(self._waiting) >= self._most_waiting:
                raise BusyError(
                    f"{len(self._waiting)} questions are waiting already and the limit is "
                    f"{self._most_waiting}. Try again in a minute."
                )
            self._end_aheads(conversation_id)  # the question does that work itself
            self._came_at[job] = self._turns
            self._waiting = [*self._waiting, job]
            self.changed.notify_all()

    def add_ahead(self, job: Job) -> None:
        """Let a read-ahead wait, in the place of an older one of its conversation."""
        with self.changed:
            conversation_id = job.request.conversation_id
            self._end_aheads(conversation_id)
            if self._is_asked(conversation_id):
                _cancel(job)
                return
            self._ahead = [*self._ahead, job]
            self.changed.notify_all()

    def take(self, may_wait: bool) -> Job | None:
        """Return the next job to begin, or None when there is none (now, or ever again)."""
        with self.changed:
            if may_wait:
                self.changed.wait_for(lambda: self._waiting or self._ahead or self.is_closed)
            self.drop_stopped()
            if self.is_closed:
                return None
            if self._waiting and len(self._running) < self._places:
                job = self._in_turn()[0]
                self._waiting = [other for other in self._waiting if other is not job]
                self._running = [*self._running, job]
                self._note_turn(job)
            elif self._ahead and not self._waiting:
                job, *self._ahead = self._ahead
            else:
                return None
            self._begun = job
            return job

    def begun(self, job: Job) -> None:
        """Note that a job's prompt has been computed, or given up."""
        with self.changed:
            self._begun = None

    def put_back(self, job: Job) -> None:
        """Let a read-ahead that made way for a question wait again."""
        with self.changed:
            if self.is_closed or self._is_asked(job.request.conversation_id):
                _cancel(job)  # the question does that work itself
            else:
                self._ahead = [job, *self._ahead]

    def done(self, job: Job) -> None:
        """Note that an answer is over."""
        with self.changed:
            self._running = [other for other in self._running if other is not job]

    def makes_way(self, job: Job) -> bool:
        """Say whether a running read-ahead has to end for a question.

        The question it was for joins it instead: what has been computed is what it needs.
        """
        with self.changed:
            waiting = self._in_turn()
        if not waiting:
            return False
        first = waiting[0].request
        return (
            first.conversation_id != job.request.conversation_id
            or first.max_visual_tokens != job.request.max_visual_tokens
            or _pictures(first) != _pictures(job.request)
        )

    def is_joined(self, job: Job) -> bool:
        """Say whether the question that a read-ahead is for waits for it."""
        return bool(self._waiting) and not self.makes_way(job)

    def place(self, job: Job) -> int:
        """Count the jobs that a waiting one has to wait for."""
        with self.changed:
            waiting = self._in_turn()
        if job not in waiting:
            return 0
        is_held_up = self._begun is not None or len(self._running) >= self._places
        return waiting.index(job) + int(is_held_up)

    def remove(self, job: Job) -> None:
        """Take a stopped job out of the queue at once, if it is still there."""
        with self.changed:
            if job in self._waiting or job in self._ahead:
                self._waiting = [other for other in self._waiting if other is not job]
                self._ahead = [other for other in self._ahead if other is not job]
                _cancel(job)

    def drop_stopped(self) -> None:
        """Take all stopped jobs out of the queue."""
        for job in self._waiting + self._ahead:
            if job.is_stopped:
                self.remove(job)

    def take_all(self) -> list[Job]:
        """Empty the queue; return all jobs that waited, and those that ran."""
        with self.changed:
            jobs = self.jobs()
            self._running, self._waiting, self._ahead, self._begun = [], [], [], None
            return jobs

    def _note_turn(self, job: Job) -> None:
        self._turns += 1
        for who in dict.fromkeys((_place(job), _visitor(job))):
            self._last_turns.pop(who, None)
            self._last_turns[who] = self._turns
            if len(self._last_turns) > MOST_VISITORS:
                self._last_turns.pop(next(iter(self._last_turns)))

    def _in_turn(self) -> list[Job]:
        """Order the waiting questions: first within each place, then the places."""
        return self._ranked(self._ranked(self._waiting, _visitor), _place)

    def _ranked(self, jobs: list[Job], who: Callable[[Job], str]) -> list[Job]:
        """Order jobs: those with the fewest of their own before them first, then those whose
        own had a turn longest ago, then as they stand.

        Who never had a turn is taken to have had one when the question came: new visitors
        cannot keep others waiting for ever.
        """
        before = Counter(who(job) for job in self._running)
        ranked: list[tuple[int, int, int, Job]] = []
        for number, job in enumerate(jobs):
            name = who(job)
            last_turn = self._last_turns.get(name, self._came_at.get(job, 0))
            ranked.append((before[name], last_turn, number, job))
            before[name] += 1
        return [job for *_, job in sorted(ranked, key=lambda rank: rank[:3])]

    def _is_asked(self, conversation_id: str) -> bool:
        """Say whether a question of this conversation waits or is being answered."""
        return any(
            job.request.conversation_id == conversation_id and not job.is_stopped
            for job in self._running + self._waiting
        )

    def _end_aheads(self, conversation_id: str) -> None:
        for other in self._ahead:
            if other.request.conversation_id == conversation_id:
                self.remove(other)


def _visitor(job: Job) -> str:
    return job.request.visitor or job.request.conversation_id


def _place(job: Job) -> str:
    return _visitor(job).partition("/")[0]


def _cancel(job: Job) -> None:
    job.finish(job.clock.stats("cancelled"))


def _pictures(request: AskRequest) -> list[str]:
    return [picture.content_hash for message in request.messages for picture in message.pictures]
