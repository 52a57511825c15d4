"""Put the benchmark's pictures and questions to an OpenAI-compatible server."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass

from vlm.chat import Message
from vlm.commands.bench_chats import AnswerSpan, chats_tps
from vlm.commands.bench_questions import (
    ANY_SIZE,
    FOLLOWUP_TOKENS,
    QUESTION_TEXT_TOKENS,
    ask,
    noise_picture,
)
from vlm.commands.bench_row import BenchJob, BenchRow, best
from vlm.commands.bench_server import ChatServer
from vlm.commands.bench_stream import StreamedAnswer
from vlm.images import Picture
from vlm.model_source import BUNDLED_FOLDER
from vlm.patches import measure_picture
from vlm.picture_size import PictureGeometry
from vlm.prompt import ChatTokenizer

CHUNKS_NOTE = "The server counted no tokens, so the parts it streamed were counted."


def measure_url(server: ChatServer, job: BenchJob) -> BenchRow:
    """Ask the server what `bench --random-weights` asks our engine. Raises ModelError."""
    row = BenchRow("server", None)
    texts = _texts(job)
    server.ask([{"role": "user", "content": texts.warm_up}], job.new_tokens)
    firsts, followups = [], []
    chat: list[Mapping[str, object]] = []
    for i in range(job.rounds):
        picture = noise_picture(job.width_px, job.height_px, seed=i)
        chat = [_message(picture, texts.first)]
        firsts.append(server.ask(chat, job.new_tokens))
        asked, answer = list(chat), firsts[-1]
        for _ in range(job.turns):
            # Some servers refuse a turn without text.
            asked.append({"role": "assistant", "content": answer.text or "-"})
            asked.append({"role": "user", "content": texts.followup})
            answer = server.ask(asked, job.new_tokens)
            followups.append(answer)
    _fill(row, firsts, followups)
    if job.chats > 1:
        row.chats_tps = chats_tps(
            lambda i: _span(server.ask(chat, job.new_tokens)), job.chats, job.rounds
        )
    return row


def _fill(row: BenchRow, firsts: list[StreamedAnswer], followups: list[StreamedAnswer]) -> None:
    row.ttft_s = best([answer.ttft_s for answer in firsts if answer.ttft_s is not None])
    rates = [answer.decode_tps for answer in firsts if answer.decode_tps is not None]
    row.decode_tps = row.chats_tps["1"] = max(rates, default=None)
    row.followup_ttft_s = best([answer.ttft_s for answer in followups if answer.ttft_s is not None])
    row.prompt_tokens, row.new_tokens = firsts[0].prompt_tokens, firsts[0].new_tokens
    notes = [answer.note for answer in (*firsts, *followups)]
    notes += [CHUNKS_NOTE] if firsts[0].completion_tokens is None else []
    row.note = " ".join(filter(None, dict.fromkeys(notes)))


def _span(answer: StreamedAnswer) -> AnswerSpan:
    assert answer.first_at is not None and answer.last_at is not None  # else ask() had raised
    return AnswerSpan(answer.first_at, answer.last_at, answer.new_tokens)


@dataclass(frozen=True)
class _Texts:
    """What is asked: before the clock counts, about a picture, and after its answer."""

    warm_up: str
    first: str
    followup: str


def _texts(job: BenchJob) -> _Texts:
    """Return the very texts that our engine gets with random weights, whose tokens are known."""
    tokenizer = ChatTokenizer.from_folder(BUNDLED_FOLDER)
    picture = noise_picture(job.width_px, job.height_px, seed=0)
    measured = (measure_picture(picture, PictureGeometry(), ANY_SIZE),)
    wanted = measured[0].visual_tokens + QUESTION_TEXT_TOKENS
    first, prompt = ask(tokenizer, [], measured, picture, wanted)
    ids = tuple(tokenizer.encode_plain("an answer"))
    before = [first, Message("assistant", "an answer", token_ids=ids)]
    wanted = len(prompt.token_ids) + len(ids) + FOLLOWUP_TOKENS
    followup, _ = ask(tokenizer, before, measured, None, wanted)
    warm_up, _ = ask(tokenizer, [], (), None, FOLLOWUP_TOKENS)
    return _Texts(warm_up.text, first.text, followup.text)


def _message(picture: Picture, text: str) -> Mapping[str, object]:
    """Return a question about a picture, which is sent as a PNG: no server sees other pixels."""
    buffer = io.BytesIO()
    picture.image.save(buffer, format="PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {"role": "user", "content": content}
