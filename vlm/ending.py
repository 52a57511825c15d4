"""End the program soon and quietly, whatever its threads are doing.

Threads inside native code (packing weights, a download that stands still) cannot be
interrupted. Python's own exit would wait for some of them and trip over others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

CLOSE_S = 1.0
"""How long closing may take in all before the program ends without it."""


@contextlib.contextmanager
def dying_of_interrupts() -> Iterator[None]:
    """Let Ctrl-C end the program at once and silently, while there is nothing to keep yet.

    Python would raise KeyboardInterrupt out of some import, or not before the import is done.
    """
    # Started in the background by a shell, a program ignores Ctrl-C: that must stay so.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def die_of_signals() -> None:
    """Let the next SIGINT or SIGTERM end the program at once: somebody has no patience."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def within(timeout_s: float, *works: Callable[[], object]) -> bool:
    """Run all works side by side and wait so many seconds; return whether all came to an end."""
    end_s = time.monotonic() + timeout_s
    threads = [threading.Thread(target=work, name="ending", daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def leave(code: int) -> NoReturn:
    """End the process now with an exit code; what was written is flushed first."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    logging.shutdown()
    os._exit(code)
