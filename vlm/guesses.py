"""Guess the next tokens of an answer from what stands earlier in the same chat.

Where the last tokens have occurred before, those that followed them are proposed; the model
checks several of them in one pass, which costs hardly more than one token. Idea: prompt
lookup decoding (Saxena, 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

GRAM_TOKENS = 3
"""So many equal tokens make a place worth guessing from."""
LEAST_GAIN = 0.4
"""Guesses pay while at least so many tokens are right each time, on average."""
MEMORY = 0.7
FIRST_PAUSE_TOKENS, LAST_PAUSE_TOKENS = 16, 256


class Guesser:
    """The tokens of one chat, and how well guesses from them went so far."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = list(token_ids)
        self._places: dict[tuple[int, ...], int] = {}
        """By gram: where the tokens after its last occurrence begin."""
        self._found: int | None = None
        """Where the tokens after the occurrence before the last begin, of the last gram."""
        self._gain = 1.0
        self._rest_tokens = 0
        self._pause_tokens = FIRST_PAUSE_TOKENS
        for end in range(GRAM_TOKENS, len(self._ids) + 1):
            self._note(end)

    def push(self, token_id: int) -> None:
        """Add a token of the answer."""
        self._ids.append(token_id)
        self._rest_tokens = max(0, self._rest_tokens - 1)
        self._note(len(self._ids))

    def guess(self, most: int) -> list[int]:
        """Return up to `most` tokens that may come next; none while guesses do not pay."""
        if self._found is None or self._rest_tokens:
            return []
        return self._ids[self._found : self._found + most]

    def learn(self, right: int) -> None:
        """Note how many tokens of a guess were right; after too few, guess no more for a while."""
        self._gain = MEMORY * self._gain + (1 - MEMORY) * right
        if self._gain < LEAST_GAIN:
            self._rest_tokens, self._gain = self._pause_tokens, 2 * LEAST_GAIN
            self._pause_tokens = min(2 * self._pause_tokens, LAST_PAUSE_TOKENS)

    def _note(self, end: int) -> None:
        gram = tuple(self._ids[max(0, end - GRAM_TOKENS) : end])
        self._found = self._places.get(gram)
        self._places[gram] = end
