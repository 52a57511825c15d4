"""Several conversations at once: what is counted, and that they really ask together."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from vlm.chat import AnswerStats, AskRequest, Piece
from vlm.commands.bench_chats import AnswerSpan, chats_tps, total_tps
from vlm.commands.bench_ours import ask_all
from vlm.commands.bench_questions import BOXES_QUESTION
from vlm.commands.bench_row import BenchJob, BenchRow


def test_one_conversation_alone_gets_its_decode_rate() -> None:
    assert total_tps([AnswerSpan(10.0, 13.0, 31)]) == pytest.approx(10.0)


def test_answers_that_overlap_add_up() -> None:
    together = [AnswerSpan(10.0 + i / 10, 13.0 + i / 10, 31) for i in range(4)]
    assert total_tps(together) == pytest.approx(123 / 3.3)


def test_answers_one_after_the_other_gain_nothing() -> None:
    in_turn = [AnswerSpan(10.0 + 3 * i, 12.9 + 3 * i, 30) for i in range(4)]
    assert total_tps(in_turn) == pytest.approx(119 / 11.9)


@pytest.mark.parametrize(
    "spans",
    [[], [AnswerSpan(1.0, 2.0, 9), AnswerSpan(1.0, 1.0, 1)], [AnswerSpan(1.0, 1.0, 5)]],
)
def test_answers_too_short_to_be_timed_have_no_rate(spans: list[AnswerSpan]) -> None:
    assert total_tps(spans) is None


def test_conversations_are_asked_at_the_same_time_and_the_best_round_counts() -> None:
    all_there = threading.Barrier(3, timeout=30)
    asked: list[int] = []

    def ask(i: int) -> AnswerSpan:
        asked.append(i)
        number = len(asked)
        if number > 2:  # the first two rounds ask one conversation alone
            all_there.wait()
        return AnswerSpan(0.0, 1.0 if number == 2 else 2.0, 11)

    rates = chats_tps(ask, chats=3, rounds=2)
    assert sorted(asked) == [0] * 4 + [1] * 2 + [2] * 2
    assert rates == {"1": 10.0, "3": 16.0, "4": None}


class OneByOne:
    """An engine that answers with known figures: a tenth of a second per token."""

    def __init__(self) -> None:
        self.requests: list[AskRequest] = []
        self.read: list[AskRequest] = []
        self.forgotten: list[str] = []

    def ask(self, request: AskRequest) -> list[Piece]:
        self.requests.append(request)
        new_tokens = request.sampling.max_new_tokens
        stats = self.stats(new_tokens)
        if request.may_guess:
            stats = replace(stats, decode_tps=15.0)
        if any(request.conversation_id == known.conversation_id for known in self.read):
            stats = replace(stats, ttft_s=0.2)
        return [Piece("decode", text="x" * new_tokens), Piece("done", stats=stats)]

    def stats(self, new_tokens: int) -> AnswerStats:
        return AnswerStats(
            prompt_tokens=100,
            visual_tokens=64,
            cached_tokens=0,
            new_tokens=new_tokens,
            queue_s=0.0,
            vision_s=1.0,
            prefill_s=2.0,
            ttft_s=3.0,
            prefill_tps=50.0,
            decode_tps=10.0 if new_tokens > 1 else 0.0,
            finish_reason="length",
            token_ids=tuple(range(40, 40 + new_tokens)),
        )

    def read_ahead(self, request: AskRequest) -> list[Piece]:
        self.read.append(request)
        return [Piece("done", stats=replace(self.stats(1), finish_reason="stop"))]

    def forget(self, conversation_id: str) -> None:
        self.forgotten.append(conversation_id)


def test_conversations_have_read_the_picture_before_they_answer_together(
    bundled_folder: Path,
) -> None:
    engine, row = OneByOne(), BenchRow("ours", "fp32")
    job = BenchJob("ours", str(bundled_folder), "fp32", 256, 256, 21, 1, 1, 1, chats=4)
    ask_all(engine, job, row)  # type: ignore[arg-type]
    assert row.decode_tps == 10.0 and row.followup_ttft_s == 3.0
    assert row.chats_tps["1"] == pytest.approx(10.0)
    assert row.chats_tps["4"] == pytest.approx(83 / 2.0, rel=0.1)  # they began together
    chats = [r for r in engine.requests if r.conversation_id.startswith("chat ")]
    assert [r.sampling.max_new_tokens for r in chats] == [1] * 4 + [21] * 5
    assert len({r.conversation_id for r in chats}) == 4
    assert len({r.messages for r in chats}) == 1  # all of it is in their caches
    assert not any(r.may_guess for r in chats)


def test_a_picture_is_read_before_it_is_asked_about(bundled_folder: Path) -> None:
    engine, row = OneByOne(), BenchRow("ours", "fp32")
    job = BenchJob("ours", str(bundled_folder), "fp32", 256, 256, 3, 0, 2, 1, chats=1)
    ask_all(engine, job, row)  # type: ignore[arg-type]
    assert (row.ttft_s, row.readahead_ttft_s) == (3.0, 0.2)
    asked = {r.conversation_id: r.messages for r in engine.requests}
    read = [r.messages[-1].pictures[0].content_hash for r in engine.read]
    assert len(set(read)) == 2
    for request in engine.read:
        assert asked[request.conversation_id][0].pictures == request.messages[0].pictures
    known = [asked[f"round {i}"][0].pictures[0].content_hash for i in range(2)]
    assert not set(read) & set(known)  # so its features are in no cache
    assert engine.forgotten == ["round 0", "round 1", "ahead 0", "ahead 1"]


@pytest.mark.parametrize("has_sense", [True, False])
def test_guesses_are_measured_on_boxes_where_the_model_can_write_them(
    has_sense: bool, bundled_folder: Path
) -> None:
    engine, row = OneByOne(), BenchRow("ours", "fp32")
    job = BenchJob("ours", str(bundled_folder), "fp32", 256, 256, 3, 0, 2, 1, 1, has_sense)
    ask_all(engine, job, row)  # type: ignore[arg-type]
    boxes = [r for r in engine.requests if r.messages[-1].text == BOXES_QUESTION]
    assert [r.may_guess for r in boxes] == [False, True] * 2 * has_sense
    assert row.speculation_ratio == (1.5 if has_sense else None)
    assert not any(r.may_guess for r in engine.requests if r not in boxes)
    assert row.decode_tps == 10.0


def test_one_conversation_only_leaves_the_rest_unmeasured(bundled_folder: Path) -> None:
    row = BenchRow("ours", "fp32")
    job = BenchJob("ours", str(bundled_folder), "fp32", 256, 256, 3, 0, 1, 1, chats=1)
    ask_all(OneByOne(), job, row)  # type: ignore[arg-type]
    assert row.chats_tps == {"1": 10.0, "4": None}
