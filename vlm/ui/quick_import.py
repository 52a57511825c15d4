"""Import Gradio without the part that only helps editors, so that the page is up sooner."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from vlm.ui.proxies import without_proxies


def import_gradio_quickly() -> None:
    """Import Gradio, skipping the .pyi file it checks and rewrites for each component.

    That check parses every component's source at every start: a quarter of the import.
    Gradio itself skips classes whose source file cannot be found, so that is what it is told.
    """
    # Gradio asks the network for news and reports its use unless told not to.
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    # It also sums up all past events in a table after each event; nobody looks at it here.
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**9))
    if "gradio" in sys.modules:
        return
    getfile = inspect.getfile

    def getfile_of_others(thing: Any) -> str:
        if type(thing).__name__ == "ComponentMeta":
            raise OSError("components need no stub file")
        return getfile(thing)

    setattr(inspect, "getfile", getfile_of_others)  # noqa: B010 - mypy: a narrower signature
    try:
        with without_proxies():
            importlib.import_module("gradio")
    finally:
        inspect.getfile = getfile
