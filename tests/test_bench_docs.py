"""What the documentation tells to type for bench and doctor is what they take."""

import argparse
import re
import shlex

import pytest
from conftest import REPOSITORY

from vlm.commands import bench, doctor

LINE = re.compile(r"(?:\./launch\.sh|demo\.py) (bench|doctor)\b([^#`\n]*)")
COMMANDS = {"bench": bench, "doctor": doctor}


def documented() -> list[tuple[str, str]]:
    """All lines of the documentation that run one of the two, with their flags."""
    texts = [(REPOSITORY / name).read_text() for name in ("README.md", "CONTRIBUTING.md")]
    return [match for text in texts for match in LINE.findall(text)]


@pytest.mark.parametrize(("command", "flags"), documented())
def test_documented_flags_are_taken(command: str, flags: str) -> None:
    parser = argparse.ArgumentParser()
    COMMANDS[command].add_arguments(parser)
    parser.parse_args(shlex.split(flags))


def test_documentation_shows_each_way_to_measure() -> None:
    shown = " ".join(f"{command}{flags}" for command, flags in documented())
    for flag in ("--random-weights", "--stock", "--url", "--json", "--plot", "--compare-precision"):
        assert flag in shown
