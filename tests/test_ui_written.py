"""What is copied and edited is what was written, one row for each message that is shown."""

from __future__ import annotations

import json
from pathlib import Path

from vlm.chat import Message
from vlm.ui.conversation import Turn
from vlm.ui.texts import EN, ZH, Texts
from vlm.ui.written import written_chat


def read(turns: list[Turn], texts: Texts = EN) -> tuple[list[tuple[int, str]], str]:
    value = written_chat(turns, texts)
    assert "<" not in value
    said = json.loads(value)
    return [(row["turn"], row["text"]) for row in said["rows"]], said["all"]


def test_each_shown_message_has_its_row() -> None:
    pictures = (Path("1.webp"), Path("2.webp"))
    turns = [
        Turn(Message("user", "*What* <is> it?"), thumbnails=pictures, answer="a < b", end="stop"),
        Turn(Message("user", ""), thumbnails=pictures[:1], end="failed", error=EN.broke),
    ]
    rows, _ = read(turns)
    assert rows == [
        (0, ""), (0, ""), (0, "*What* <is> it?"), (0, "a < b"), (1, ""), (1, EN.broke),
    ]  # fmt: skip


def test_the_whole_chat_reads_in_the_language_of_the_page() -> None:
    turn = Turn(Message("user", "Was?"), thumbnails=(Path("1.webp"),), answer="Rot.", end="stop")
    assert read([turn])[1] == "Question (pictures: 1):\nWas?\n\nAnswer:\nRot."
    assert read([turn], ZH)[1] == "问题（图片：1）：\nWas?\n\n回答：\nRot."
    assert read([]) == ([], "")
