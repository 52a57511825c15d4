"""Measure this app's own engine as people use it: queue, stream and caches included."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from vlm.chat import AnswerStats, AskRequest, Message, ModelState, Sampling
from vlm.commands.bench_questions import (
    FOLLOWUP_TOKENS,
    QUESTION_TEXT_TOKENS,
    ask,
    noise_picture,
)
from vlm.commands.bench_row import BenchJob, BenchRow, best
from vlm.config import load_settings
from vlm.engine import Engine
from vlm.errors import ModelError
from vlm.patches import PatchedPicture, PictureGeometry, patch_picture
from vlm.prompt import ChatTokenizer

ANY_SIZE = 16384
"""Visual tokens a picture may take: the size that was asked for is measured, not a smaller one."""


def measure_ours(job: BenchJob) -> BenchRow:
    """Load the model and ask about a picture, with follow-ups. Raises VLMError."""
    settings = load_settings(
        "default",
        {
            "model.model": job.folder,
            "model.precision": job.precision,
            "model.threads": job.threads,
            "generation.loop_guard": False,  # random weights repeat themselves
        },
    )
    start = time.perf_counter()
    engine = Engine(settings)
    try:
        state = _wait_until_ready(engine)
        row = BenchRow("ours", state.precision, load_s=time.perf_counter() - start)
        row.note = state.notice
        _ask_all(engine, job, row)
    finally:
        engine.close()
    return row


def _wait_until_ready(engine: Engine) -> ModelState:
    while (state := engine.state()).stage != "ready":
        if state.stage in ("failed", "closed"):
            raise ModelError(state.message)
        time.sleep(0.005)
    return state


def _ask_all(engine: Engine, job: BenchJob, row: BenchRow) -> None:
    folder = Path(job.folder)
    asker = _Asker(engine, job, ChatTokenizer.from_folder(folder))
    geometry = PictureGeometry.from_folder(folder)
    asker.ask("warm-up", [], (), None)
    firsts, followups = [], []
    for i in range(job.rounds):
        picture = noise_picture(job.width_px, job.height_px, seed=i)
        patched = (patch_picture(picture, geometry, ANY_SIZE),)
        question, _ = ask(
            asker.tokenizer, [], patched, picture, patched[0].visual_tokens + QUESTION_TEXT_TOKENS
        )
        chat = [question]
        turn = asker.send(f"round {i}", chat)
        firsts.append(turn.stats)
        for _ in range(job.turns):
            chat.append(Message("assistant", turn.text, token_ids=turn.stats.token_ids))
            known = turn.stats.prompt_tokens + len(turn.stats.token_ids)
            turn = asker.ask(f"round {i}", chat, patched, known + FOLLOWUP_TOKENS)
            followups.append(turn.stats)
    _fill(row, firsts, followups)


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
    """One answer and what it cost."""

    text: str
    stats: AnswerStats


@dataclass(frozen=True)
class _Asker:
    """Sends chats to the engine, greedily."""

    engine: Engine
    job: BenchJob
    tokenizer: ChatTokenizer

    def ask(
        self,
        conversation_id: str,
        chat: list[Message],
        patched: tuple[PatchedPicture, ...],
        wanted_tokens: int | None,
    ) -> _Turn:
        """Add a question of text to a chat and send it."""
        question, _ = ask(self.tokenizer, chat, patched, None, wanted_tokens or FOLLOWUP_TOKENS)
        chat.append(question)
        return self.send(conversation_id, chat)

    def send(self, conversation_id: str, chat: list[Message]) -> _Turn:
        """Send a chat and wait for its answer. Raises VLMError."""
        sampling = Sampling(
            temperature=0.0, presence_penalty=0.0, max_new_tokens=self.job.new_tokens
        )
        request = AskRequest(conversation_id, tuple(chat), sampling, ANY_SIZE)
        text = ""
        for piece in self.engine.ask(request):
            text += piece.text
            if piece.stats is not None:
                return _Turn(text, piece.stats)
        raise ModelError("The engine ended an answer without its figures.")
