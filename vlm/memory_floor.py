"""Keep some memory of the machine free: a process that takes the last of it is killed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from vlm.errors import GenerationError
from vlm.memory import free_memory
from vlm.units import format_bytes

logger = logging.getLogger(__name__)


class MemoryFloor:
    """Asked before an answer begins."""

    def __init__(
        self,
        least_bytes: int,
        release: Callable[[], int],
        available_bytes: Callable[[], int] = lambda: free_memory().available_bytes,
    ) -> None:
        """Set the floor.

        Args:
            least_bytes: what must be free; 0 for no floor.
            release: drops what can be computed again; returns its bytes.
            available_bytes: what is free now, as the container gives it.
        """
        self._least_bytes = least_bytes
        self._release = release
        self._available_bytes = available_bytes

    def keep(self) -> None:
        """Drop caches when memory is short. Raises GenerationError when that is not enough."""
        if self._available_bytes() >= self._least_bytes:
            return
        logger.warning("memory is short; caches of %d bytes were dropped", self._release())
        available_bytes = self._available_bytes()
        if available_bytes < self._least_bytes:
            raise GenerationError(
                f"The memory of this machine is nearly used up: {format_bytes(available_bytes)} is "
                f"free and {format_bytes(self._least_bytes)} must stay free. Close other programs, "
                "or try again when other answers have ended."
            )
