"""bench --url against a small server here: what it is sent, and every odd way it may answer."""

import argparse
import base64
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image

from vlm.commands import bench
from vlm.commands.bench_server import ChatServer, open_server
from vlm.commands.bench_stream import StreamedAnswer
from vlm.commands.bench_url import CHUNKS_NOTE
from vlm.errors import ConfigError, ModelError
from vlm.remote.stream import read_events

TEXT = "图中有一个红色的圆 and a square"
KEY = "sk-test-0123456789"


def chunk(delta: dict[str, object] | None = None, **more: object) -> bytes:
    """One event as servers write it: text as it is, not as escapes."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    event = {"object": "chat.completion.chunk", "choices": choices, **more}
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 226, "completion_tokens": 12, "total_tokens": 238}
WHOLE = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": None}),
    b": keep-alive\n\n",
    *(chunk({"content": TEXT[i : i + 4]}) for i in range(0, len(TEXT), 4)),
    chunk({}, usage=None),
    chunk(None, usage=USAGE),
    DONE,
]


@dataclass
class Answering:
    """What the server answers, and what it was asked."""

    events: list[bytes] = field(default_factory=lambda: list(WHOLE))
    status: int = 200
    error: str = ""
    """Body of an answer that is no success."""
    refuses: str = ""
    """A field that makes it answer 400 and name it."""
    content_type: str = "text/event-stream"
    packet_bytes: int = 7
    """Each packet holds so many bytes, so that characters are split."""
    is_chunked: bool = False
    is_broken: bool = False
    """Whether a chunked answer ends without its last chunk."""
    address: str = ""
    requests: list[dict[str, object]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    """Answers as its server's Answering says."""

    answering: Answering
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._note()
        assert self.path == "/v1/models"
        self._whole(200, json.dumps({"data": [{"id": "first/model"}, {"id": "other"}]}))

    def do_POST(self) -> None:
        answering = self.answering
        self._note()
        assert self.path == "/v1/chat/completions"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answering.requests.append(body)
        if answering.refuses in body:
            message = f"unknown field: {answering.refuses}"
            self._whole(400, json.dumps({"error": {"message": message}}))
        elif answering.status != 200:
            self._whole(answering.status, answering.error)
        else:
            self._stream(b"".join(answering.events))

    def _note(self) -> None:
        self.answering.headers.append(dict(self.headers.items()))

    def _whole(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(text.encode())

    def _stream(self, body: bytes) -> None:
        answering = self.answering
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", answering.content_type)
        self.send_header("Connection", "close")
        if answering.is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(body), answering.packet_bytes):
            part = body[start : start + answering.packet_bytes]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if answering.is_chunked else part)
            self.wfile.flush()
        if answering.is_chunked and not answering.is_broken:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    """A server on this machine that streams a good answer, until a test changes that."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # must not be asked for a local server
    served = Answering()
    handler = type("Handler", (Handler,), {"answering": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    served.address = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def parse(*flags: str) -> argparse.Namespace:
    """Read flags as the command does."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(flags)


def ask(answering: Answering) -> StreamedAnswer:
    """Ask the server one question."""
    return ChatServer(answering.address, "m").ask([{"role": "user", "content": "hi"}], 5)


def test_bench_asks_a_server_the_same_and_reports_the_same_keys(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    flags = ["--url", f"{answering.address}/", "--api-key-env", "MY_KEY", "--json"]
    flags += ["--picture", "96x64", "--new-tokens", "12", "--rounds", "2", "--turns", "2"]
    assert bench.run(parse(*flags)) == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert KEY not in told.out + told.err
    assert result["machine"] == {"url": answering.address, "model": "first/model"}
    assert result["bandwidth_gbps"] is None and result["matmul_gflops"] is None
    (row,) = result["rows"]
    assert row["engine"] == "server" and row["precision"] is None
    for figure in ("ttft_s", "decode_tps", "followup_ttft_s"):
        assert row[figure] > 0, figure
    assert row["chats_tps"] == {"1": row["decode_tps"], "4": None}
    for figure in ("load_s", "vision_s", "prefill_s", "decode_limit_ratio", "peak_rss_bytes"):
        assert row[figure] is None, figure
    assert {headers["Authorization"] for headers in answering.headers} == {f"Bearer {KEY}"}
    check_requests(answering.requests)


def check_requests(requests: list[dict[str, object]]) -> None:
    """A warm-up, then two rounds of a new picture with two follow-ups."""
    assert [len(request["messages"]) for request in requests] == [1, 1, 3, 5, 1, 3, 5]
    for request in requests:
        assert request["model"] == "first/model" and request["stream"] is True
        assert request["max_tokens"] == 12 and request["temperature"] == 0
    pictures = [picture_of(requests[i]) for i in (1, 4)]
    assert [picture.size for picture in pictures] == [(96, 64)] * 2
    assert pictures[0].tobytes() != pictures[1].tobytes()  # no cache knows the second
    assert picture_of(requests[3]).tobytes() == pictures[0].tobytes()
    roles = [message["role"] for message in requests[3]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert requests[3]["messages"][1]["content"] == TEXT
    assert len(requests[3]["messages"][4]["content"].split()) >= 5


def picture_of(request: dict[str, object]) -> Image.Image:
    """Decode the picture of a request's first message."""
    picture, text = request["messages"][0]["content"]
    assert picture["type"] == "image_url" and text["type"] == "text" and text["text"]
    head, _, data = picture["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def test_people_read_a_table_without_what_nobody_measured(
    answering: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--url", answering.address, "--model", "other", "--rounds", "1", "--turns", "0"]
    assert bench.run(parse(*flags, "--picture", "64x64")) == 0
    table = capsys.readouterr().out
    assert f"Server: {answering.address}" in table and "Model: other" in table
    assert "Question: 226 tokens; answer: 12 tokens" in table
    assert "peak memory" not in table and "follow-up" not in table


def test_conversations_are_asked_together_on_request(
    answering: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--url", answering.address, "--model", "m", "--rounds", "1", "--turns", "0"]
    assert bench.run(parse(*flags, "--picture", "64x64", "--chats", "4", "--json")) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["chats_tps"]["1"] > 0 and row["chats_tps"]["4"] > 0
    assert len(answering.requests) == 1 + 1 + 1 + 4


@pytest.mark.parametrize(
    ("events", "text", "tokens"),
    [
        pytest.param(WHOLE, TEXT, 12, id="all kinds of chunks"),
        pytest.param(WHOLE[:-1], TEXT, 12, id="no [DONE]"),
        pytest.param([e.replace(b"\n", b"\r\n") for e in WHOLE], TEXT, 12, id="lines end in CRLF"),
        pytest.param([e.replace(b"data: ", b"data:") for e in WHOLE], TEXT, 12, id="no space"),
        pytest.param([b"event: message\n" + e for e in WHOLE], TEXT, 12, id="named events"),
        pytest.param([*WHOLE[:-2], DONE, chunk({"content": "late"})], TEXT, 6, id="after [DONE]"),
        pytest.param([chunk({"content": "a"}), b"data: {cut"], "a", 1, id="cut in an event"),
        pytest.param([b"data: 5\n\ndata: {}\n\n", chunk({"content": "b"})], "b", 1, id="no chunk"),
        pytest.param([chunk({"content": [{"type": "text", "text": "c"}]})], "c", 1, id="parts"),
        pytest.param(
            [chunk({"content": "d\u2028e", "tool_calls": None}, error=None)],
            "d\u2028e",
            1,
            id="a line separator in the text",
        ),
    ],
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_odd_streams_keep_all_text(
    answering: Answering, events: list[bytes], text: str, tokens: int, is_chunked: bool
) -> None:
    answering.events, answering.is_chunked = events, is_chunked
    answer = ask(answering)
    assert (answer.text, answer.new_tokens, answer.note) == (text, tokens, "")
    assert answer.ttft_s is not None and answer.ttft_s > 0


def test_packets_of_every_size_give_the_same_text(answering: Answering) -> None:
    for answering.packet_bytes in (1, 3, 64, 4096):
        assert ask(answering).text == TEXT


def test_an_answer_that_is_broken_off_counts_as_far_as_it_came(answering: Answering) -> None:
    answering.events, answering.is_chunked, answering.is_broken = WHOLE[:8], True, True
    answer = ask(answering)
    assert answer.chunks == 5 and TEXT.startswith(answer.text)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"events": [chunk({"role": "assistant"}), DONE]}, "without streaming any text"),
        (
            {"events": [b'{"choices": [{"message": {"content": "x"}}]}\n']},
            "without streaming any text",
        ),
        (
            {"events": [*WHOLE[:6], b'data: {"error": {"message": "out of memory"}}\n\n']},
            "ended its answer with an error: out of memory",
        ),
        ({"status": 500, "error": "<html>oops</html>"}, "answered 500: <html>oops</html>"),
        ({"status": 404, "error": '{"error": "no such model"}'}, "answered 404: no such model"),
        ({"status": 401, "error": f'{{"message": "bad key {KEY}"}}'}, "bad key \\*\\*\\*"),
        ({"status": 307, "error": ""}, "answered 307"),
        ({"refuses": "messages"}, "unknown field: messages"),
    ],
)
def test_what_goes_wrong_at_the_server_is_a_sentence(
    answering: Answering, change: dict[str, object], words: str
) -> None:
    for name, value in change.items():
        setattr(answering, name, value)
    server = ChatServer(answering.address, "m", KEY)
    with pytest.raises(ModelError, match=words):
        server.ask([{"role": "user", "content": "hi"}], 5)
    assert KEY not in repr(server)


@pytest.mark.parametrize("name", ["stream_options", "max_tokens", "temperature"])
def test_a_field_the_server_does_not_know_is_left_out(answering: Answering, name: str) -> None:
    answering.refuses = name
    server = ChatServer(answering.address, "m")
    for _ in range(2):
        assert server.ask([{"role": "user", "content": "hi"}], 5).text == TEXT
    assert [name in request for request in answering.requests] == [True, False, False]
    if name == "max_tokens":
        assert answering.requests[-1]["max_completion_tokens"] == 5


def test_a_server_that_is_not_there_ends_with_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.run(parse("--url", "http://127.0.0.1:1/v1", "--model", "m")) == 1
    told = capsys.readouterr()
    assert told.out == "" and "http://127.0.0.1:1/v1 could not be reached" in told.err


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080/v1", "ftp://x/v1", "http://", "http://[", "http://me:word@x/v1"]
)
def test_wrong_addresses(url: str) -> None:
    with pytest.raises(ConfigError):
        open_server(url, None, "m")


@pytest.mark.parametrize("key", ["", "two\nlines", "schlüssel"])
def test_wrong_keys_are_refused_by_the_name_of_their_variable(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match="MY_KEY") as error:
        open_server("http://127.0.0.1:1/v1", "MY_KEY", "m")
    assert not key or key not in str(error.value)


def test_an_address_may_name_the_endpoint_itself() -> None:
    url = "http://127.0.0.1:1/v1/chat/completions"
    assert open_server(url, None, "m").url == "http://127.0.0.1:1/v1"


def test_rates_count_tokens_after_the_first() -> None:
    answer = StreamedAnswer(asked_at=10.0)
    answer.take({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 10.5)
    answer.take({"choices": [{"delta": {"content": "one"}}]}, 12.0)
    answer.take({"choices": [{"delta": {"content": "two"}}]}, 13.0)
    assert answer.ttft_s == 2.0 and answer.decode_tps == pytest.approx(1.0)
    answer.take({"choices": [], "usage": {"completion_tokens": 21}}, 14.0)
    assert answer.decode_tps == pytest.approx(20.0)  # chunks may hold several tokens


def test_thoughts_count_only_when_they_are_shown() -> None:
    usage = {"completion_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 10}}
    hidden, shown = StreamedAnswer(0.0), StreamedAnswer(0.0)
    shown.take({"choices": [{"delta": {"reasoning_content": "hm"}}]}, 1.0)
    for answer in (hidden, shown):
        answer.take({"choices": [{"delta": {"content": "yes"}}]}, 2.0)
        answer.take({"choices": [], "usage": usage}, 3.0)
    assert (hidden.new_tokens, shown.new_tokens) == (20, 30)
    assert shown.text == "yes" and shown.ttft_s == 1.0


def test_an_event_may_stand_on_several_lines() -> None:
    lines = [b'data: {"a":\n', b"data: 1}\n", b"\n", b"data: {cut\n", b"\n", b'data: {"b": 2}\n']
    assert list(read_events(lines)) == [{"a": 1}, {"b": 2}]


def test_a_server_that_counts_no_tokens_is_noted(
    answering: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    answering.events = [event for event in WHOLE if event != chunk(None, usage=USAGE)]
    flags = ["--url", answering.address, "--model", "m", "--rounds", "1", "--turns", "0"]
    assert bench.run(parse(*flags, "--picture", "64x64", "--json")) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["rows"][0]["decode_tps"] > 0
    assert f"server: {CHUNKS_NOTE}" in told.err
