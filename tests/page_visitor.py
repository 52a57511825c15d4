"""A visitor of the page without a browser: speaks to it as the page's own script does."""

from __future__ import annotations

import html
import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx2

File = tuple[str, bytes]
"""A name and a content."""
DIALS: dict[str, Any] = {
    "detail": 512, "system": "", "temperature": 0.0, "top_p": 0.8, "top_k": 20,
    "presence_penalty": 0.0, "max_tokens": 24, "seed": 0,
}  # fmt: skip
"""What stands beside the input, in the order the page sends it."""


@dataclass
class Shown:
    """What the page shows after a question."""

    answer: str = ""
    """The last message of the model, with errors and notices, without its marks."""
    note: str = ""
    """What stands above the input."""
    toasts: list[str] = field(default_factory=list)
    box: Any = None
    """What was put back into the input."""
    raw: str = ""
    """Everything that came, as it came."""


class PageVisitor:
    """One tab."""

    def __init__(self, url: str, config: Any = None, timeout_s: float = 120.0) -> None:
        """Open the page; its configuration may be that of another tab."""
        self.session = uuid.uuid4().hex
        self.web = httpx2.Client(base_url=url, timeout=timeout_s, trust_env=False)
        self.config = config or self.web.get("/config").json()
        self._ids = {c["props"].get("elem_id"): c["id"] for c in self.config["components"]}
        # Some events run a script first, which is an event of its own.
        self._events = {
            tuple(target): event
            for event in reversed(self.config["dependencies"])
            for target in event["targets"]
            if event["backend_fn"]
        }

    def __enter__(self) -> PageVisitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.web.close()

    def upload(self, *files: File) -> httpx2.Response:
        """Send files; the answer is a list of paths, or a refusal."""
        return self.web.post("/gradio_api/upload", files=[("files", file) for file in files])

    def ask(self, text: Any, *files: File, **dials: Any) -> Shown:
        """Put a question and files into the input and send it."""
        paths = self.upload(*files).raise_for_status().json() if files else []
        return self.send(text, paths, **dials)

    def send(self, text: Any, paths: list[str], **dials: Any) -> Shown:
        """Send a question about files that are uploaded; waits for the end."""
        self.start(text, paths, **dials)
        return self.wait()

    def start(self, text: Any, paths: list[str], **dials: Any) -> None:
        """Send a question and read nothing yet."""
        event = self._events[self._ids["box"], "submit"]
        values = [_box(text, paths), *(DIALS | dials).values()]
        assert len(values) == len(event["inputs"]), "the page sends something else by now"
        self._join(event, values)

    def wait(self) -> Shown:
        """Read what the page shows, to the end of what was started."""
        event = self._events[self._ids["box"], "submit"]
        query = {"session_hash": self.session}
        with self.web.stream("GET", "/gradio_api/queue/data", params=query) as answer:
            lines = list(answer.iter_lines())
        names = {number: name for name, number in self._ids.items()}
        return _shown(lines, [names[number] for number in event["outputs"]])

    def press(self, button: str) -> httpx2.Response:
        """Press a button that works at once: clear, undo; or "box" for Stop."""
        trigger = "stop" if button == "box" else "click"
        event = self._events[self._ids[button], trigger]
        body = self._body(event, [None] * len(event["inputs"]))
        return self.web.post("/gradio_api/run/predict", content=body, headers=_JSON)

    def leave(self) -> None:
        """Close the tab, as far as the server can see it: the page's heartbeat ends."""
        for (_, trigger), event in self._events.items():
            if trigger == "unload":
                body = self._body(event, [])
                self.web.post("/gradio_api/run/predict", content=body, headers=_JSON)

    def _join(self, event: dict[str, Any], values: list[Any]) -> None:
        body = self._body(event, values)
        self.web.post("/gradio_api/queue/join", content=body, headers=_JSON).raise_for_status()

    def _body(self, event: dict[str, Any], values: list[Any]) -> str:
        # Not httpx's own JSON, which refuses NaN; a script on the page would not.
        body = {"data": values, "fn_index": event["id"], "session_hash": self.session}
        return json.dumps(body | {"trigger_id": None, "event_data": None})


_JSON = {"Content-Type": "application/json"}


def _box(text: Any, paths: list[str]) -> dict[str, Any]:
    marked = {"meta": {"_type": "gradio.FileData"}}
    return {"text": text, "files": [{"path": path, **marked} for path in paths]}


def _shown(lines: list[str], outputs: list[str]) -> Shown:
    shown = Shown(raw="\n".join(lines))
    for line in lines:
        if not line.startswith("data: "):
            continue
        message = json.loads(line.removeprefix("data: "))
        if message["msg"] == "log":
            shown.toasts.append(html.unescape(message["log"]))
        if message["msg"] == "process_completed":
            if message["output"].get("error"):
                shown.toasts.append(html.unescape(message["output"]["error"]))
            values = dict(zip(outputs, message["output"].get("data") or (), strict=False))
            shown.note = words(values.get("note"))
            shown.box = (values.get("box") or {}).get("value")
            chat = values.get("chat")
            if isinstance(chat, list) and chat:
                parts = chat[-1]["content"]
                shown.answer = words("".join(part.get("text", "") for part in parts))
    return shown


def words(shown: object) -> str:
    """The text of a piece of HTML; nothing for what is no text."""
    text = shown if isinstance(shown, str) else ""
    return html.unescape(re.sub(r"<[^>]+>", "", text)).strip()
