"""A stop sequence ends a text wherever its pieces are cut, and nothing else is lost."""

from __future__ import annotations

import pytest

from vlm.server.stop_text import StopText


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "sequences", "shown"),
    [
        ("one END two", ["END"], "one "),
        ("one EN two E", ["END"], "one EN two E"),
        ("a\n\nb", ["x", "\n\n"], "a"),
        ("ENEND", ["END"], "EN"),
        ("红色的圆。完", ["。"], "红色的圆"),
        ("as it is", [], "as it is"),
        ("b then a", ["a", "b"], ""),
    ],
)
def test_text_up_to_the_first_sequence_is_shown(
    text: str, sequences: list[str], shown: str, size: int
) -> None:
    stop = StopText(sequences)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert "".join([*map(stop.push, pieces), stop.flush()]) == shown
    assert stop.is_hit == (shown != text)


def test_only_what_may_begin_a_sequence_is_held_back() -> None:
    stop = StopText(["END"])
    assert stop.push("a E") == "a "
    assert stop.push("x") == "Ex"
    assert stop.push("E") == "" and stop.flush() == "E"
