"""Copy and edit messages as they were written, where the chat only knows them as shown.

The chat component holds escaped Markdown, so what its own buttons copy would be full of
escapes. This part keeps the text of each message beside it; written.js gives it to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import gradio as gr

from vlm.ui.chinese import in_language
from vlm.ui.conversation import Turn
from vlm.ui.texts import Texts

_SCRIPT = Path(__file__).with_name("written.js").read_text(encoding="utf-8")


def lay_out_written() -> gr.HTML:
    """Put the invisible part on the page; its `edit` event names a turn by number."""
    return gr.HTML(
        elem_id="written", html_template="<span hidden></span>", js_on_load=_SCRIPT, padding=False
    )


def written_chat(turns: Sequence[Turn], texts: Texts) -> str:
    """The texts of a chat as JSON: one row for each message that is shown, and all together."""
    rows = [
        {"turn": number, "text": text}
        for number, turn in enumerate(turns)
        for text in _rows(turn, texts)
    ]
    said = {"rows": rows, "all": "\n\n".join(_whole(turn, texts) for turn in turns)}
    # No tag may stand in the value of an HTML component, not even in a string.
    return json.dumps(said, ensure_ascii=False).replace("<", "\\u003c")


def _rows(turn: Turn, texts: Texts) -> Iterator[str]:
    """One text for each message of a turn, in the order in which the chat shows them."""
    yield from ("" for _ in turn.thumbnails)
    if turn.question.text:
        yield turn.question.text
    yield _answer(turn, texts)


def _answer(turn: Turn, texts: Texts) -> str:
    return in_language(turn.error, texts.language) if turn.end == "failed" else turn.answer


def _whole(turn: Turn, texts: Texts) -> str:
    count = len(turn.thumbnails)
    pictures = texts.with_pictures.format(count=count) if count else ""
    question = f"{texts.question}{pictures}{texts.colon}\n{turn.question.text}"
    return f"{question}\n\n{texts.column_answer}{texts.colon}\n{_answer(turn, texts)}"
