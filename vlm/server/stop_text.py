"""End an answer at a stop sequence, also when it comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Passes text on, except from the first stop sequence; holds back what may begin one."""

    def __init__(self, sequences: Sequence[str]) -> None:
        self._sequences = tuple(sequences)
        self._held = ""
        self.is_hit = False
        """True once a stop sequence came; nothing is passed on from then."""

    def push(self, text: str) -> str:
        """Take new text; return what may be shown of all so far."""
        if self.is_hit:
            return ""
        text, self._held = self._held + text, ""
        found = [at for at in (text.find(sequence) for sequence in self._sequences) if at >= 0]
        if found:
            self.is_hit = True
            return text[: min(found)]
        keep = self._beginning_at_the_end(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _beginning_at_the_end(self, text: str) -> int:
        """Count the characters at the end that are the beginning of a sequence."""
        longest = max((len(sequence) for sequence in self._sequences), default=0)
        for length in range(min(longest - 1, len(text)), 0, -1):
            if any(sequence.startswith(text[-length:]) for sequence in self._sequences):
                return length
        return 0
