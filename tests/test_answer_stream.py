"""Job and AnswerStream: a reader hears regularly, and losing the reader stops the work."""

import gc
import threading
import time

import pytest

from vlm.answer_stream import AnswerStream, Job
from vlm.chat import AskRequest, Message, Piece
from vlm.errors import GenerationError, Stopped

REQUEST = AskRequest("c", (Message("user", "hi"),))


def make_job(abandoned_s=60.0, stopped=None):
    removed = stopped if stopped is not None else []
    return Job(REQUEST, lambda job: Piece("queued", queue_position=3), removed.append, abandoned_s)


def test_the_reader_hears_at_once_what_it_waits_for_and_again_every_heartbeat():
    pieces = iter(AnswerStream(make_job(), heartbeat_s=0.05))
    began = time.monotonic()
    assert next(pieces) == Piece("queued", queue_position=3)
    assert time.monotonic() - began < 0.04
    assert next(pieces).stage == "queued"
    assert 0.04 < time.monotonic() - began < 1.0


def test_a_heartbeat_repeats_the_last_progress_without_its_text():
    job = make_job()
    job.emit(Piece("decode", text="red"))
    pieces = iter(AnswerStream(job, heartbeat_s=0.02))
    assert next(pieces).text == "red"
    assert next(pieces) == Piece("decode")


def test_unread_pieces_of_one_stage_merge_and_no_text_or_notice_is_lost():
    job = make_job()
    job.emit(Piece("prefill", progress=0.5, notices=("a",)))
    job.emit(Piece("prefill", progress=0.9, notices=("b",)))
    job.emit(Piece("decode", text="gr"))
    job.emit(Piece("decode", text="een"))
    job.finish(job.clock.stats("stop"))
    seen = list(AnswerStream(job))
    assert [piece.stage for piece in seen] == ["prefill", "decode", "done"]
    assert seen[0] == Piece("prefill", progress=0.9, notices=("a", "b"))
    assert seen[1].text == "green"


def test_an_error_is_raised_where_the_answer_is_read_after_the_text_before_it():
    job = make_job()
    job.emit(Piece("decode", text="half"))
    job.fail(GenerationError("no memory"))
    job.finish(job.clock.stats("stop"))  # too late: the first end counts
    pieces = iter(AnswerStream(job))
    assert next(pieces).text == "half"
    with pytest.raises(GenerationError, match="no memory"):
        next(pieces)


def test_closing_the_iterator_or_losing_the_answer_stops_the_work():
    job = make_job()
    pieces = iter(AnswerStream(job, heartbeat_s=0.01))
    next(pieces)
    job.check()
    pieces.close()
    with pytest.raises(Stopped):
        job.check()

    job = make_job()
    answer = AnswerStream(job)
    job.check()
    del answer
    gc.collect()
    with pytest.raises(Stopped):
        job.check()


def test_an_answer_nobody_reads_is_given_up_and_reading_it_keeps_it_alive():
    job = make_job(abandoned_s=0.2)
    for _ in range(5):
        time.sleep(0.08)
        job.read(0.0)
        job.check()
    time.sleep(0.3)
    with pytest.raises(Stopped):
        job.check()


def test_stop_reaches_the_engine_from_any_thread_and_the_stream_still_ends_with_done():
    removed = []
    job = make_job(stopped=removed)
    answer = AnswerStream(job)
    thread = threading.Thread(target=answer.stop)
    thread.start()
    thread.join()
    assert removed == [job] and job.is_stopped
    job.finish(job.clock.stats("cancelled"))
    assert [piece.stage for piece in answer] == ["done"]
    answer.stop()
    assert removed == [job], "stopping what is over does nothing"


def test_a_second_iterator_goes_on_where_an_interrupted_one_ended():
    job = make_job()
    answer = AnswerStream(job, heartbeat_s=0.01)
    first = iter(answer)
    next(first)
    first.close()
    job.emit(Piece("decode", text="late"))
    job.finish(job.clock.stats("cancelled"))
    assert "".join(piece.text for piece in answer) == "late"
