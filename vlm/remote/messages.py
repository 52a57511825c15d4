"""Write a chat as a request in OpenAI's form; pictures go along as data URLs.

A picture is made as small as its visual tokens allow here, so that no more is sent than the
local model would look at. What has few colours stays exact (PNG), photos become JPEG.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from PIL import Image

from vlm.chat import AskRequest, Message, Sampling
from vlm.errors import PromptError
from vlm.images import Picture

TOKEN_PX = 32
"""Side of the square of a picture that one visual token shows (Qwen3-VL)."""
SMALL_PX = 300 * 300
"""A picture of so few pixels is sent as it is: as PNG it takes a few hundred KB at most."""
FLAT_COLOURS = 4096
"""Up to so many colours a picture is a drawing or a screenshot, whose edges JPEG would smear."""
JPEG_QUALITY = 92

OTHER_WORDS: Mapping[str, str | None] = {
    "stream_options": None,
    "max_tokens": "max_completion_tokens",
    "presence_penalty": None,
    "seed": None,
    "temperature": None,
    "top_p": None,
}
"""What a server refuses by name is said in its other spelling, or left out."""


def make_body(request: AskRequest, model: str, refused: Collection[str]) -> bytes:
    """Write the whole request as JSON. Raises PromptError for a question without words."""
    messages = [
        _message(message, request.max_visual_tokens)
        for message in request.messages
        if message.role != "system" or message.text.strip()
    ]
    body = {"model": model, "messages": messages, "stream": True}
    return json.dumps(body | _options(request.sampling, refused)).encode()


def _options(sampling: Sampling, refused: Collection[str]) -> dict[str, object]:
    options: dict[str, object] = {
        "stream_options": {"include_usage": True},
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
    }
    if sampling.seed is not None:
        options["seed"] = sampling.seed
    for name in refused:
        value, other = options.pop(name, None), OTHER_WORDS[name]
        if other is not None:
            options[other] = value
    return options


def _message(message: Message, max_visual_tokens: int) -> dict[str, Any]:
    if message.role == "user" and not message.text.strip():
        about = " about the picture" if message.pictures else ""
        raise PromptError(f"This message has no text. Type a question{about} and try again.")
    # Some servers refuse a turn without text, such as an answer that was stopped at once.
    text = message.text or "-"
    if not message.pictures:
        return {"role": message.role, "content": text}
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": data_url(picture, max_visual_tokens)}}
        for picture in message.pictures
    ]
    return {"role": message.role, "content": [*parts, {"type": "text", "text": text}]}


def data_url(picture: Picture, max_visual_tokens: int) -> str:
    """Encode a picture, no larger than so many visual tokens show of it."""
    image = _shrunk(picture.image, max_visual_tokens * TOKEN_PX**2)
    buffer = io.BytesIO()
    if is_exact(picture.image, image):
        kind = "png"
        image.save(buffer, format="PNG")
    else:
        kind = "jpeg"
        # Full colour resolution: red print on white is what people ask about.
        image.convert("RGB").save(buffer, format="JPEG", quality=JPEG_QUALITY, subsampling=0)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def is_exact(image: Image.Image, sent: Image.Image) -> bool:
    """Say whether a picture is sent without loss: small, of few colours, or with alpha."""
    is_small = sent.width * sent.height <= SMALL_PX
    return is_small or "A" in sent.mode or image.getcolors(FLAT_COLOURS) is not None


def _shrunk(image: Image.Image, most_px: int) -> Image.Image:
    if image.width * image.height <= most_px:
        return image
    scale = math.sqrt(most_px / (image.width * image.height))
    size = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)
