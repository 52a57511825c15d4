"""Name who comes to the page, for fair turns between people and not between names."""

from __future__ import annotations

import gradio as gr

from vlm.server.guard import place_of


def page_visitor(request: gr.Request, name: str) -> str:
    """Name a visitor "PLACE/NAME": its login or address, then a name it may choose itself."""
    # Neither is there when a handler is called without a server.
    login = getattr(request, "username", None) or ""
    address = getattr(getattr(request, "client", None), "host", None) or ""
    return f"{place_of(address, login)}/page {name}"
