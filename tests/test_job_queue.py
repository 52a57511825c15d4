"""The order in which questions are answered, without an engine."""

import threading
import time

import pytest

from vlm.answer_stream import Job
from vlm.chat import AskRequest, Message, Piece
from vlm.errors import BusyError
from vlm.job_queue import JobQueue


@pytest.fixture
def queue():
    return JobQueue(most_waiting=5, answers_at_once=1)


def job(queue, conversation_id, visitor="", is_ahead=False):
    request = AskRequest(conversation_id, (Message("user", "?"),), visitor=visitor)
    made = Job(request, lambda job: Piece("queued"), queue.remove, is_ahead=is_ahead)
    (queue.add_ahead if is_ahead else queue.add)(made)
    return made


def served(queue):
    """Take and end all jobs; return their conversations in order."""
    order = []
    while (taken := queue.take(may_wait=False)) is not None:
        queue.begun(taken)
        queue.done(taken)
        order.append(taken.request.conversation_id)
    return order


def test_the_oldest_question_is_first(queue):
    for name in "abc":
        job(queue, name)
    assert served(queue) == ["a", "b", "c"]


def test_a_visitors_second_question_waits_behind_the_first_of_others(queue):
    job(queue, "a1", "ann")
    job(queue, "a2", "ann")
    job(queue, "a3", "ann")
    last = job(queue, "b1", "ben")
    assert queue.place(last) == 1
    assert served(queue) == ["a1", "b1", "a2", "a3"]


def test_a_running_answer_counts_as_the_visitors_first(queue):
    job(queue, "a1", "ann")
    queue.begun(queue.take(may_wait=False))
    job(queue, "a2", "ann")
    second = job(queue, "b1", "ben")
    assert queue.place(second) == 1


def test_invented_names_win_no_turns(queue):
    for number in range(3):
        job(queue, f"a{number}", f"here/name{number}")
    last = job(queue, "b", "there/ben")
    assert queue.place(last) == 1
    assert served(queue) == ["a0", "b", "a1", "a2"]


def test_people_of_one_place_take_turns_within_it(queue):
    job(queue, "a1", "here/ann")
    job(queue, "a2", "here/ann")
    job(queue, "b1", "here/ben")
    job(queue, "c1", "there/cat")
    assert served(queue) == ["a1", "c1", "b1", "a2"]


def test_who_had_a_turn_longest_ago_is_first(queue):
    for visitor in ("ann", "ben"):
        for turn in range(2):
            job(queue, f"{visitor}{turn}", visitor)
    assert served(queue) == ["ann0", "ben0", "ann1", "ben1"]


def test_reading_ahead_comes_last(queue):
    job(queue, "a", is_ahead=True)
    job(queue, "b")
    assert served(queue) == ["b", "a"]


def test_no_more_run_than_there_are_places(queue):
    job(queue, "a")
    job(queue, "b")
    first = queue.take(may_wait=False)
    queue.begun(first)
    assert queue.take(may_wait=False) is None
    queue.done(first)
    assert queue.take(may_wait=False).request.conversation_id == "b"


def test_a_full_queue_refuses(queue):
    for name in "abcde":
        job(queue, name)
    with pytest.raises(BusyError, match="limit is 5"):
        job(queue, "f")


def test_new_visitors_keep_nobody_waiting_for_ever(queue):
    job(queue, "a1", "ann")
    first = queue.take(may_wait=False)
    queue.begun(first)
    queue.done(first)
    job(queue, "a2", "ann")
    for number in range(4):
        job(queue, f"new{number}")
        taken = queue.take(may_wait=False)
        queue.begun(taken)
        queue.done(taken)
        if taken.request.conversation_id == "a2":
            return
    pytest.fail("the second question was overtaken by everyone")


def test_a_read_ahead_that_made_way_does_not_come_back_beside_its_own_question(queue):
    ahead = job(queue, "a", is_ahead=True)
    assert queue.take(may_wait=False) is ahead
    job(queue, "a")
    queue.put_back(ahead)
    queue.begun(ahead)
    assert ahead.is_over
    assert served(queue) == ["a"]


def test_the_queue_can_be_looked_at_while_it_changes(queue):
    """Readers ask for their place from their own threads."""
    errors, is_over = [], threading.Event()

    def look():
        waiting = Job(AskRequest("x", (Message("user", "?"),)), lambda job: Piece("queued"), print)
        while not is_over.is_set():
            try:
                queue.place(waiting)
                queue.makes_way(waiting)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        for name in "abcde":
            job(queue, name)
        served(queue)
    is_over.set()
    for thread in threads:
        thread.join()
    assert errors == []
