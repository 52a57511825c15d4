"""Measure transformers' own generate in fp32 on the same picture and questions."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vlm.chat import Message
from vlm.commands.bench_questions import (
    ANY_SIZE,
    FOLLOWUP_TOKENS,
    QUESTION_TEXT_TOKENS,
    ask,
    noise_picture,
)
from vlm.commands.bench_row import BenchJob, BenchRow, best
from vlm.patches import PatchedPicture, patch_picture
from vlm.picture_size import PictureGeometry
from vlm.prompt import ChatTokenizer, Prompt


def measure_stock(job: BenchJob) -> BenchRow:
    """Load transformers' model in fp32 and ask what our engine is asked."""
    start = time.perf_counter()  # before the import, as our engine's loading counts it, too
    from transformers import Qwen3VLForConditionalGeneration

    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(
        job.folder, dtype=torch.float32, local_files_only=True
    ).eval()
    row = BenchRow("stock", "fp32", load_s=time.perf_counter() - start)
    stock = _Stock(model, job.new_tokens)
    tokenizer = ChatTokenizer.from_folder(Path(job.folder))
    _, prompt = ask(tokenizer, [], (), None, FOLLOWUP_TOKENS)
    stock.generate(prompt, None)  # warm-up
    firsts: list[_Run] = []
    followups: list[_Run] = []
    for i in range(job.rounds):
        first, *later = _one_chat(stock, tokenizer, job, seed=i)
        firsts.append(first)
        followups += later
    _fill(row, firsts, followups)
    return row


def _one_chat(stock: _Stock, tokenizer: ChatTokenizer, job: BenchJob, seed: int) -> list[_Run]:
    """Ask about a new picture, then ask on; the whole chat is read again each time."""
    picture = noise_picture(job.width_px, job.height_px, seed)
    patched = patch_picture(picture, PictureGeometry.from_folder(job.folder), ANY_SIZE)
    wanted = patched.visual_tokens + QUESTION_TEXT_TOKENS
    question, prompt = ask(tokenizer, [], (patched,), picture, wanted)
    chat, runs = [question], [stock.generate(prompt, patched)]
    for _ in range(job.turns):
        answer_ids = runs[-1].token_ids
        chat.append(Message("assistant", "an answer", token_ids=answer_ids))
        wanted = len(prompt.token_ids) + len(answer_ids) + FOLLOWUP_TOKENS
        question, prompt = ask(tokenizer, chat, (patched,), None, wanted)
        chat.append(question)
        runs.append(stock.generate(prompt, patched))
    return runs


@dataclass
class _Run:
    """The moments of one call of generate; also its streamer: told every token."""

    prompt_tokens: int
    visual_tokens: int
    started_at: float
    vision_s: float = 0.0
    token_times: list[float] = field(default_factory=list)
    token_ids: tuple[int, ...] = ()
    is_prompt_seen: bool = False

    def put(self, value: torch.Tensor) -> None:
        """Take what the streamer is told: the prompt first, then token by token."""
        if self.is_prompt_seen:
            self.token_times.append(time.perf_counter())
        self.is_prompt_seen = True

    def end(self) -> None:
        """Take the end of the stream."""

    @property
    def ttft_s(self) -> float:
        """From the call to the first token."""
        return self.token_times[0] - self.started_at

    @property
    def decode_tps(self) -> float:
        """Tokens after the first, over the time they took."""
        took_s = self.token_times[-1] - self.token_times[0]
        return (len(self.token_times) - 1) / took_s if took_s > 0 else 0.0


class _Stock:
    """transformers' model with a clock around its vision tower."""

    def __init__(self, model: Any, new_tokens: int) -> None:
        self._model = model
        self._new_tokens = new_tokens
        self._vision_s = 0.0
        self._began = 0.0
        model.model.visual.register_forward_pre_hook(self._begin_vision)
        model.model.visual.register_forward_hook(self._end_vision)

    def _begin_vision(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def _end_vision(self, *_: Any) -> None:
        self._vision_s += time.perf_counter() - self._began

    @torch.inference_mode()
    def generate(self, prompt: Prompt, patched: PatchedPicture | None) -> _Run:
        """Answer greedily with exactly so many new tokens."""
        ids = torch.tensor([prompt.token_ids])
        visual = torch.zeros_like(ids)
        for span in prompt.spans:
            visual[0, span.start : span.start + span.length] = 1
        picture = {}
        if patched is not None:
            picture = {
                "pixel_values": patched.pixel_values,
                "image_grid_thw": torch.tensor([patched.grid_thw]),
                "mm_token_type_ids": visual,
            }
        self._vision_s = 0.0
        run = _Run(ids.shape[1], int(visual.sum()), time.perf_counter())
        output = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **picture,
            do_sample=False,
            min_new_tokens=self._new_tokens,
            max_new_tokens=self._new_tokens,
            streamer=run,
        )
        run.vision_s = self._vision_s
        run.token_ids = tuple(output[0, ids.shape[1] :].tolist())
        return run


def _fill(row: BenchRow, firsts: list[_Run], followups: list[_Run]) -> None:
    row.vision_s = best([run.vision_s for run in firsts])
    row.prefill_s = best([run.ttft_s - run.vision_s for run in firsts])
    row.ttft_s = best([run.ttft_s for run in firsts])
    row.decode_tps = max(run.decode_tps for run in firsts) or None
    row.chats_tps["1"] = row.decode_tps
    row.prompt_tokens = firsts[0].prompt_tokens
    row.visual_tokens = firsts[0].visual_tokens
    row.new_tokens = len(firsts[0].token_ids)
    row.followup_ttft_s = best([run.ttft_s for run in followups])
    if followups:
        row.followup_new_tokens = followups[0].prompt_tokens
