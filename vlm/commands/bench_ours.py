"""Measure this app's own engine as people use it: queue, stream and caches included."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from vlm.chat import AnswerStats, AskRequest, ChatEngine, Message, ModelState, Sampling
from vlm.commands.bench_chats import AnswerSpan, chats_tps
from vlm.commands.bench_questions import (
    ANY_SIZE,
    BOXES_QUESTION,
    FOLLOWUP_TOKENS,
    QUESTION_TEXT_TOKENS,
    ask,
    noise_picture,
)
from vlm.commands.bench_row import BenchJob, BenchRow, best
from vlm.commands.doctor_pictures import draw_shapes
from vlm.config import load_settings
from vlm.engine import Engine
from vlm.errors import ModelError
from vlm.patches import MeasuredPicture, measure_picture
from vlm.picture_size import PictureGeometry
from vlm.prompt import ChatTokenizer

BOXES_TOKENS = 128
UNSEEN = 1000


def measure_ours(job: BenchJob) -> BenchRow:
    """Load the model and ask about a picture, with follow-ups. Raises VLMError."""
    settings = load_settings(
        "default",
        {
            "model.model": job.folder,
            "model.precision": job.precision,
            "model.threads": job.threads,
            "generation.loop_guard": False,  # random weights repeat themselves
            "server.queue_size": max(16, job.chats),
            "server.answers_at_once": min(max(4, job.chats), 16),
        },
    )
    start = time.perf_counter()
    engine = Engine(settings)
    try:
        state = _wait_until_ready(engine)
        row = BenchRow("ours", state.precision, load_s=time.perf_counter() - start)
        row.note = state.notice
        ask_all(engine, job, row)
    finally:
        engine.close()
    return row


def _wait_until_ready(engine: Engine) -> ModelState:
    while (state := engine.state()).stage != "ready":
        if state.stage in ("failed", "closed"):
            raise ModelError(state.message)
        time.sleep(0.005)
    return state


def ask_all(engine: ChatEngine, job: BenchJob, row: BenchRow) -> None:
    """Ask a ready engine everything and fill the row with what it cost. Raises VLMError."""
    folder = Path(job.folder)
    asker = _Asker(engine, job, ChatTokenizer.from_folder(folder))
    geometry = PictureGeometry.from_folder(folder)
    asker.ask_on("warm-up", [], (), FOLLOWUP_TOKENS)
    firsts, followups, questions = [], [], []
    for i in range(job.rounds):
        picture = noise_picture(job.width_px, job.height_px, seed=i)
        measured = (measure_picture(picture, geometry, ANY_SIZE),)
        question, _ = ask(
            asker.tokenizer, [], measured, picture, measured[0].visual_tokens + QUESTION_TEXT_TOKENS
        )
        questions.append(question)
        chat = [question]
        turn = asker.send(f"round {i}", chat)
        firsts.append(turn.stats)
        for _ in range(job.turns):
            chat.append(Message("assistant", turn.text, token_ids=turn.stats.token_ids))
            known = turn.stats.prompt_tokens + len(turn.stats.token_ids)
            turn = asker.ask_on(f"round {i}", chat, measured, known + FOLLOWUP_TOKENS)
            followups.append(turn.stats)
        engine.forget(f"round {i}")
    _fill(row, firsts, followups)
    row.readahead_ttft_s = best([_ask_read(asker, questions[-1], i) for i in range(job.rounds)])
    if job.chats > 1:
        row.chats_tps = _measure_chats(asker, questions[-1])
    if job.has_sense:
        row.speculation_ratio = _measure_guesses(asker)


def _ask_read(asker: _Asker, question: Message, seed: int) -> float:
    """Let a new picture be read, then ask about it; return the time to the first token."""
    job = asker.job
    # Not one of the rounds' pictures, which the engine may know.
    picture = noise_picture(job.width_px, job.height_px, seed=UNSEEN + seed)
    unasked = Message("user", "?", (picture,))  # what stands after the picture is not read
    request = AskRequest(f"ahead {seed}", (unasked,), max_visual_tokens=ANY_SIZE)
    for piece in asker.engine.read_ahead(request):
        if piece.stats is not None and piece.stats.finish_reason == "cancelled":
            raise ModelError("The engine gave up reading a picture before the question.")
    turn = asker.send(request.conversation_id, [replace(question, pictures=(picture,))])
    asker.engine.forget(request.conversation_id)
    return turn.stats.ttft_s


def _measure_chats(asker: _Asker, question: Message) -> dict[str, float | None]:
    """Let conversations read the question one by one, then answer it at the same time."""
    for i in range(asker.job.chats):
        asker.send(f"chat {i}", [question], new_tokens=1)
    return chats_tps(
        lambda i: asker.send(f"chat {i}", [question]).span, asker.job.chats, asker.job.rounds
    )


def _measure_guesses(asker: _Asker) -> float | None:
    """Return how many times as fast an answer with boxes is when its tokens are guessed."""
    question = Message("user", BOXES_QUESTION, (draw_shapes(),))
    rates: dict[bool, float] = {}
    for may_guess in [False, True] * asker.job.rounds:
        turn = asker.send("boxes", [question], BOXES_TOKENS, may_guess)
        rates[may_guess] = max(turn.stats.decode_tps, rates.get(may_guess, 0.0))
    return rates[True] / rates[False] if rates[False] > 0 else None


def _fill(row: BenchRow, firsts: list[AnswerStats], followups: list[AnswerStats]) -> None:
    row.vision_s = best([stats.vision_s for stats in firsts])
    row.prefill_s = best([stats.prefill_s for stats in firsts])
    row.ttft_s = best([stats.ttft_s for stats in firsts])
    row.decode_tps = max((stats.decode_tps for stats in firsts), default=None) or None
    row.chats_tps["1"] = row.decode_tps
    row.followup_ttft_s = best([stats.ttft_s for stats in followups])
    row.prompt_tokens = firsts[0].prompt_tokens
    row.visual_tokens = firsts[0].visual_tokens
    row.new_tokens = firsts[0].new_tokens
    if followups:
        row.followup_new_tokens = followups[0].prompt_tokens - followups[0].cached_tokens


@dataclass(frozen=True)
class _Turn:
    """One answer, when it was asked for, and what it cost."""

    text: str
    stats: AnswerStats
    asked_at: float

    @property
    def span(self) -> AnswerSpan:
        """When its tokens came, the stop token included."""
        stats = self.stats
        tokens = stats.new_tokens + (stats.finish_reason == "stop")
        first_at = self.asked_at + stats.ttft_s
        decode_s = (tokens - 1) / stats.decode_tps if stats.decode_tps > 0 else 0.0
        return AnswerSpan(first_at, first_at + decode_s, tokens)


@dataclass(frozen=True)
class _Asker:
    """Sends chats to the engine, greedily."""

    engine: ChatEngine
    job: BenchJob
    tokenizer: ChatTokenizer

    def ask_on(
        self,
        conversation_id: str,
        chat: list[Message],
        pictures: tuple[MeasuredPicture, ...],
        wanted_tokens: int,
    ) -> _Turn:
        """Add a question of text to a chat and send it."""
        question, _ = ask(self.tokenizer, chat, pictures, None, wanted_tokens)
        chat.append(question)
        return self.send(conversation_id, chat)

    def send(
        self,
        conversation_id: str,
        chat: list[Message],
        new_tokens: int = 0,
        may_guess: bool = False,
    ) -> _Turn:
        """Send a chat and wait for its answer, by default of the job's length. Raises VLMError."""
        sampling = Sampling(
            temperature=0.0,
            presence_penalty=0.0,
            max_new_tokens=new_tokens or self.job.new_tokens,
        )
        request = AskRequest(conversation_id, tuple(chat), sampling, ANY_SIZE, may_guess)
        text, asked_at = "", time.perf_counter()
        for piece in self.engine.ask(request):
            text += piece.text
            if piece.stats is not None:
                return _Turn(text, piece.stats, asked_at)
        raise ModelError("The engine ended an answer without its figures.")
