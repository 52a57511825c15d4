"""Eight simulated visitors at a real server: python tests/soak.py --seconds 1800

Three use the page, two the API, one the endpoint /ask; one stops, leaves and forgets; one sends
garbage. Every answer must be what the same visitor got alone, every refusal a sentence.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
from odd_pictures import BAD, saved
from page_visitor import PageVisitor
from pictures_to_send import data_url
from PIL import Image, ImageDraw

REPOSITORY = Path(__file__).resolve().parent.parent
SETTINGS = """
[memory]
kv_cache_bytes = "12 MiB"
feature_cache_bytes = "4 MiB"
[generation]
temperature = 0.0
presence_penalty = 0.0
max_new_tokens = 16
"""
"""Small caches, so that memory is full early and must stay flat from then."""
QUESTIONS = ("What colour is the shape?", "What shape is it?")
SECRETS = {
    "red": (220, 30, 30), "blue": (30, 60, 210), "green": (30, 150, 50),
    "black": (10, 10, 10), "orange": (245, 130, 20), "purple": (130, 40, 160),
}  # fmt: skip
MOST_GROWTH_BYTES = 96 * 2**20
"""Between the second and the last quarter; one leaked picture a turn would be far more."""


class Wrong(Exception):
    """Something that must never happen."""


@dataclass
class Report:
    """What became of all requests."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        """Note one request."""
        with self.lock:
            self.counts[what] += 1

    @property
    def growth_bytes(self) -> int:
        """How much larger the server was in the last quarter than in the second."""
        quarter = max(1, len(self.rss_bytes) // 4)
        early, late = self.rss_bytes[quarter : 2 * quarter], self.rss_bytes[-quarter:]
        return round(statistics.median(late) - statistics.median(early or late))


def picture(colour: str, number: int) -> bytes:
    """A visitor's own picture, in one of several kinds of file and sizes."""
    side = 192 + 32 * (number % 3)
    image = Image.new("RGB", (side, side), "white")
    edge = side // 5
    draw = ImageDraw.Draw(image)
    draw.ellipse((edge, edge, side - edge, side - edge), fill=SECRETS[colour])
    kinds: list[Callable[[], bytes]] = [
        lambda: saved(image), lambda: saved(image, "JPEG", quality=92),
        lambda: saved(image, "WEBP", lossless=True), lambda: saved(image.convert("P"), "GIF"),
        lambda: saved(image, "BMP"), lambda: saved(image.convert("CMYK"), "JPEG", quality=92),
        lambda: saved(image, "TIFF"), lambda: saved(image.convert("RGBA")),
    ]  # fmt: skip
    return kinds[number % len(kinds)]()


class Client:
    """One visitor with a picture and a colour of its own."""

    def __init__(self, url: str, colour: str, report: Report) -> None:
        self.url, self.colour, self.report = url, colour, report
        self.web = httpx2.Client(base_url=url, timeout=120, trust_env=False)
        self.config = self.web.get("/config").json()

    def chat(self, number: int) -> tuple[str, ...]:
        """Ask about the picture, then go on; returns the answers."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave."""
        self.web.close()


class PageClient(Client):
    """Somebody at the page."""

    def __init__(self, url: str, colour: str, report: Report) -> None:
        super().__init__(url, colour, report)
        self.tab = PageVisitor(url, self.config)

    def chat(self, number: int) -> tuple[str, ...]:
        """Ask, go on and clear the chat."""
        file = f"{self.colour}.png", picture(self.colour, number)
        answers = []
        for index, question in enumerate(QUESTIONS):
            shown = self.tab.ask(question, *([file] if index == 0 else []))
            self.report.count("page")
            if shown.note or shown.toasts or not shown.answer:
                raise Wrong(f"the page said {shown.note or shown.toasts or shown.raw[-600:]}")
            answers.append(shown.answer)
        self.tab.press("clear").raise_for_status()
        return tuple(answers)

    def close(self) -> None:
        """Leave."""
        self.tab.web.close()
        super().close()


class ApiClient(Client):
    """A program that streams."""

    def chat(self, number: int) -> tuple[str, ...]:
        """Ask, then send the whole chat again with one question more."""
        image = {
            "type": "image_url", "image_url": {"url": data_url(picture(self.colour, number))},
        }  # fmt: skip
        parts = [image, {"type": "text", "text": QUESTIONS[0]}]
        messages: list[Any] = [{"role": "user", "content": parts}]
        first = self.stream(messages)
        messages += [{"role": "assistant", "content": first}]
        messages += [{"role": "user", "content": QUESTIONS[1]}]
        return first, self.stream(messages)

    def stream(self, messages: list[Any]) -> str:
        """Ask once, and again after a refusal for want of room."""
        body = {"messages": messages, "stream": True, "temperature": 0, "user": self.colour}
        while True:
            with self.web.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
                status = answer.status_code
            if status != 429:
                break
            self.report.count("refused for want of room")
            time.sleep(1.0)
        if status != 200 or lines[-1] != "data: [DONE]":
            raise Wrong(f"the API answered {status} {lines[-1:]}")
        self.report.count("api")
        chunks = [json.loads(line[6:])["choices"] for line in lines[:-1]]
        return "".join(c[0]["delta"].get("content") or "" for c in chunks if c)


class EndpointClient(Client):
    """A program that speaks Gradio's way."""

    def chat(self, number: int) -> tuple[str, ...]:
        """Ask twice; each call stands for itself."""
        return tuple(self.ask(question, picture(self.colour, number)) for question in QUESTIONS)

    def ask(self, question: str, file: bytes) -> str:
        """Call /ask."""
        data = [data_url(file), question, 16, 0]
        posted = self.web.post("/gradio_api/call/ask", json={"data": data})
        said = self.web.get(f"/gradio_api/call/ask/{posted.json()['event_id']}").text
        if "event: complete" not in said:
            raise Wrong(f"/ask said {said[-300:]}")
        self.report.count("endpoint")
        return str(json.loads(said.strip().rpartition("data: ")[2])[0])


class HastyClient(Client):
    """Stops, leaves in the middle, forgets to read."""

    def chat(self, number: int) -> tuple[str, ...]:
        """Break off in one of several ways; there is nothing to compare."""
        body = {
            "messages": [{"role": "user", "content": "Describe everything. " * (1 + number % 40)}],
            "stream": number % 2 == 0,
            "max_tokens": 400,
        }
        way = number % 4
        if way < 2:  # a program that leaves, at once or after the first word
            with httpx2.Client(base_url=self.url, timeout=0.3 if way else 30) as web:
                try:
                    with web.stream("POST", "/v1/chat/completions", json=body) as answer:
                        next(answer.iter_raw(), b"")
                except httpx2.TimeoutException:
                    pass
            self.report.count("left")
            return ()
        with PageVisitor(self.url, self.config) as tab:
            paths = tab.upload(("x.png", picture(self.colour, number))).json()
            tab.start("Describe everything. " * 20, paths, max_tokens=400)
            if way == 2:
                tab.press("box").raise_for_status()  # Stop
                tab.wait()
                self.report.count("stopped")
            else:
                tab.leave()
                self.report.count("left")
        return ()


class GarbageClient(Client):
    """Sends what nobody should."""

    def chat(self, number: int) -> tuple[str, ...]:
        """Send a bad picture and a bad body; each must get a sentence."""
        content, sentence = list(BAD.values())[number % len(BAD)]
        with PageVisitor(self.url, self.config) as tab:
            shown = tab.ask("What?", ("x.png", content))
        if sentence not in shown.note:
            raise Wrong(f"the page said {shown.note!r} instead of {sentence!r}")
        part = {"type": "image_url", "image_url": {"url": data_url(content)}}
        bodies: list[Any] = [
            {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]},
            {"messages": [{"role": "system", "content": "x"}] * 2000},
            {"messages": [{"role": "user", "content": "x " * 200_000}]},
            [[[]]], {"messages": {"a": 1}}, {"messages": [{"role": "root", "content": "x"}]},
        ]  # fmt: skip
        answer = self.web.post("/v1/chat/completions", json=bodies[number % len(bodies)])
        noise = random.Random(number).randbytes(2000)
        kind = {"Content-Type": "application/json"}
        other = self.web.post("/v1/chat/completions", content=noise, headers=kind)
        for refused in (answer, other):
            if not 400 <= refused.status_code < 500 or "Traceback" in refused.text:
                raise Wrong(f"garbage got {refused.status_code} {refused.text[:300]}")
        self.report.count("garbage refused")
        return ()


@contextmanager
def server() -> Iterator[tuple[str, psutil.Process, Path]]:
    """The real command with the built-in model; gives address, process and log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        settings, log = Path(folder) / "soak.toml", Path(folder) / "log"
        settings.write_text(SETTINGS)
        environment = os.environ | {
            "GRADIO_TEMP_DIR": folder, "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": folder,
        }  # fmt: skip
        flags = ["--model", "bundled", "--precision", "fp32", "--config", str(settings)]
        with log.open("w") as output:
            started = subprocess.Popen(
                [sys.executable, "demo.py", *flags, "--port", str(port)],
                cwd=REPOSITORY, env=environment, stdout=output, stderr=output,
            )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(url, started, log)
            yield url, psutil.Process(started.pid), log
        finally:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def _wait_until_ready(url: str, started: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + 240
    while time.monotonic() < end_s and started.poll() is None:
        try:
            if httpx2.get(f"{url}/health", timeout=30, trust_env=False).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.3)
    raise Wrong(f"the server never came: {log.read_text()[-2000:]}")


def soak(seconds: float) -> Report:
    """Let all visitors at a server for so long; faults are in the report."""
    report = Report()
    with server() as (url, process, log):
        kinds = [PageClient] * 3 + [ApiClient] * 2 + [EndpointClient, HastyClient, GarbageClient]
        colours = [*SECRETS, "red", "red"]
        visitors = [kind(url, colour, report) for kind, colour in zip(kinds, colours, strict=True)]  # type: ignore[abstract]
        alone = [[visitor.chat(number) for number in range(2)] for visitor in visitors[:6]]
        _check_secrets(alone, report)
        end_s = time.monotonic() + seconds
        threads = [
            threading.Thread(target=_visit, args=(visitor, wanted, end_s, report), daemon=True)
            for visitor, wanted in itertools.zip_longest(visitors, alone)
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() < end_s:
            report.rss_bytes.append(process.memory_info().rss)
            time.sleep(min(1.0, seconds / 40))
        for thread in threads:
            thread.join(300)
        report.faults += [f"{t.name} never came back" for t in threads if t.is_alive()]
        _check_end(url, visitors[0], alone[0], report)
        for visitor in visitors:
            visitor.close()
        if "Traceback" in (said := log.read_text()):
            report.faults.append(said[said.index("Traceback") :][:2000])
    if report.growth_bytes > MOST_GROWTH_BYTES:
        report.faults.append(f"memory grew by {report.growth_bytes >> 20} MiB")
    return report


def _check_secrets(alone: list[list[tuple[str, ...]]], report: Report) -> None:
    """Each visitor's answers must tell its own colour, or equality would prove nothing."""
    for colour, chats in zip(SECRETS, alone, strict=True):
        if any(colour not in chat[0].lower() for chat in chats):
            report.faults.append(f"alone, the visitor of {colour} got {chats}")


def _visit(
    visitor: Client, wanted: list[tuple[str, ...]] | None, end_s: float, report: Report
) -> None:
    for number in itertools.count():
        if time.monotonic() > end_s or len(report.faults) > 20:
            return
        try:
            answers = visitor.chat(number % len(wanted) if wanted else number)
            if wanted and answers != wanted[number % len(wanted)]:
                raise Wrong(f"{visitor.colour} got {answers}, alone {wanted[number % len(wanted)]}")
        except Exception:
            with report.lock:
                report.faults.append(f"{type(visitor).__name__}: {traceback.format_exc(limit=4)}")


def _check_end(url: str, visitor: Client, wanted: list[tuple[str, ...]], report: Report) -> None:
    """The queue is empty soon, and the server answers as it did at first."""
    end_s = time.monotonic() + 60
    left: list[str] = ["?"]
    while left and time.monotonic() < end_s:
        text = httpx2.get(f"{url}/metrics", timeout=60, trust_env=False).text
        gauges = ("vlm_waiting_questions ", "vlm_running_answers ")
        lines = [line for line in text.splitlines() if line.startswith(gauges)]
        left = [line for line in lines if float(line.split()[-1])] if len(lines) == 2 else lines
        time.sleep(0.2)
    if left:
        report.faults.append(f"at the end there were {left}")
    if visitor.chat(0) != wanted[0]:
        report.faults.append("after it all the answer was another one")


def main() -> int:
    """Run it and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800)
    report = soak(parser.parse_args().seconds)
    sizes = [size >> 20 for size in report.rss_bytes] or [0]
    sys.stdout.write(f"{dict(report.counts)}\n")
    steps = sizes[:: max(1, len(sizes) // 12)]
    sys.stdout.write(f"MiB over time: {', '.join(map(str, [*steps, sizes[-1]]))}\n")
    sys.stdout.write("\n".join(report.faults) + "\n" if report.faults else "No faults.\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
