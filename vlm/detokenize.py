"""Tokens -> text as they come, whole characters only.

One token may hold a part of a character (an emoji is often three tokens), so bytes are kept
until they form one. Each token is looked at once: the cost grows with the answer, not with its
square.
"""

from __future__ import annotations

import codecs
from functools import lru_cache

from vlm.prompt import ChatTokenizer


class TextStream:
    """The text of one answer; what push() and flush() return, joined, is the decoded whole."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        # "replace" follows the same rule as the tokenizer's own decoder: one U+FFFD for each
        # longest broken piece.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Add a token and return the characters that are complete now; control tokens give ""."""
        return self._decoder.decode(self._bytes(token_id))

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._tokenizer.special_ids:
            return b""
        # Ids beyond the vocabulary (the embedding table is padded) have no text.
        token = self._tokenizer.backend.id_to_token(token_id)
        if token is None:
            return b""
        byte_of = _byte_of_letter()
        try:
            return bytes(byte_of[letter] for letter in token)
        except KeyError:  # An added token is stored as its text, not as letters for bytes.
            return token.encode()


@lru_cache(maxsize=1)
def _byte_of_letter() -> dict[str, int]:
    """Map each letter of a byte-level BPE vocabulary to the byte it stands for.

    Printable bytes of Latin-1 stand for themselves, the others are numbered from U+0100 on.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}
