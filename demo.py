"""Talk to a picture on a machine without a GPU: serve the page, or ask in the terminal.

python demo.py                      serve the page (also what a Hugging Face Space runs)
python demo.py ask IMAGE -q "..."   one question, answered in the terminal
python demo.py batch FOLDER -q "..." --out FILE   the same about many pictures
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

from vlm.ending import dying_of_interrupts, leave
from vlm.errors import ConfigError, VLMError

if TYPE_CHECKING:
    import gradio as gr

    from vlm.chat import ChatEngine
    from vlm.config import Settings

EXIT_INTERRUPTED = 130
"""What shells report for a command ended by Ctrl-C."""

# Each module has add_arguments(parser) and run(args) -> exit code, and is imported only when
# it is asked for: the page must not wait for what a benchmark needs.
COMMANDS = {
    "serve": "vlm.ui.serve",
    "ask": "vlm.commands.ask",
    "batch": "vlm.commands.batch",
    "bench": "vlm.commands.bench",
    "doctor": "vlm.commands.doctor",
}


def build_demo(engine: ChatEngine, settings: Settings) -> gr.Blocks:
    """Make the page over an engine; launch it with vlm.ui.look.launch_options(settings)."""
    from vlm.ui.page import Page

    return Page(engine, settings).build()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the command line; serve when none is named. Returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "httpx2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except VLMError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(given: list[str]) -> int:
    is_named = bool(given) and not given[0].startswith("-")
    command = given.pop(0) if is_named else "serve"
    if command not in COMMANDS:
        raise _no_such_command(command)
    with dying_of_interrupts():
        module = importlib.import_module(COMMANDS[command])
    parser = argparse.ArgumentParser(
        prog="demo.py" if command == "serve" else f"demo.py {command}",
        description=None if command == "serve" else (module.__doc__ or "").partition("\n")[0],
        epilog=__doc__ if command == "serve" else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    code: int = module.run(parser.parse_args(given))
    return code


def _no_such_command(name: str) -> ConfigError:
    from vlm.config import did_you_mean

    return ConfigError(
        f'There is no command "{name}"{did_you_mean(name, COMMANDS) or "."} '
        f"Commands are {', '.join(COMMANDS)}; --help says more. "
        'To ask about a picture: demo.py ask IMAGE -q "QUESTION".'
    )


if __name__ == "__main__":
    leave(main())
