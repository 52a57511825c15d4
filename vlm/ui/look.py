"""How the page looks and is served: theme, style sheet, policy header, launch options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from vlm.config import Settings
from vlm.ui.bounded_bodies import BoundedBodies
from vlm.ui.outside import NoOutsideRequests
from vlm.ui.sessions import MOST_SESSIONS

_FOLDER = Path(__file__).resolve().parent
# Fonts of the visitor's own system: nothing is fetched, and Chinese looks as it should.
_FONT = (
    "system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Noto Sans",
    "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", "sans-serif",
)  # fmt: skip
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Liberation Mono", "monospace")
WHILE_VISIBLE_JS = (_FOLDER / "while_visible.js").read_text(encoding="utf-8")
"""What makes the panel tick."""
_HEAD = '<meta name="color-scheme" content="light dark">' + "".join(
    f"<script>{(_FOLDER / name).read_text(encoding='utf-8')}</script>"
    for name in ("drop.js", "history.js", "language.js", "unfold.js")
)


def theme() -> gr.themes.Base:
    """The page's colours and fonts, light and dark."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_lg,
        font=_FONT,
        font_mono=_MONO,
    ).set(
        # The usual greys are too faint: text needs a contrast of 4.5.
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        input_placeholder_color="*neutral_600",
        input_placeholder_color_dark="*neutral_300",
        block_label_text_color="*neutral_600",
        block_title_text_color="*neutral_600",
    )


def launch_options(settings: Settings) -> dict[str, Any]:
    """Keyword arguments for Blocks.launch() that belong to this page wherever it is served."""
    middleware = [Middleware(NoOutsideRequests), Middleware(BoundedBodies, settings=settings)]
    return {
        "theme": theme(),
        "css_paths": [_FOLDER / "style.css", _FOLDER / "boxes.css"],
        "head": _HEAD,
        "favicon_path": _FOLDER / "favicon.svg",
        "footer_links": [],
        "run_history": False,  # would keep visitors' pictures in their browsers
        "ssr_mode": False,  # needs Node and a second process
        # Gradio keeps a copy of the whole page for each, 0.3 MB; ours are as many.
        "state_session_capacity": MOST_SESSIONS,
        "max_file_size": settings.server.max_upload_bytes,
        # A waiting answer holds a thread for up to 2 s at a time; Stop must still get one.
        "max_threads": 40 + 4 * settings.server.queue_size,
        "app_kwargs": {"middleware": middleware},
        "show_error": False,
    }
