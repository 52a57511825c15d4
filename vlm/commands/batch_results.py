"""Keep the results file of a batch: one JSON object a line, only ever added to.

What a run that was ended rudely left behind (half a line) is mended when the file is opened.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from vlm.errors import ConfigError

_BEGINNING = b'{"file": '
"""How every line begins; a file that begins otherwise is somebody's own and is not touched."""


class ResultsFile:
    """The rows of earlier runs, and a place for new ones. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, and mend its last line. Raises ConfigError."""
        self.path = path
        self.notice = ""
        """What was mended, as a sentence, or empty."""
        self._lock = threading.Lock()
        try:
            content = path.read_bytes() if path.is_file() else b""  # a device has no end
            self.rows = list(self._rows_of(content))
            self._stream = path.open("ab")
            self._mend(content)
        except OSError as error:
            raise self._unusable(error) from error

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What could not be written a moment ago cannot be flushed now either.
        try:
            self._stream.close()
        except OSError:
            pass

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row to its end before returning. Raises ConfigError, such as on a full disk."""
        line = json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        with self._lock:
            try:
                self._stream.write(line)
                self._stream.flush()
            except OSError as error:
                raise self._unusable(error) from error

    def _rows_of(self, content: bytes) -> Iterator[dict[str, Any]]:
        """Yield what can be read. Raises ConfigError for a file that is not ours."""
        lines = content.splitlines()
        if lines and not (lines[0].startswith(_BEGINNING) or _BEGINNING.startswith(lines[0])):
            raise ConfigError(
                f"{self.path} is there already and does not hold results of this command. "
                "Name another file with --out."
            )
        for line in lines:
            row = _row(line)
            if row is not None:
                yield row

    def _mend(self, content: bytes) -> None:
        """Complete the last line, or take it away when it was cut off."""
        if not content or content.endswith(b"\n"):
            return
        last = content[content.rfind(b"\n") + 1 :]
        if _row(last) is not None:
            self._stream.write(b"\n")
            self._stream.flush()
            return
        self._stream.truncate(len(content) - len(last))
        self.notice = f"The last line of {self.path} was cut off; its picture is asked again."

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"{self.path} cannot be written: {error.strerror or error}. Rows that were written "
            "before are kept. Free some space, or name another file with --out."
        )


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # also bytes that are no UTF-8
        return None
    return row if isinstance(row, dict) and isinstance(row.get("file"), str) else None
