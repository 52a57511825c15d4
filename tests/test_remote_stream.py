"""Streams as odd servers send them: what is read of each, wherever packets end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_upstream import DONE, USAGE, Make, chunk, event, question, read, running_upstream, words

from vlm.errors import ContextLengthError, GenerationError, ModelError, VLMError
from vlm.remote.stream import MOST_WAITING_BYTES, EventReader, WholeCharacters, read_part

pytest_plugins = ("remote_fixtures",)
CHINESE = "图中有一个红色的圆🟥 and a square"
WHOLE = b": hello\n\n" + b"".join(words("图中有一个", "红色的圆🟥 and", " a square"))
ANSWER = {"choices": [{"message": {"content": CHINESE}, "finish_reason": "stop"}], "usage": USAGE}


def texts(data: bytes, step: int) -> str:
    reader = EventReader()
    packets = (data[start : start + step] for start in range(0, len(data), step))
    events = [found for packet in packets for found in reader.push(packet)]
    return "".join(read_part(found).text for found in [*events, *reader.close()])


@pytest.mark.parametrize("step", [1, 2, 7, 10**6])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(WHOLE, id="as it should be"),
        pytest.param(WHOLE.replace(b"\n", b"\r\n"), id="lines end in CRLF"),
        pytest.param(WHOLE.replace(b"\n", b"\r"), id="lines end in CR"),
        pytest.param(WHOLE.replace(b"data: ", b"data:"), id="no space"),
        pytest.param(WHOLE.replace(b"data: ", b"event: message\nid: 1\ndata: "), id="named"),
        pytest.param(WHOLE.removesuffix(DONE), id="no [DONE]"),
        pytest.param(WHOLE.removesuffix(DONE).rstrip(), id="no line end at the end"),
        pytest.param(WHOLE + chunk("late"), id="more after [DONE]"),
        pytest.param(b"\xef\xbb\xbf" + WHOLE, id="a byte order mark"),
        pytest.param(b"data: {broken\n\n" + WHOLE, id="broken JSON"),
        pytest.param(b"data: 5\n\ndata: null\n\n" + WHOLE, id="no objects"),
        pytest.param(WHOLE.replace(b', "delta"', b',\ndata:  "delta"'), id="events over lines"),
        pytest.param(json.dumps(ANSWER).encode(), id="one whole answer"),
        pytest.param(json.dumps(ANSWER, indent=1, ensure_ascii=False).encode(), id="laid out"),
    ],
)
def test_every_kind_of_stream_gives_the_same_words(data: bytes, step: int) -> None:
    assert texts(data, step) == CHINESE


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({}, ""),
        ({"choices": []}, ""),
        ({"choices": None, "usage": None}, ""),
        ({"choices": [None]}, ""),
        ({"choices": [{"delta": None}]}, ""),
        ({"choices": [{"delta": {"role": "assistant"}}]}, ""),
        ({"choices": [{"delta": {"content": None}}]}, ""),
        ({"choices": [{"delta": {"content": [{"type": "text", "text": "a"}]}}]}, "a"),
        ({"choices": [{"delta": {"content": 5}, "finish_reason": 5}]}, ""),
        ({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": True}}, "a"),
    ],
)
def test_chunks_of_unknown_forms_are_passed_over(event: dict[str, Any], text: str) -> None:
    part = read_part(event)
    assert (part.text, part.finish_reason, part.prompt_tokens) == (text, None, 0)


def test_halves_of_a_character_wait_for_each_other() -> None:
    characters = WholeCharacters()
    assert [characters.push(text) for text in ("a\ud83d", "\ude00b", "c\ude00")] == [
        "a", "\U0001f600b", "c\ufffd",
    ]  # fmt: skip


def test_a_part_without_end_is_refused() -> None:
    reader = EventReader()
    reader.push(b"data: ")
    with pytest.raises(GenerationError, match="longer than any answer"):
        for _ in range(20):
            reader.push(b"x" * (MOST_WAITING_BYTES // 16))


def ask(make_remote: Make, **fields: Any) -> tuple[str, Any, list[str], str]:
    with running_upstream(**fields) as upstream:
        text, last, notices = read(make_remote(upstream.url).ask(question()))
        return text, last.stats, notices, upstream.host


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_a_whole_answer_in_small_packets_arrives_whole(make_remote: Make, framing: Any) -> None:
    packets = [WHOLE[start : start + 5] for start in range(0, len(WHOLE), 5)]
    text, stats, notices, _ = ask(make_remote, packets=packets, framing=framing)
    assert (text, stats.finish_reason, notices) == (CHINESE, "stop", [])
    assert stats.new_tokens == 12


def test_one_whole_json_answer_is_an_answer(make_remote: Make) -> None:
    body = json.dumps(ANSWER).encode()
    text, stats, *_ = ask(make_remote, packets=[body], content_type="application/json")
    assert (text, stats.prompt_tokens, stats.decode_tps) == (CHINESE, 226, 0.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"packets": [chunk("half an ans")], "is_cut": True},
        {"packets": [chunk("half an ans")], "framing": "close"},
    ],
)
def test_of_an_answer_that_breaks_off_what_came_is_kept(make_remote: Make, fields: Any) -> None:
    text, stats, notices, host = ask(make_remote, **fields)
    assert (text, stats.finish_reason) == ("half an ans", "cancelled")
    assert notices == [f"The connection to {host} broke off. The answer above is not whole."]


def test_an_end_without_marks_is_an_end_when_the_length_was_said(make_remote: Make) -> None:
    text, stats, notices, _ = ask(make_remote, packets=[chunk("all of it")])
    assert (text, stats.finish_reason, notices) == ("all of it", "stop", [])


@pytest.mark.parametrize(
    ("packets", "kind", "said"),
    [
        ([event(error={"message": "out of memory", "code": 500})], GenerationError, "status 500"),
        ([event(error="x")], GenerationError, "failed to answer"),
        (
            [event(error={"message": "exceeds the context size", "code": 400})],
            ContextLengthError,
            "longer than",
        ),
        ([DONE], GenerationError, ""),
        ([b"<html>a page</html>"], GenerationError, "ended without an answer"),
    ],
)
def test_a_stream_without_words_is_an_error(
    make_remote: Make,
    packets: list[bytes],
    kind: type[VLMError],
    said: str,
) -> None:
    if packets == [DONE]:  # an empty answer, said to be whole
        assert ask(make_remote, packets=packets)[0] == ""
        return
    with pytest.raises(kind, match=said):
        ask(make_remote, packets=packets)


def test_a_connection_that_breaks_before_a_word_is_an_error(make_remote: Make) -> None:
    with pytest.raises(ModelError, match="broke off before an answer came"):
        ask(make_remote, packets=[], is_cut=True)


def test_an_error_after_words_keeps_them(make_remote: Make) -> None:
    packets = [chunk("A red"), event(error={"message": "worker died"})]
    text, stats, notices, host = ask(make_remote, packets=packets)
    assert (text, stats.finish_reason) == ("A red", "cancelled")
    assert notices == [
        f"{host} failed to answer (status 500). Try again; its own log says why. "
        "The answer above is not whole."
    ]


def test_thoughts_are_waited_for_and_not_shown(make_remote: Make) -> None:
    thought = event(choices=[{"delta": {"reasoning_content": "Hmm."}}])
    text, stats, notices, _ = ask(make_remote, packets=[thought, *words("Red.")])
    assert (text, notices) == ("Red.", [])
    text, stats, notices, _ = ask(make_remote, packets=[thought, chunk(reason="length"), DONE])
    assert (text, stats.finish_reason) == ("", "length")
    assert notices == ["The model only thought and wrote no answer. Allow a longer answer."]


def test_a_filter_is_told(make_remote: Make) -> None:
    _, stats, notices, host = ask(make_remote, packets=[chunk("A", "content_filter"), DONE])
    assert stats.finish_reason == "stop"
    assert notices == [f"A filter of {host} ended this answer."]
