"""What the benchmark measures of one engine in one precision: the job, and the row it fills."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType


@dataclass(frozen=True)
class BenchJob:
    """What to measure."""

    engine: str
    """ "stock", "ours" or "limits"."""
    folder: str
    precision: str
    width_px: int
    height_px: int
    new_tokens: int
    turns: int
    """Follow-ups after the first question."""
    rounds: int
    threads: int
    chats: int = 4
    """Conversations asked at the same time; below 2 only one is."""
    has_sense: bool = True
    """Whether the model writes more than noise, so that its own answers can be guessed."""


@dataclass
class BenchRow:
    """Figures of one engine; the names are those of the --json output and stay."""

    engine: str
    """ "stock" (transformers' generate), "ours", or "server" (another program, by its URL)."""
    precision: str | None
    """None where a server does not tell it."""
    load_s: float | None = None
    vision_s: float | None = None
    """Resizing, patching and encoding of the picture; the best round, as all times here."""
    prefill_s: float | None = None
    ttft_s: float | None = None
    """From the question to its first token, nothing cached."""
    decode_tps: float | None = None
    """Of one answer, token by token: without guesses."""
    decode_limit_ratio: float | None = None
    """decode_tps over what the memory bandwidth allows for the weights read per token."""
    followup_ttft_s: float | None = None
    """To the first token of a short follow-up in the same chat."""
    readahead_ttft_s: float | None = None
    """To the first token about a picture that was read before it was asked about."""
    chats_tps: dict[str, float | None] = field(default_factory=lambda: {"1": None, "4": None})
    """Tokens per second of all chats together, by their number."""
    speculation_ratio: float | None = None
    """decode_tps with guesses over that without, of boxes as JSON; None for random weights."""
    peak_rss_bytes: int | None = None
    peak_anon_bytes: int | None = None
    """Without pages of files."""
    prompt_tokens: int | None = None
    visual_tokens: int | None = None
    new_tokens: int | None = None
    followup_new_tokens: int | None = None
    """Tokens of the follow-up's prompt that were not cached."""
    note: str = ""
    """Why something is missing or other than asked for."""

    def figures(self) -> dict[str, object]:
        """Return what --json tells of this row: always the same keys, None where not measured."""
        return {name: value for name, value in asdict(self).items() if name not in _TABLE_ONLY}


_TABLE_ONLY = {"prompt_tokens", "visual_tokens", "new_tokens", "followup_new_tokens", "note"}


class PeakAnon:
    """Watches the anonymous memory of this process from a thread (Linux only)."""

    def __init__(self, status: Path = Path("/proc/self/status"), every_s: float = 0.02) -> None:
        self.peak_bytes: int | None = None
        self._status = status
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-anon", daemon=True)

    def __enter__(self) -> PeakAnon:
        self.look()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Take one reading."""
        try:
            lines = self._status.read_text().splitlines()
        except OSError:
            return
        for line in lines:
            if line.startswith("RssAnon:"):
                self.peak_bytes = max(self.peak_bytes or 0, int(line.split()[1]) * 1024)

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            self.look()


def best(values: list[float]) -> float | None:
    """Return the shortest time, or None without any."""
    return min(values, default=None)
