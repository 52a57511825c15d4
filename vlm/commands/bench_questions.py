"""What a benchmark asks: a picture of a given size, and questions of given lengths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from vlm.chat import Message
from vlm.images import Picture, open_picture
from vlm.prompt import ChatTokenizer, Prompt, PromptPicture

ANY_SIZE = 16384
"""Visual tokens a picture may take: the size that was asked for is measured, not a smaller one."""
QUESTION_TEXT_TOKENS = 30
"""Tokens around the picture: the template and a question of one sentence."""
FOLLOWUP_TOKENS = 23
"""New tokens of a short follow-up, the template's included."""
BOXES_QUESTION = "Locate all shapes, output the boxes as JSON."
"""What is asked where guesses are measured: such an answer repeats itself."""
WORDS = "what is on the left of the big red circle and how many of them do you see in it".split()


def noise_picture(width_px: int, height_px: int, seed: int) -> Picture:
    """Make a picture that no cache knows yet."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)
    return open_picture(Image.fromarray(pixels), name=f"noise {seed}")


def ask(
    tokenizer: ChatTokenizer,
    before: Sequence[Message],
    pictures: Sequence[PromptPicture],
    shown: Picture | None,
    wanted_tokens: int,
) -> tuple[Message, Prompt]:
    """Return a question, grown word by word until the whole prompt has `wanted_tokens`.

    `before`: the chat so far. `pictures`: all of the chat, that of the question included.
    """
    message = Message("user", "", () if shown is None else (shown,))
    text = ""
    for word in itertools.cycle(WORDS):
        text = f"{text} {word}".strip()
        message = replace(message, text=text)
        prompt = tokenizer.encode([*before, message], pictures)
        if len(prompt.token_ids) >= wanted_tokens:
            return message, prompt
    raise AssertionError("an endless cycle ended")
