"""What is sent of a chat: pictures as data URLs of the right kind and size."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from vlm.chat import AskRequest, Message, Sampling
from vlm.errors import PromptError
from vlm.images import Picture, open_picture
from vlm.remote.messages import data_url, is_exact, make_body


def photo(width_px: int, height_px: int) -> Picture:
    noise = np.random.default_rng(7).integers(0, 256, (height_px, width_px, 3), np.uint8)
    return open_picture(Image.fromarray(noise))


def sent(picture: Picture, max_visual_tokens: int = 512) -> Image.Image:
    head, _, data = data_url(picture, max_visual_tokens).partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert head == f"data:image/{(image.format or '').lower()};base64"
    return image


@pytest.mark.parametrize(
    ("size", "tokens", "most"),
    [
        ((1600, 1200), 512, (836, 627)),
        ((1600, 1200), 256, (591, 443)),
        ((3000, 20), 16, (1567, 10)),
    ],
)
def test_a_photo_is_a_jpeg_no_larger_than_its_tokens_show(
    size: tuple[int, int], tokens: int, most: tuple[int, int]
) -> None:
    image = sent(photo(*size), tokens)
    assert image.size == most and image.width * image.height <= tokens * 32 * 32
    assert image.format == ("JPEG" if image.width * image.height > 90_000 else "PNG")


def test_small_and_flat_pictures_are_sent_exactly() -> None:
    small, flat = photo(200, 150), open_picture(Image.new("RGB", (900, 500), "navy"))
    for picture in (small, flat):
        image = sent(picture)
        assert image.format == "PNG" and image.tobytes() == picture.image.tobytes()
    assert is_exact(photo(800, 600).image, Image.new("RGBA", (800, 600)))


def test_a_jpeg_looks_like_its_photo() -> None:
    smooth = Image.linear_gradient("L").resize((700, 500)).convert("RGB")
    red = Image.effect_noise((700, 500), 90)
    picture = open_picture(Image.merge("RGB", (red, *smooth.split()[:2])))
    image = sent(picture)
    assert image.format == "JPEG"
    off = np.abs(np.asarray(image, np.int16) - np.asarray(picture.image, np.int16))
    assert off.mean() < 8


def test_pictures_come_before_their_words_and_empty_prompts_stay_out() -> None:
    chat = (
        Message("system", " "),
        Message("user", "What is 图?", (photo(20, 10), photo(30, 10))),
        Message("assistant", "\ud83d"),  # half a character, from an answer that was cut
        Message("user", "Sure?"),
    )
    request = AskRequest("a", chat, Sampling(seed=None))
    body = json.loads(make_body(request, "m", {"temperature", "max_tokens"}))
    first, _, last = body["messages"]
    assert [part["type"] for part in first["content"]] == ["image_url", "image_url", "text"]
    assert first["content"][2]["text"] == "What is 图?" and last["content"] == "Sure?"
    assert {"temperature", "max_tokens", "seed", "top_k"}.isdisjoint(body)
    assert body["max_completion_tokens"] == 512


def test_a_question_without_words_is_refused() -> None:
    request = AskRequest("a", (Message("user", "", (photo(20, 10),)),))
    with pytest.raises(PromptError, match="Type a question about the picture"):
        make_body(request, "m", ())
