"""A checkpoint's chat template: messages -> its text, with a marker in place of each text.

What people, files and earlier answers say never passes through the template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlm.chat import Message
from vlm.errors import CheckpointError, PromptError

_MARKER = re.compile("\ue000([0-9]+)\ue001")
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class ChatTemplate:
    """The template and the names it may use for control tokens."""

    source: str
    """Jinja."""
    named_tokens: dict[str, str]
    """Such as eos_token -> "<|im_end|>"."""

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """Find the template in any of the three places. Raises CheckpointError."""
        settings = read_json(folder / "tokenizer_config.json")
        named = {name: settings[name] for name in _NAMED_TOKENS if settings.get(name)}
        return cls(_template_source(folder, settings), {n: _content(t) for n, t in named.items()})

    def parts(self, messages: Sequence[Message], texts: Sequence[str]) -> Iterator[str | int]:
        """Yield the rendered template piece by piece: its own text, or a message's index.

        `texts` are those of the messages; only the white space around them is shown to the
        template, so that one that trims is seen to. Raises PromptError.
        """
        rendered = self._render([_templated(i, m, texts[i]) for i, m in enumerate(messages)])
        markers = list(_MARKER.finditer(rendered))
        if sorted(int(marker[1]) for marker in markers) != list(range(len(messages))):
            raise PromptError(
                "The model's chat template leaves out parts of this chat. Start a new chat."
            )
        at = 0
        for marker in markers:
            yield rendered[at : marker.start()]
            yield int(marker[1])
            at = marker.end()
        yield rendered[at:]

    def _render(self, chat: list[dict[str, Any]]) -> str:
        # Imported here because it takes a second or two, and only a loaded model needs it.
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        options: dict[str, Any] = {"add_generation_prompt": True, **self.named_tokens}
        try:
            rendered: Sequence[Any] = render_jinja_template(
                conversations=[chat], chat_template=self.source, **options
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise PromptError(
                f"The model's chat template cannot express this chat ({error}). Start a new chat."
            ) from error
        # The function returns (texts, masks), one text for each chat.
        return str(rendered[0][0])


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that a checkpoint may lack ({}). Raises CheckpointError when damaged."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} of the model cannot be read ({error}). Download the model again."
        ) from error
    return values if isinstance(values, dict) else {}


def _templated(index: int, message: Message, text: str) -> dict[str, Any]:
    before = text[: len(text) - len(text.lstrip())]
    after = text[len(text.rstrip()) :] if text.strip() else ""
    marked = f"{before}\ue000{index}\ue001{after}"
    if not message.pictures:
        return {"role": message.role, "content": marked}
    parts: list[dict[str, Any]] = [{"type": "image"} for _ in message.pictures]
    return {"role": message.role, "content": [*parts, {"type": "text", "text": marked}]}


def _template_source(folder: Path, settings: dict[str, Any]) -> str:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{jinja.name} of the model cannot be read ({error}). Download the model again."
            ) from error
    template = read_json(folder / "chat_template.json").get(
        "chat_template", settings.get("chat_template")
    )
    if isinstance(template, list):  # Several named templates.
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    if not isinstance(template, str):
        raise CheckpointError(
            "The model folder has no chat template (chat_template.jinja or .json). "
            "Use an Instruct model, or download it again."
        )
    return template


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)
