"""Odd and bad inputs get the same answer or sentence at every door: page, API, /ask, `ask`."""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from conftest import REPOSITORY
from fake_engine import wait_until
from odd_pictures import BAD, GOOD, large_bmp
from page_visitor import PageVisitor
from pictures_to_send import data_url

from vlm.chat import AskRequest
from vlm.commands import ask
from vlm.config import Settings
from vlm.engine import Engine
from vlm.ui.serve import build_server

# Gradio leaves event loops open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
COLOUR = "What colour is the circle?"
DOORS = ("page", "api", "endpoint", "command")
PLAIN = ("red.png", GOOD["plain"]())
UPLOAD_BYTES = 2 * 2**20


class Said(NamedTuple):
    """What came out of a door."""

    answer: str
    refusal: str = ""


class Noting:
    """The real engine; remembers what it was asked."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests: list[AskRequest] = []

    def ask(self, request: AskRequest) -> Any:
        self.requests.append(request)
        return self.engine.ask(request)

    def close(self) -> None:
        """The command closes its engine; this one is shared."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@dataclass
class Doors:
    """One server with the built-in model, and the command, over one engine."""

    engine: Noting
    url: str
    config: Any
    """Of the page, so that not every tab asks for it."""
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def through(self, door: str, question: Any, files: list[Any], **options: Any) -> Said:
        """Ask through a door; nothing that comes back may tell what is inside."""
        said: Said = getattr(self, door)(question, files, options)
        return said

    def tab(self) -> PageVisitor:
        """Open a new tab."""
        return PageVisitor(self.url, self.config)

    def page(self, question: Any, files: list[Any], options: dict[str, Any]) -> Said:
        with self.tab() as visitor:
            sent = visitor.upload(*files) if files else None
            if sent is not None and sent.status_code != 200:
                check_silence(sent.text)
                return Said("", f"status {sent.status_code}")
            shown = visitor.send(question, sent.json() if sent else [], **options)
        check_silence(shown.raw.replace(os.environ["GRADIO_TEMP_DIR"], ""))
        return Said(shown.answer, shown.note or " ".join(shown.toasts))

    def api(self, question: Any, files: list[Any], options: dict[str, Any]) -> Said:
        parts: list[Any] = [
            {"type": "image_url", "image_url": {"url": data_url(content)}} for _, content in files
        ]
        parts.append({"type": "text", "text": question})
        body = {"messages": [{"role": "user", "content": parts}], **api_options(options)}
        answer = httpx2.post(
            f"{self.url}/v1/chat/completions",
            content=json.dumps(body),  # httpx's own JSON refuses NaN
            headers={"Content-Type": "application/json"},
            timeout=120,
            trust_env=False,
        )
        check_silence(answer.text)
        if answer.status_code == 200:
            return Said(answer.json()["choices"][0]["message"]["content"])
        error = answer.json()["error"]
        assert answer.status_code < 500 and set(error) == {"message", "type", "param", "code"}
        return Said("", error["message"])

    def endpoint(self, question: Any, files: list[Any], options: dict[str, Any]) -> Said:
        picture = data_url(files[0][1]) if files else ""
        asked = api_options(options)
        data = [picture, question, asked["max_tokens"], asked["temperature"]]
        with httpx2.Client(base_url=self.url, timeout=120, trust_env=False) as web:
            body = json.dumps({"data": data})
            kind = {"Content-Type": "application/json"}
            posted = web.post("/gradio_api/call/ask", content=body, headers=kind)
            if posted.status_code != 200:
                return Said("", posted.json()["error"]["message"])
            said = web.get(f"/gradio_api/call/ask/{posted.json()['event_id']}").text
        check_silence(said)
        event, _, content = said.strip().rpartition("\ndata: ")
        value = json.loads(content)
        if event.endswith("event: complete"):
            return Said(value[0])
        return Said("", value["error"] if isinstance(value, dict) else str(value))

    def command(self, question: str, files: list[Any], options: dict[str, Any]) -> Said:
        paths = []
        for number, (name, content) in enumerate(files):
            path = self.folder / str(number) / name.rpartition("/")[2]
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            paths.append(str(path))
        asked = {"temperature": 0.0, "max_tokens": 24} | options
        words = [*paths, "-q", question, "--model", "bundled"]
        words += [
            f"--temperature={asked['temperature']}",
            f"--max-new-tokens={asked['max_tokens']}",
        ]
        self.capsys.readouterr()
        parser = argparse.ArgumentParser()
        ask.add_arguments(parser)
        try:
            code = ask.run(parser.parse_args(words))
        except SystemExit as usage:
            code = int(usage.code or 0)
        out, err = self.capsys.readouterr()
        assert code in (0, 1, 2) and "Traceback" not in out + err
        for path in paths:
            err = err.replace(f"{path}: ", "")
        return Said(out.strip()) if code == 0 else Said("", err.strip().rpartition("\n")[2])


def api_options(options: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": 0.0, "presence_penalty": 0.0, "max_tokens": 24, **options}


def check_silence(text: str) -> None:
    """What goes out tells no path of this machine and nothing of the code."""
    for secret in ("Traceback", str(REPOSITORY), "site-packages", '.py"', "line 1"):
        assert secret not in text, secret


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Noting, str, Any]]:
    """The whole server with the real engine and the built-in model."""
    values = {
        "model": {"model": "bundled", "precision": "fp32"},
        "generation": {"presence_penalty": 0.0},
        "server": {"max_upload_bytes": UPLOAD_BYTES},
    }
    settings = Settings.model_validate(values)
    engine = Noting(Engine(settings))
    page, options = build_server(engine, settings)
    _, url, _ = page.launch(quiet=True, prevent_thread_lock=True, share=False, **options)
    wait_until(lambda: engine.state().stage == "ready", timeout_s=120)
    with PageVisitor(str(url).rstrip("/")) as visitor:
        config = visitor.config
    yield engine, str(url).rstrip("/"), config
    page.close(verbose=False)
    engine.engine.close()
    del page, options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def doors(
    served: tuple[Noting, str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Doors:
    """All ways in, over one engine."""
    engine, url, config = served
    engine.requests.clear()
    monkeypatch.setattr(ask, "make_engine", lambda settings: engine)
    return Doors(engine, url, config, tmp_path, capsys)


@pytest.mark.parametrize("kind", GOOD)
def test_odd_pictures_are_read_alike_at_every_door(kind: str, doors: Doors) -> None:
    content = GOOD[kind]()
    said = {door: doors.through(door, COLOUR, [("odd.png", content)]) for door in DOORS}
    assert not any(one.refusal for one in said.values()), said
    answers = {said[door].answer for door in DOORS if door != "page"}
    assert len(answers) == 1 and all(answers), said
    # The page's message also says what is to be said of the picture.
    assert answers.pop() in said["page"].answer
    is_told = "only its first frame is used" in said["page"].answer
    assert is_told == (kind == "animated GIF")
    if kind == "plain":
        assert said["page"].answer == "Red"
    seen = [request.messages[-1].pictures[0] for request in doors.engine.requests]
    assert len(seen) == len(DOORS) and len({picture.content_hash for picture in seen}) == 1
    image = seen[0].image
    red, green, blue = image.getpixel((image.width // 2, image.height // 3))
    assert (red > 120 and green < 90 and blue < 90) or kind == "16 bit"
    assert all(len(picture.notices) == (kind in ("animated GIF",)) for picture in seen)


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_picture_gets_the_same_sentence_at_every_door(kind: str, doors: Doors) -> None:
    content, sentence = BAD[kind]
    for door in DOORS:
        said = doors.through(door, COLOUR, [("photo.png", content)])
        taken_out = '"photo.png" was taken out: ' if door == "page" else ""
        assert said == Said("", f"{taken_out}{sentence}"), door
    assert not doors.engine.requests


@pytest.mark.parametrize(
    ("name", "uploaded"),
    [
        ("\u56fe" * 120 + ".png", None),
        ("../../../etc/passwd.png", "passwd.png"),
        ("a\u202egnp.png", None),
        ("<img src=x onerror=alert(1)>.png", None),
    ],
)
def test_odd_names_of_files_do_no_harm(name: str, uploaded: str | None, doors: Doors) -> None:
    with doors.tab() as visitor:
        (path,) = visitor.upload((name, PLAIN[1])).json()
        folder = Path(os.environ["GRADIO_TEMP_DIR"]).resolve()
        assert Path(path).resolve().parent.parent == folder
        assert uploaded is None or Path(path).name == uploaded
        assert visitor.send(COLOUR, [path]).answer == "Red"
        (bad,) = visitor.upload((name, b"%PDF-1")).json()
        shown = visitor.send(COLOUR, [bad])
        assert BAD["PDF"][1] in shown.note
        assert "<img" not in shown.raw.replace('\\"', '"')
    said = doors.through("command", COLOUR, [(Path(path).name, PLAIN[1])])
    assert said == Said("Red")


def test_a_name_too_long_for_a_disk_is_told_at_the_command(doors: Doors) -> None:
    parser = argparse.ArgumentParser()
    ask.add_arguments(parser)
    assert ask.run(parser.parse_args(["\u56fe" * 120 + ".png", "-q", "?"])) == 1
    said = doors.capsys.readouterr().err
    assert said.startswith("There is no file \u56fe") and "Traceback" not in said


NO_TEXT = "This message has no text. Type a question and try again."
NO_TEXT_BESIDE = "This message has no text. Type a question about the picture and try again."
LONG = (
    "This chat has 300000 characters of text; the limit is {}. "
    "Start a new chat, or shorten the text."
)
TOO_MANY = (
    "This question has 500 pictures; the limit is 8. "
    "Remove some, or ask about them one after the other."
)


def test_a_question_without_words_gets_a_sentence_at_every_door(doors: Doors) -> None:
    for door in DOORS:
        nothing = doors.through(door, " \n", [])
        # The page says so before anything is asked; a failed question stands in its chat.
        expected = "Write a question or add a picture first." if door == "page" else NO_TEXT
        assert nothing == Said("", expected), door
        beside = doors.through(door, "", [PLAIN])
        assert "".join(beside).removeprefix("\u26a0\ufe0f ") == NO_TEXT_BESIDE, door


def test_a_book_for_a_question_is_refused_at_every_door(doors: Doors) -> None:
    most = 32 * int(doors.engine.engine._generator.limits.context_tokens)
    for door in DOORS:
        said = doors.through(door, "x" * 300_000, [])
        if door == "page":
            assert said.refusal.startswith("The question has 300000 characters; the limit is 100")
        else:
            assert said == Said("", LONG.format(most)), door


def test_500_pictures_are_refused_undecoded_at_every_door(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlm.images._decode", None)
    assert doors.through("api", COLOUR, [PLAIN] * 500) == Said("", TOO_MANY)
    assert doors.through("command", COLOUR, [PLAIN] * 500) == Said("", TOO_MANY)
    with doors.tab() as visitor:
        paths = visitor.upload(PLAIN).json() * 500
        (said,) = visitor.send(COLOUR, paths).toasts
        assert said.startswith("500 pictures were added; one question takes at most 8. Remove")
    with httpx2.Client(base_url=doors.url, timeout=120, trust_env=False) as web:
        data = ["?", [data_url(PLAIN[1])] * 500, [], "", None, None]
        posted = web.post("/gradio_api/call/chat", json={"data": data})
        text = web.get(f"/gradio_api/call/chat/{posted.json()['event_id']}").text
    assert TOO_MANY in text and not doors.engine.requests


@pytest.mark.parametrize("name", ["..", "odd.exe", "", "/"])
def test_names_that_are_none_of_a_picture_are_refused_at_the_page(name: str, doors: Doors) -> None:
    with doors.tab() as visitor:
        sent = visitor.upload((name, PLAIN[1]))
        check_silence(sent.text)
        if sent.status_code == 200:
            shown = visitor.send(COLOUR, sent.json())
            check_silence(shown.raw.replace(os.environ["GRADIO_TEMP_DIR"], ""))
            assert not shown.answer and shown.toasts
    assert not doors.engine.requests


def test_a_file_above_the_limit_is_refused_where_others_send_it(doors: Doors) -> None:
    above, far_above = ("a.bmp", large_bmp(2.6)), ("a.bmp", large_bmp(3))
    limit = "This picture file has 3 MiB; the limit is 2 MiB. Save it smaller and try again."
    body = "The request is larger than 3.67 MiB. Send smaller or fewer pictures."
    for file, sentence in ((above, limit), (far_above, body)):
        assert doors.through("page", COLOUR, [file]) == Said("", "status 413")
        assert doors.through("api", COLOUR, [file]) == Said("", sentence)
        assert doors.through("endpoint", COLOUR, [file]) == Said("", sentence)
    assert not doors.engine.requests
    # One's own machine has no such limit.
    assert doors.through("command", COLOUR, [far_above]).answer


ABOVE, BELOW = "must be less than or equal to", "must be greater than or equal to"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temperature", -1, f"{BELOW} 0"),
        ("temperature", math.nan, "must be a finite number"),
        ("temperature", math.inf, "must be a finite number"),
        ("temperature", 1e9, f"{ABOVE} 2"),
        ("temperature", "hot", "must be a valid number"),
        ("temperature", [], "must be a valid number"),
        ("max_tokens", 0, f"{BELOW} 1"),
        ("max_tokens", -5, f"{BELOW} 1"),
        ("max_tokens", math.nan, "must be a valid integer"),
        ("max_tokens", 1e9, "must be a valid integer"),
        ("max_tokens", "x", "must be a valid integer"),
        ("max_tokens", True, "must be a valid integer"),
    ],
)
def test_impossible_settings_are_refused_by_name(
    name: str, value: Any, said: str, doors: Doors
) -> None:
    for door in ("api", "endpoint"):
        refused = doors.through(door, COLOUR, [PLAIN], **{name: value})
        assert refused == Said("", f"The request cannot be used: {name}: {said}."), door
    if isinstance(value, int | float) and not (name == "max_tokens" and value != value):
        refused = doors.through("command", COLOUR, [PLAIN], **{name: value})
        assert not refused.answer and (said in refused.refusal or "--max-new" in refused.refusal)
    assert not doors.engine.requests
    # The page's own script cannot send this; whoever does gets what its sliders allow, or nothing.
    doors.through("page", COLOUR, [PLAIN], **{name: value})
    for request in doors.engine.requests:
        assert 0 <= request.sampling.temperature <= 2
        assert 1 <= request.sampling.max_new_tokens <= 8192


@pytest.mark.parametrize("value", [0, 0.0])
def test_zero_takes_the_likeliest_word_at_every_door(value: Any, doors: Doors) -> None:
    for door in DOORS:
        assert doors.through(door, COLOUR, [PLAIN], temperature=value) == Said("Red"), door
    assert all(request.sampling.temperature == 0 for request in doors.engine.requests)
