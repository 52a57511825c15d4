"""Talk to a picture on a machine without a GPU: serve the page, or ask in the terminal.

python demo.py                      serve the page (also what a Hugging Face Space runs)
python demo.py ask IMAGE -q "..."   one question, answered in the terminal
python demo.py bench                measure this machine
python demo.py doctor               say what this machine is and what is missing
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlm.chat import ChatEngine
from vlm.config import Settings
from vlm.errors import VLMError

if TYPE_CHECKING:
    import gradio as gr

# Each module has add_arguments(parser) and run(args) -> exit code, and is imported only when
# it is asked for: the page must not wait for what a benchmark needs.
COMMANDS = {
    "serve": "vlm.ui.serve",
    "ask": "vlm.commands.ask",
    "bench": "vlm.commands.bench",
    "doctor": "vlm.commands.doctor",
}


def build_demo(engine: ChatEngine, settings: Settings) -> gr.Blocks:
    """Make the page over an engine; launch it with vlm.ui.look.launch_options(settings)."""
    from vlm.ui.page import Page

    return Page(engine, settings).build()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the command line; serve when none is named. Returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    command = given.pop(0) if given and given[0] in COMMANDS else "serve"
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    module = importlib.import_module(COMMANDS[command])
    parser = argparse.ArgumentParser(
        prog="demo.py" if command == "serve" else f"demo.py {command}",
        description=None if command == "serve" else (module.__doc__ or "").partition("\n")[0],
        epilog=__doc__ if command == "serve" else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    try:
        code: int = module.run(parser.parse_args(given))
    except VLMError as error:
        sys.stderr.write(f"{error}\n")
        code = 2
    return code


if __name__ == "__main__":
    sys.exit(main())
