"""The chat endpoint keeps its promises over HTTP: streams, limits, refusals, disconnects."""

from __future__ import annotations

import base64
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from fake_engine import FakeEngine, Script, wait_until
from pictures_to_send import data_url, png
from served_api import serving

from vlm.chat import ModelState, Piece
from vlm.config import Settings
from vlm.errors import ContextLengthError

pytest_plugins = ("server_fixtures",)
PATH = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def events(text: str) -> list[Any]:
    """Read the events of a stream; the last one is the string [DONE] where it is there."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def error_of(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_an_answer_comes_whole_with_what_it_cost(
    api_engine: FakeEngine, web: httpx2.Client
) -> None:
    said = web.post(PATH, json=HELLO).json()
    assert said["object"] == "chat.completion" and said["model"] == "fake/Fake-VL"
    (choice,) = said["choices"]
    assert choice["message"] == {"role": "assistant", "content": "A red circle.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert said["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 3,
        "total_tokens": 23,
        "prompt_tokens_details": {"cached_tokens": 0, "image_tokens": 0},
    }


def test_a_stream_has_role_texts_end_and_usage_on_request(
    api_engine: FakeEngine, web: httpx2.Client
) -> None:
    asked = HELLO | {"stream": True}
    answer = web.post(PATH, json=asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, *texts, last, done = events(answer.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in texts) == "A red circle."
    assert last["choices"][0]["finish_reason"] == "stop" and done == "[DONE]"
    assert "usage" not in last

    with_usage = web.post(PATH, json=asked | {"stream_options": {"include_usage": True}})
    *chunks, last, done = events(with_usage.text)
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 23
    assert all(chunk["usage"] is None for chunk in chunks)


def test_settings_reach_the_engine_and_absent_ones_are_the_servers(
    api_engine: FakeEngine, web: httpx2.Client
) -> None:
    web.post(PATH, json=HELLO | {
        "temperature": 0, "top_p": 0.5, "presence_penalty": -1.5, "max_tokens": 9,
        "max_completion_tokens": 7, "seed": -3, "model": "default", "n": 1, "tools": [],
    })  # fmt: skip
    sampling = api_engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.presence_penalty) == (0, 0.5, -1.5)
    assert (sampling.max_new_tokens, sampling.top_k) == (7, 20)
    assert sampling.seed is not None and sampling.seed >= 0
    web.post(PATH, json=HELLO | {"max_tokens": 10**9})
    plain, settings = api_engine.requests[1].sampling, Settings()
    assert (plain.temperature, plain.seed) == (settings.generation.temperature, None)
    assert plain.max_new_tokens == settings.model.context_tokens


def test_messages_pictures_and_detail_are_read(api_engine: FakeEngine, web: httpx2.Client) -> None:
    content = [
        {"type": "image_url", "image_url": {"url": data_url(png("red")), "detail": "low"}},
        {"type": "text", "text": "one"},
        {"type": "image_url", "image_url": data_url(png("blue"))},
        {"type": "text", "text": "two"},
    ]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": content, "name": "ann"},
    ]
    assert web.post(PATH, json={"messages": messages}).status_code == 200
    asked = api_engine.requests[0]
    assert [message.role for message in asked.messages] == ["system", "user", "assistant", "user"]
    last = asked.messages[-1]
    assert last.text == "one\ntwo"
    colours = [picture.image.getpixel((0, 0)) for picture in last.pictures]
    assert colours == [(255, 0, 0), (0, 0, 255)]
    assert asked.max_visual_tokens == Settings().picture.max_visual_tokens
    web.post(PATH, json={"messages": [{"role": "user", "content": content[:2]}]})
    assert api_engine.requests[1].max_visual_tokens == 256


def test_a_stop_sequence_ends_answer_and_work(api_engine: FakeEngine, web: httpx2.Client) -> None:
    api_engine.script = Script(words=("one ", "two E", "ND three ", "four"))
    for stream in (False, True):
        answer = web.post(PATH, json=HELLO | {"stop": "END", "stream": stream})
        if stream:
            chunks = [chunk["choices"][0] for chunk in events(answer.text)[:-1]]
            text = "".join(chunk["delta"].get("content", "") for chunk in chunks)
            reason = chunks[-1]["finish_reason"]
        else:
            (choice,) = answer.json()["choices"]
            text, reason = choice["message"]["content"], choice["finish_reason"]
        assert (text, reason) == ("one two ", "stop")
    assert all(answer.is_stopped for answer in api_engine.answers)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"seed": 2**70}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    change: dict[str, Any], param: str, api_engine: FakeEngine, web: httpx2.Client
) -> None:
    error = error_of(web.post(PATH, json=HELLO | change), 400)
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert not api_engine.answers


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"messages": NaN}', b"\xff\xfe", b'{"temperature": NaN}', b"[" * 99999],
)
def test_what_is_no_chat_is_refused(
    body: bytes, api_engine: FakeEngine, web: httpx2.Client
) -> None:
    answer = web.post(PATH, content=body, headers={"Content-Type": "application/json"})
    error_of(answer, 400)
    error_of(web.post(PATH, content=body), 415)
    assert not api_engine.answers


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1/x.png", "switched off"),
        ("HTTPS://example.com/x.png", "switched off"),
        ("file:///etc/passwd", "data URL"),
        ("/etc/passwd", "data URL"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,!!!!", "damaged"),
        ("data:image/png;base64,é", "damaged"),
        ("data:image/svg+xml;base64," + base64.b64encode(b"<svg></svg>").decode(), "SVG"),
        ("data:image/png;base64,", "empty"),
    ],
)
def test_only_pictures_that_were_sent_are_opened(
    url: str, said: str, api_engine: FakeEngine, web: httpx2.Client
) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
    answer = web.post(PATH, json={"messages": [{"role": "user", "content": content}]})
    assert said in error_of(answer, 400)["message"]
    assert not api_engine.answers


def test_pictures_in_answers_or_too_many_are_refused(
    api_engine: FakeEngine, web: httpx2.Client
) -> None:
    part = {"type": "image_url", "image_url": {"url": data_url(png())}}
    forged = [{"role": "assistant", "content": [part]}, *HELLO["messages"]]
    error_of(web.post(PATH, json={"messages": forged}), 400)
    for messages, said in (
        ([{"role": "user", "content": [part] * 500}], "question has 500 pictures; the limit is 8"),
        ([{"role": "user", "content": [part] * 8}] * 5, "chat has 40 pictures; the limit is 32"),
    ):
        error = error_of(web.post(PATH, json={"messages": messages}), 400)
        assert error["code"] == "too_many_images" and said in error["message"]


def test_a_body_over_the_limit_is_refused_with_413(api_engine: FakeEngine) -> None:
    settings = Settings.model_validate({"server": {"max_upload_bytes": 1000}})
    with serving(api_engine, settings) as url, httpx2.Client(base_url=url, trust_env=False) as web:
        large = {"messages": [{"role": "user", "content": "x" * 2**21}]}
        assert error_of(web.post(PATH, json=large), 413)["code"] == "request_too_large"
        headers = {"Content-Type": "application/json"}
        chunked = web.post(PATH, content=iter([b" " * 2**20] * 3), headers=headers)
        error_of(chunked, 413)


def test_a_full_queue_says_when_to_come_back(api_engine: FakeEngine, web: httpx2.Client) -> None:
    api_engine.is_full = True
    for stream in (False, True):
        answer = web.post(PATH, json=HELLO | {"stream": stream})
        error = error_of(answer, 429)
        assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        assert int(answer.headers["retry-after"]) > 0


def test_a_model_that_is_not_there_is_told(api_engine: FakeEngine, web: httpx2.Client) -> None:
    api_engine.model_state = ModelState("loading", "Loading it.")
    answer = web.post(PATH, json=HELLO)
    assert error_of(answer, 503)["code"] == "model_loading" and "retry-after" in answer.headers
    api_engine.model_state = ModelState("failed", "The disk is full.")
    assert error_of(web.post(PATH, json=HELLO), 500)["message"] == "The disk is full."
    api_engine.reset()
    missing = error_of(web.post(PATH, json=HELLO | {"model": "gpt-4o"}), 404)
    assert missing["code"] == "model_not_found" and "fake/Fake-VL" in missing["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_before_the_answer_has_its_own_status(
    stream: bool, api_engine: FakeEngine, web: httpx2.Client
) -> None:
    api_engine.script = Script(
        words=(), before=(Piece("queued"),), error=ContextLengthError("Long.")
    )
    error = error_of(web.post(PATH, json=HELLO | {"stream": stream}), 400)
    assert (error["code"], error["message"]) == ("context_length_exceeded", "Long.")


def test_a_fault_in_the_middle_is_an_event_of_the_stream(
    api_engine: FakeEngine, web: httpx2.Client
) -> None:
    api_engine.script = Script(error=ContextLengthError("Too long now."))
    *texts, last = events(web.post(PATH, json=HELLO | {"stream": True}).text)
    assert last["error"]["message"] == "Too long now."
    assert len(texts) == 4
    api_engine.script = Script(finish_reason="cancelled")
    *texts, last = events(web.post(PATH, json=HELLO | {"stream": True}).text)
    assert "broken off" in last["error"]["message"]
    error_of(web.post(PATH, json=HELLO), 500)


def test_after_a_fault_the_chat_can_go_on(api_engine: FakeEngine, web: httpx2.Client) -> None:
    api_engine.script = Script(error=ContextLengthError("No."))
    web.post(PATH, json=HELLO)
    api_engine.script = Script()
    web.post(PATH, json=HELLO)
    first, second = api_engine.requests
    assert first.conversation_id == second.conversation_id


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_the_work(
    stream: bool, api_engine: FakeEngine, fake_api: tuple[FakeEngine, str]
) -> None:
    api_engine.script = Script(words=("word ",) * 100, by_step=True)
    api_engine.step()
    body = json.dumps(HELLO | {"stream": stream}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    port = int(fake_api[1].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: bool(api_engine.answers))
        if stream:
            assert b"text/event-stream" in connection.recv(4096)
        assert not api_engine.answers[0].is_stopped
    wait_until(lambda: api_engine.answers[0].ended.is_set())
    assert api_engine.answers[0].is_stopped


def test_requests_at_once_never_share_a_conversation(
    api_engine: FakeEngine, web: httpx2.Client
) -> None:
    api_engine.script = Script(by_step=True)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(web.post, PATH, json=HELLO) for _ in range(2)]
        wait_until(lambda: len(api_engine.answers) == 2)
        api_engine.step(100)
        assert [answer.result().status_code for answer in asked] == [200, 200]
    assert len({request.conversation_id for request in api_engine.requests}) == 2


def test_the_queue_knows_who_asks(api_engine: FakeEngine, web: httpx2.Client) -> None:
    for user in (None, None, "ann"):
        web.post(PATH, json={"messages": [{"role": "user", "content": str(user)}], "user": user})
    first, second, ann = (request.visitor for request in api_engine.requests)
    assert first == second != ann
    assert "127.0.0.1" not in first and "ann" not in ann, "nobody's name goes any further"


def test_neither_users_nor_keys_that_are_invented_make_another_place(
    api_engine: FakeEngine, web: httpx2.Client
) -> None:
    for user, key in (("ann", "one"), ("ben", "two")):
        web.post(PATH, json=HELLO | {"user": user}, headers={"Authorization": f"Bearer {key}"})
    first, second = (request.visitor.partition("/") for request in api_engine.requests)
    assert first[0] == second[0] and first[2] != second[2]
