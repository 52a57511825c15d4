"""Messages -> token ids, with the checkpoint's own chat template.

Only the template may write control tokens. Texts of people, files and earlier answers never
pass through it: the template is rendered with a marker for each of them, and what stands for
a marker is encoded by a tokenizer that knows no control tokens at all. So a typed
"<|im_end|>" or "<|image_pad|>" is just characters.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from vlm.chat import Message
from vlm.errors import CheckpointError, PromptError
from vlm.patches import PatchedPicture

logger = logging.getLogger(__name__)

_IMAGE_PAD = "<|image_pad|>"
_MARKER = re.compile("\ue000([0-9]+)\ue001")
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class PictureSpan:
    """Where one picture stands in a prompt."""

    start: int
    """Index of its first visual token."""
    length: int
    """Visual tokens it takes."""
    grid_thw: tuple[int, int, int]
    """Patches along time, height and width."""
    key: str
    """PatchedPicture.key: equal keys mean equal pixel values."""


@dataclass(frozen=True)
class Prompt:
    """A chat as the model reads it."""

    token_ids: tuple[int, ...]
    spans: tuple[PictureSpan, ...] = ()
    """In order; between them stands text."""

    def keys(self) -> list[Hashable]:
        """Return what each token stands for: equal keys up to a token mean an equal prefix.

        A token id for text; (picture key, i) for the i-th visual token of a picture, because all
        pictures share one token id.
        """
        keys: list[Hashable] = list(self.token_ids)
        for span in self.spans:
            keys[span.start : span.start + span.length] = [
                (span.key, i) for i in range(span.length)
            ]
        return keys


class ChatTokenizer:
    """The tokenizer and chat template of one checkpoint; safe to share between threads."""

    def __init__(
        self,
        backend: Tokenizer,
        chat_template: str,
        eos_token_ids: tuple[int, ...],
        named_tokens: dict[str, str],
    ) -> None:
        """Raises CheckpointError when the tokenizer has no picture token or no stop token."""
        self.backend = backend
        """The whole tokenizer, control tokens included; for decoding and for the template."""
        self.eos_token_ids = eos_token_ids
        """An answer ends with any of these."""
        added = backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        """All tokens that stand outside the vocabulary of plain text."""
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        """Control tokens: never shown."""
        image_token_id = backend.token_to_id(_IMAGE_PAD)
        if image_token_id is None or not eos_token_ids:
            raise CheckpointError(
                f"The model's tokenizer has no {_IMAGE_PAD} token or no stop token. "
                "Use a Qwen3-VL Instruct model."
            )
        self.image_token_id: int = image_token_id
        self._template = chat_template
        self._named_tokens = named_tokens
        # The same vocabulary and rules, without the added tokens.
        self._plain = Tokenizer(backend.model)
        self._plain.normalizer = backend.normalizer
        self._plain.pre_tokenizer = backend.pre_tokenizer
        self._last_id = backend.get_vocab_size(with_added_tokens=True) - 1

    @classmethod
    def from_folder(cls, folder: str | Path) -> ChatTokenizer:
        """Read tokenizer, template and stop tokens of a checkpoint. Raises CheckpointError."""
        folder = Path(folder)
        try:
            backend: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # The library raises bare Exception for a missing file.
            raise CheckpointError(
                f"The model folder has no usable tokenizer.json ({error}). "
                "Download the model again."
            ) from error
        settings = _read_json(folder / "tokenizer_config.json")
        named_tokens = {
            name: _content(settings[name]) for name in _NAMED_TOKENS if settings.get(name)
        }
        stop_ids = _as_list(_read_json(folder / "generation_config.json").get("eos_token_id"))
        eos_id = backend.token_to_id(named_tokens.get("eos_token", ""))
        if eos_id is not None:
            stop_ids.append(eos_id)
        return cls(
            backend, _chat_template(folder, settings), tuple(dict.fromkeys(stop_ids)), named_tokens
        )

    def encode(self, messages: Sequence[Message], pictures: Sequence[PatchedPicture]) -> Prompt:
        """Encode a chat up to where the answer starts.

        `pictures` are those of all messages, in order of appearance. An answer's own token_ids
        are used as they are, so that its cache fits. Raises PromptError when nothing is asked.
        """
        messages = _worth_sending(messages)
        placed = sum(len(message.pictures) for message in messages)
        if placed != len(pictures):
            raise ValueError(f"{len(pictures)} patched pictures given for {placed} in the chat")
        writer = _Writer(self, pictures)
        at = 0
        rendered = self._render(messages)
        for marker in _MARKER.finditer(rendered):
            writer.write_template(rendered[at : marker.start()])
            self._write_text(writer, messages[int(marker[1])])
            at = marker.end()
        writer.write_template(rendered[at:])
        return writer.prompt()

    def encode_plain(self, text: str) -> list[int]:
        """Encode text as characters only: no control token can come out."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def _write_text(self, writer: _Writer, message: Message) -> None:
        ids = message.token_ids
        # An answer with a control token in it, or ids from elsewhere, must not act as the template.
        if message.role == "assistant" and ids and self._are_plain(ids):
            writer.write_ids(ids)
        else:
            writer.write_text(_well_formed(message.text).strip())

    def _are_plain(self, ids: Sequence[int]) -> bool:
        return self.special_ids.isdisjoint(ids) and 0 <= min(ids) <= max(ids) <= self._last_id

    def _render(self, messages: Sequence[Message]) -> str:
        """Render the template with a marker in place of every text. Raises PromptError."""
        # Imported here because it takes a second or two, and only a loaded model needs it.
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        chat = [_templated(index, message) for index, message in enumerate(messages)]
        try:
            rendered, _ = render_jinja_template(
                conversations=[chat],
                chat_template=self._template,
                add_generation_prompt=True,
                **self._named_tokens,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise PromptError(
                f"The model's chat template cannot express this chat ({error}). Start a new chat."
            ) from error
        marked = sorted(int(marker[1]) for marker in _MARKER.finditer(rendered[0]))
        if marked != list(range(len(messages))):
            raise PromptError(
                "The model's chat template leaves out parts of this chat. Start a new chat."
            )
        return str(rendered[0])


class _Writer:
    """Collects the tokens of one prompt."""

    def __init__(self, tokenizer: ChatTokenizer, pictures: Sequence[PatchedPicture]) -> None:
        self._tokenizer = tokenizer
        self._pictures = list(pictures)
        self._ids: list[int] = []
        self._spans: list[PictureSpan] = []
        # Text since the last control token. It is encoded in one go, template's and people's
        # together, because that is how the model was trained: "user\n" + "\nHi" is one "\n\n".
        self._run: list[str] = []

    def write_template(self, text: str) -> None:
        """Add a part of the rendered template, whose control tokens are real."""
        encoding = self._tokenizer.backend.encode(text, add_special_tokens=False)
        at = 0
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id not in self._tokenizer.added_ids:
                continue
            self._run.append(text[at:start])
            at = end
            if token_id == self._tokenizer.image_token_id:
                self._write_picture()
            else:
                self.write_ids([token_id])
        self._run.append(text[at:])

    def write_text(self, text: str) -> None:
        """Add text of people, files or earlier answers: characters only."""
        self._run.append(text)

    def write_ids(self, ids: Sequence[int]) -> None:
        """Add these very tokens."""
        self._ids += self._tokenizer.encode_plain("".join(self._run))
        self._run.clear()
        self._ids += ids

    def prompt(self) -> Prompt:
        """Return what was written. Raises PromptError when the template left out pictures."""
        self.write_ids([])
        if len(self._spans) != len(self._pictures):
            raise PromptError(
                f"The model's chat template places {len(self._spans)} of {len(self._pictures)} "
                "pictures. Use a Qwen3-VL Instruct model."
            )
        return Prompt(tuple(self._ids), tuple(self._spans))

    def _write_picture(self) -> None:
        if len(self._spans) == len(self._pictures):
            raise PromptError(
                "The model's chat template places more pictures than there are. "
                "Use a Qwen3-VL Instruct model."
            )
        picture = self._pictures[len(self._spans)]
        self.write_ids([])
        start, length = len(self._ids), picture.visual_tokens
        self._spans.append(PictureSpan(start, length, picture.grid_thw, picture.key))
        self._ids += [self._tokenizer.image_token_id] * length


def _worth_sending(messages: Sequence[Message]) -> list[Message]:
    """Leave out empty system prompts. Raises PromptError when a question is missing."""
    kept = [m for m in messages if m.role != "system" or m.text.strip()]
    if not any(message.role == "user" for message in kept):
        raise PromptError("There is no question in this chat yet. Type one and try again.")
    for message in kept:
        if message.role == "user" and not message.text.strip():
            about = " about the picture" if message.pictures else ""
            raise PromptError(f"This message has no text. Type a question{about} and try again.")
    return kept


def _templated(index: int, message: Message) -> dict[str, Any]:
    """Return a message as templates expect it, its text replaced by a marker.

    White space around the text stays, so that a template that trims does so here too.
    """
    text = _well_formed(message.text)
    core = text.strip()
    before = text[: len(text) - len(text.lstrip())] if core else ""
    after = text[len(text.rstrip()) :] if core else ""
    marked = f"{before}\ue000{index}\ue001{after}"
    if not message.pictures:
        return {"role": message.role, "content": marked}
    parts: list[dict[str, Any]] = [{"type": "image"} for _ in message.pictures]
    return {"role": message.role, "content": [*parts, {"type": "text", "text": marked}]}


def _well_formed(text: str) -> str:
    """Join surrogate pairs and replace lone halves, which JSON may carry and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _chat_template(folder: Path, settings: dict[str, Any]) -> str:
    """Find the chat template in any of the three places a checkpoint may keep it."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    template = _read_json(folder / "chat_template.json").get(
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


def _read_json(path: Path) -> dict[str, Any]:
    """Read a file that a checkpoint may lack. Raises CheckpointError when it is damaged."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path.name} of the model cannot be read ({error}). Download the model again."
        ) from error
    return values if isinstance(values, dict) else {}


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _as_list(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, list) else [int(value)]
