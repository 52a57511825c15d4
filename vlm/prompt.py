"""Messages -> token ids, with the checkpoint's own chat template.

Only the template may write control tokens. Texts of people, files and earlier answers are
encoded by a tokenizer that knows none, so a typed "<|im_end|>" or "<|image_pad|>" is just
characters.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from vlm.chat import Message
from vlm.chat_template import ChatTemplate, read_json
from vlm.errors import CheckpointError, PromptError

_IMAGE_PAD = "<|image_pad|>"


class PromptPicture(Protocol):
    """What a prompt must know of a picture: a MeasuredPicture or a PatchedPicture."""

    @property
    def grid_thw(self) -> tuple[int, int, int]:
        """Patches along time, height and width."""

    @property
    def key(self) -> str:
        """Equal keys mean equal pixel values."""

    @property
    def visual_tokens(self) -> int:
        """Prompt positions it takes."""


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
    """PromptPicture.key: equal keys mean equal pixel values."""


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
        self, backend: Tokenizer, template: ChatTemplate, eos_token_ids: tuple[int, ...]
    ) -> None:
        """Raises CheckpointError when the tokenizer has no picture token or no stop token."""
        self.backend = backend
        """The whole tokenizer, control tokens included; for decoding and for the template."""
        self.eos_token_ids = eos_token_ids
        """An answer ends with any of these."""
        added = backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        """Every token that stands outside the vocabulary of plain text."""
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        """Those of added_ids that are never shown."""
        image_token_id = backend.token_to_id(_IMAGE_PAD)
        if image_token_id not in self.added_ids or not eos_token_ids:
            raise CheckpointError(
                f"The model's tokenizer has no {_IMAGE_PAD} token or no stop token. "
                "Use a Qwen3-VL Instruct model."
            )
        self.image_token_id: int = image_token_id
        self._template = template
        # The same vocabulary and rules without the added tokens; the vocabulary is shared.
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
        except Exception as error:  # The library raises a bare Exception for a missing file.
            raise CheckpointError(
                f"The model folder has no usable tokenizer.json ({error}). "
                "Download the model again."
            ) from error
        template = ChatTemplate.from_folder(folder)
        stop_ids = _listed(read_json(folder / "generation_config.json").get("eos_token_id"))
        eos_id = backend.token_to_id(template.named_tokens.get("eos_token", ""))
        if eos_id is not None:
            stop_ids.append(eos_id)
        return cls(backend, template, tuple(dict.fromkeys(stop_ids)))

    def encode(self, messages: Sequence[Message], pictures: Sequence[PromptPicture]) -> Prompt:
        """Encode a chat up to where the answer starts.

        `pictures` are those of all messages, in order of appearance. An answer's own token_ids
        are used as they are, so that its cache fits. Raises PromptError when nothing is asked.
        """
        messages = _worth_sending(messages)
        placed = sum(len(message.pictures) for message in messages)
        if placed != len(pictures):
            raise ValueError(f"{len(pictures)} pictures given for {placed} in the chat")
        exact = [self._exact_ids(message) for message in messages]
        texts = [
            "" if ids else _well_formed(m.text) for m, ids in zip(messages, exact, strict=True)
        ]
        writer = _Writer(self, pictures)
        for part in self._template.parts(messages, texts):
            if isinstance(part, str):
                writer.write_template(part)
            elif exact[part]:
                writer.write_ids(exact[part])
            else:
                writer.write_text(texts[part].strip())
        return writer.prompt()

    def encode_plain(self, text: str) -> list[int]:
        """Encode text as characters only: no control token can come out."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def _exact_ids(self, message: Message) -> tuple[int, ...]:
        """The ids of an earlier answer if they can be used as they are, else ()."""
        ids = message.token_ids or ()
        if message.role != "assistant" or not ids:
            return ()
        # Control tokens in an answer, or ids from elsewhere, must not act as the template does.
        is_plain = self.special_ids.isdisjoint(ids) and 0 <= min(ids) <= max(ids) <= self._last_id
        return ids if is_plain else ()


class _Writer:
    """Collects the tokens of one prompt."""

    def __init__(self, tokenizer: ChatTokenizer, pictures: Sequence[PromptPicture]) -> None:
        self._tokenizer = tokenizer
        self._pictures = pictures
        self._ids: list[int] = []
        self._spans: list[PictureSpan] = []
        # Text since the last control token, the template's and people's. It is encoded in one
        # go, because so it was in training: "user\n" and "\nHi" meet in one token "\n\n".
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
        self.write_ids(())
        self._check_pictures(len(self._spans) == len(self._pictures))
        return Prompt(tuple(self._ids), tuple(self._spans))

    def _write_picture(self) -> None:
        self._check_pictures(len(self._spans) < len(self._pictures))
        self.write_ids(())
        picture = self._pictures[len(self._spans)]
        start, length = len(self._ids), picture.visual_tokens
        self._spans.append(PictureSpan(start, length, picture.grid_thw, picture.key))
        self._ids += [self._tokenizer.image_token_id] * length

    def _check_pictures(self, is_right: bool) -> None:
        if not is_right:
            raise PromptError(
                f"The model's chat template does not show its {len(self._pictures)} pictures "
                "one by one. Use a Qwen3-VL Instruct model."
            )


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


def _well_formed(text: str) -> str:
    """Join surrogate pairs and replace lone halves, which JSON may carry and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _listed(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, list) else [int(value)]
