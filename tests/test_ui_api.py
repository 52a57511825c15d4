"""Programs that speak Gradio's way get answers under stable names, and nothing they should not."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_engine import FakeEngine, Script, wait_until
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from pictures_to_send import data_url, png

from vlm.config import Settings
from vlm.ui.serve import build_server

# Gradio leaves event loops open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
# A busy machine needs longer for the same than the client would wait.
PATIENT: Any = {"verbose": False, "analytics_enabled": False, "httpx_kwargs": {"timeout": 60}}
BOXES = '[{"bbox_2d": [0, 500, 250, 1000], "label": "red circle"}]'


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeEngine, str]]:
    """The whole server over a FakeEngine, with the MCP server."""
    engine = FakeEngine()
    page, options = build_server(engine, Settings(), mcp=True)
    _, url, _ = page.launch(quiet=True, prevent_thread_lock=True, **options)
    yield engine, str(url).rstrip("/")
    page.close(verbose=False)
    del page, options
    with warnings.catch_warnings():
        # Gradio leaves event loops open; collected here, they trouble no other test.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def engine(served: tuple[FakeEngine, str]) -> Iterator[FakeEngine]:
    """The FakeEngine behind the page, as new."""
    engine = served[0]
    engine.reset()
    yield engine
    engine.reset()


@pytest.fixture(scope="module")
def client(served: tuple[FakeEngine, str]) -> Client:
    """Gradio's own client."""
    return Client(served[1], **PATIENT)


@pytest.fixture
def photo(tmp_path: Path) -> Any:
    """A picture file to upload."""
    path = tmp_path / "photo.png"
    path.write_bytes(png("red", (200, 100)))
    return handle_file(str(path))


def test_the_four_names_are_documented_and_nothing_else_is(client: Client) -> None:
    info: Any = client.view_api(return_format="dict", print_info=False)
    assert set(info["named_endpoints"]) == {"/chat", "/ask", "/boxes", "/read_text"}
    assert not info["unnamed_endpoints"]
    ask = info["named_endpoints"]["/ask"]
    assert [p["parameter_name"] for p in ask["parameters"]][:2] == ["picture", "question"]
    assert ask["returns"][0]["type"] == {"type": "string"}
    assert "question about a picture" in ask["description"]


def test_ask_takes_an_upload_or_a_data_url(client: Client, engine: FakeEngine, photo: Any) -> None:
    for picture in (photo, data_url(png("red"))):
        assert client.predict(picture, "What is it?", api_name="/ask") == "A red circle."
        (message,) = engine.requests[-1].messages
        assert message.text == "What is it?"
        assert message.pictures[0].image.getpixel((0, 0)) == (255, 0, 0)


def test_chat_streams_and_takes_a_history(client: Client, engine: FakeEngine, photo: Any) -> None:
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    job = client.submit(
        "three", pictures=[photo], history=history, system="Brief.", api_name="/chat"
    )
    assert job.result() == "A red circle."
    assert "A " in job.outputs()
    messages = engine.requests[0].messages
    assert [(m.role, m.text) for m in messages] == [
        ("system", "Brief."), ("user", "one"), ("assistant", "two"), ("user", "three"),
    ]  # fmt: skip
    assert [len(m.pictures) for m in messages] == [0, 1, 0, 0]


def test_a_chat_that_goes_on_keeps_its_conversation(client: Client, engine: FakeEngine) -> None:
    answer = client.predict("Hello there", api_name="/chat")
    history = [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": answer}]
    client.predict("And now?", history=history, api_name="/chat")
    first, second = engine.requests
    assert first.conversation_id == second.conversation_id
    assert second.messages[1].token_ids == (1, 2, 3)


def test_boxes_come_in_pixels(client: Client, engine: FakeEngine, photo: Any) -> None:
    engine.script = Script(words=(BOXES,))
    found = client.predict(photo, what="circle", api_name="/boxes")
    assert found == [{"label": "red circle", "box": [0, 50, 50, 100]}]
    assert "circle" in engine.requests[0].messages[0].text
    assert engine.requests[0].sampling.temperature == 0


def test_read_text_asks_for_the_text(client: Client, engine: FakeEngine, photo: Any) -> None:
    assert client.predict(photo, api_name="/read_text") == "A red circle."
    assert "text" in engine.requests[0].messages[0].text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"message": "x", "history": [{"role": "system", "content": "y"}]}, "role"),
        ({"message": "x", "history": [{"role": "user", "content": 5}]}, "history|messages"),
        ({"message": 5}, "content"),
        ({"message": "x", "temperature": -1}, "temperature"),
        ({"message": "x", "max_tokens": 0}, "max_tokens"),
        ({"message": "x", "pictures": ["http://127.0.0.1/x.png"]}, "switched off"),
        ({"message": "x", "pictures": [{"path": "/etc/passwd"}]}, "uploaded"),
        ({"message": "x", "pictures": ["/etc/passwd"]}, "data URL"),
        ({"message": "x", "pictures": [data_url(b"%PDF-1")]}, "PDF"),
    ],
)
def test_what_cannot_be_done_is_told(
    arguments: dict[str, Any], said: str, client: Client, engine: FakeEngine
) -> None:
    with pytest.raises(AppError, match=said):
        client.predict(api_name="/chat", **arguments)
    assert not engine.answers


@pytest.mark.parametrize("path", ["/etc/passwd", "http://127.0.0.1:1/x.png", "https://example.com"])
def test_gradio_opens_no_other_file_and_fetches_nothing(
    path: str, served: tuple[FakeEngine, str], engine: FakeEngine
) -> None:
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    with httpx2.Client(base_url=served[1], trust_env=False, timeout=60) as web:
        posted = web.post("/gradio_api/call/ask", json={"data": [file, "What?"]})
        said = web.get(f"/gradio_api/call/ask/{posted.json()['event_id']}").text
    assert "event: error" in said and "event: complete" not in said
    assert not engine.answers


def test_a_client_that_leaves_stops_the_work(
    served: tuple[FakeEngine, str], engine: FakeEngine
) -> None:
    engine.script = Script(words=("word ",) * 50, by_step=True)
    leaving = Client(served[1], **PATIENT)
    leaving.submit("Hello", api_name="/chat")
    wait_until(lambda: bool(engine.answers), timeout_s=30)
    leaving.close()
    wait_until(lambda: engine.answers[0].ended.is_set(), timeout_s=60)
    assert engine.answers[0].is_stopped


def test_the_api_for_programs_is_on_the_same_port(
    served: tuple[FakeEngine, str], engine: FakeEngine
) -> None:
    with httpx2.Client(base_url=served[1], trust_env=False, timeout=60) as web:
        assert web.get("/health").json()["status"] == "ready"
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        assert "data: [DONE]" in web.post("/v1/chat/completions", json=body).text
        assert 'source="api"' in web.get("/metrics").text
        assert "Talk to a picture" in web.get("/").text


def test_the_same_functions_are_tools_over_mcp(
    served: tuple[FakeEngine, str], engine: FakeEngine
) -> None:
    def call(method: str, params: dict[str, Any]) -> Any:
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        accept = {"Accept": "application/json, text/event-stream"}
        answer = web.post("/gradio_api/mcp/", json=asked, headers=accept)
        line = next(line for line in answer.text.splitlines() if line.startswith(("data: ", "{")))
        return json.loads(line.removeprefix("data: "))["result"]

    with httpx2.Client(base_url=served[1], trust_env=False, timeout=120) as web:
        tools = {tool["name"]: tool for tool in call("tools/list", {})["tools"]}
        assert {name.rpartition("_")[2] for name in tools} >= {"chat", "ask", "boxes", "text"}
        ask = next(name for name in tools if name.endswith("ask"))
        assert "question about a picture" in tools[ask]["description"]
        properties = tools[ask]["inputSchema"]["properties"]
        assert "data URL" in properties["picture"]["description"]
        given = {"picture": data_url(png("red")), "question": "What is it?"}
        ids = set()
        for _ in range(2):
            said = call("tools/call", {"name": ask, "arguments": given})
            assert said["content"][0]["text"] == "A red circle."
            ids.add(engine.requests[-1].conversation_id)
    assert len(ids) == 2, "visitors over MCP must not share a conversation"
