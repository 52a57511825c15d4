"""Ask one question that nobody waits for, so that the first person does not pay for it."""

from __future__ import annotations

import uuid

from PIL import Image

from vlm.chat import AnswerStats, AskRequest, ChatEngine, Message, Sampling
from vlm.errors import GenerationError
from vlm.images import Picture, open_picture

_SIZE_PX = (512, 384)


def drawn_picture() -> Picture:
    """Draw the picture to warm up with, where nobody gave one."""
    return open_picture(Image.new("RGB", _SIZE_PX, (96, 144, 192)), name="warm-up")


def warm_up_request(picture: Picture, max_visual_tokens: int) -> AskRequest:
    """Make a question of two tokens about a picture, in a conversation of its own."""
    return AskRequest(
        f"warm-up {uuid.uuid4().hex}",
        (Message("user", "Describe it.", (picture,)),),
        Sampling(temperature=0.0, max_new_tokens=2),
        max_visual_tokens,
        visitor="warm-up",  # however many ask for it, they count as one
    )


def warm_up(engine: ChatEngine, max_visual_tokens: int) -> AnswerStats:
    """Warm the model up and leave nothing of it; returns what the question cost.

    Waits for the model while it is loading. Raises VLMError.
    """
    request = warm_up_request(drawn_picture(), max_visual_tokens)
    try:
        for piece in engine.ask(request):
            if piece.stats is not None and piece.stats.finish_reason != "cancelled":
                return piece.stats
    finally:
        engine.forget(request.conversation_id)
    raise GenerationError("The warm-up was stopped. Try again.")
