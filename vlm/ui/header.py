"""The line that says where the model is, and the banner of the built-in one, as HTML."""

from __future__ import annotations

import html

from vlm.chat import ModelState
from vlm.ui.answer_line import format_seconds
from vlm.ui.chinese import in_language
from vlm.ui.texts import Texts
from vlm.units import format_bytes


def header_html(state: ModelState, texts: Texts) -> str:
    """Show the title and the model's state; everything in it is escaped."""
    words = {
        "finding": texts.finding,
        "downloading": texts.downloading,
        "loading": texts.loading,
        "ready": texts.ready,
        "failed": texts.failed,
        "closed": texts.closed,
    }[state.stage]
    name = html.escape(state.model.rsplit("/", 1)[-1])
    label = f"{name} · {words}" if name and state.stage in ("ready", "loading") else words
    return (
        f'<header class="top"><h1>{html.escape(texts.title)}</h1>'
        f'<div class="model-state {state.stage}" role="status">'
        f'<span class="dot" aria-hidden="true"></span><span>{label}</span></div></header>'
        f"{_progress(state, texts)}{_banner(state, texts)}"
    )


def _progress(state: ModelState, texts: Texts) -> str:
    if state.stage not in ("finding", "downloading", "loading"):
        return ""
    parts = []
    bar = '<div class="bar unknown"><div></div></div>'
    if state.total_bytes > 0:
        percent = min(100.0, 100 * state.done_bytes / state.total_bytes)
        bar = (
            f'<div class="bar" role="progressbar" aria-valuemin="0" aria-valuemax="100" '
            f'aria-valuenow="{percent:.0f}" aria-label="{html.escape(texts.loading)}">'
            f'<div style="width:{percent:.1f}%"></div></div>'
        )
        done, total = format_bytes(state.done_bytes), format_bytes(state.total_bytes)
        parts.append(f"{percent:.0f} % · {done} / {total}")
    if state.eta_s is not None:
        parts.append(texts.eta.format(time=format_seconds(state.eta_s)))
    if not parts and state.message:
        parts.append(in_language(state.message, texts.language))
    return f'<div class="progress">{bar}<span>{html.escape(" · ".join(parts))}</span></div>'


def _banner(state: ModelState, texts: Texts) -> str:
    if state.stage == "failed":
        message = html.escape(in_language(state.message, texts.language))
        return f'<div class="banner failed" role="alert">{message}</div>'
    notice = in_language(state.notice, texts.language)
    if state.is_bundled:
        # The notice may say why this model runs and what to do.
        why = notice.removeprefix(texts.bundled).strip()
        return (
            f'<div class="banner bundled" role="note"><strong>{html.escape(texts.bundled)}'
            f"</strong> {html.escape(why or texts.how_to_get_real)}</div>"
        )
    if notice:
        return f'<div class="banner" role="note">{html.escape(notice)}</div>'
    return ""
