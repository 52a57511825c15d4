"""Show a conversation in the chat component: pictures, questions, answers, the wait.

Finished turns are built once, so that a long chat full of pictures streams as fast as an
empty one.
"""

from __future__ import annotations

import html
import weakref
from pathlib import Path

from gradio.components.chatbot import FileMessage, Message, TextMessage
from gradio.data_classes import FileData

from vlm.ui.chinese import in_language
from vlm.ui.conversation import Conversation, Turn
from vlm.ui.display import answer_markdown, plain_markdown
from vlm.ui.texts import Texts


class ChatView:
    """Builds the chat component's value."""

    def __init__(self) -> None:
        self._questions: weakref.WeakKeyDictionary[Turn, Message] = weakref.WeakKeyDictionary()

    def messages(self, chat: Conversation, texts: Texts, wait: str = "") -> list[Message]:
        """Show all turns; `wait` stands below what the open answer has so far."""
        shown = []
        for turn in chat.turns:
            if turn not in self._questions:
                self._questions[turn] = _question(turn)
            shown += [self._questions[turn], _answer(turn, texts, wait)]
        return shown


def _question(turn: Turn) -> Message:
    content: list[FileMessage | TextMessage] = [
        _picture(path, number) for number, path in enumerate(turn.thumbnails, 1)
    ]
    if turn.question.text:
        content.append(TextMessage(text=plain_markdown(turn.question.text)))
    return Message(role="user", content=content)


def _picture(path: Path, number: int) -> FileMessage:
    file = FileData(path=str(path), mime_type="image/webp", orig_name=f"picture-{number}.webp")
    return FileMessage(file=file, alt_text=f"Picture {number}")


def _answer(turn: Turn, texts: Texts, wait: str) -> Message:
    parts = [answer_markdown(turn.answer)] if turn.answer else []
    if turn.end == "failed":
        parts.append(f"⚠️ {plain_markdown(in_language(turn.error, texts.language))}")
    elif turn.end == "running":
        parts += [f'<span class="wait">{html.escape(wait)}</span>'] if wait else []
    elif not parts and turn.end != "cancelled":
        parts.append(f"*{texts.empty_answer}*")
    parts += [f"*{mark}*" for mark in _marks(turn, texts)]
    return Message(role="assistant", content=[TextMessage(text="\n\n".join(parts))])


def _marks(turn: Turn, texts: Texts) -> list[str]:
    ends = {"cancelled": texts.stopped, "length": texts.at_length, "loop": texts.in_loop}
    notices = [plain_markdown(in_language(notice, texts.language)) for notice in turn.notices]
    return notices + ([ends[turn.end]] if turn.end in ends else [])
