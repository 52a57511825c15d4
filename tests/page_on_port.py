"""Serve a page over a FakeEngine on a port, in a process that a test may kill."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from fake_engine import FakeEngine

    from vlm.config import Settings
    from vlm.ui.serve import build_server

    page, options = build_server(FakeEngine(), Settings())
    page.launch(
        server_port=int(sys.argv[1]), quiet=True, prevent_thread_lock=True, share=False, **options
    )
    threading.Event().wait()
