"""Small pictures as programs send them."""

from __future__ import annotations

import base64
import io

from PIL import Image


def png(colour: str = "red", size: tuple[int, int] = (64, 48)) -> bytes:
    """A PNG file of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def data_url(file: bytes) -> str:
    """A picture file as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"
