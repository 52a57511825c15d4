"""The endpoints of the page for programs, with names that stay: /chat, /ask, /boxes, /read_text.

The same functions are the tools of the MCP server; their docstrings are its documentation.
"""

# No postponed annotations here: Gradio reads the return types as they stand.
import logging
import threading
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import gradio as gr
from gradio import processing_utils
from gradio.events import api
from gradio.utils import get_upload_folder
from pydantic import ValidationError

from vlm.boxes import read_boxes
from vlm.errors import PictureError, VLMError
from vlm.server.answering import Answering, Running
from vlm.server.bodies import refusal_of_form
from vlm.server.refusals import Refusal
from vlm.server.schema import ChatBody
from vlm.ui.visitors import page_visitor

logger = logging.getLogger(__name__)

_READ_TEXT = "Read all text."
_ALL_BOXES = "List objects with boxes as JSON."
_SOME_BOXES = "Locate the {what}, output the box as JSON."
# What is copied from a picture repeats itself by nature; nothing may be drawn or held against it.
_EXACTLY: dict[str, Any] = {"temperature": 0.0, "presence_penalty": 0.0}


class Endpoints:
    """The functions that programs call; each call sends its whole chat."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._running: dict[str, list[Running]] = {}
        self._lock = threading.Lock()

    def add_to(self, page: gr.Blocks) -> None:
        """Put the endpoints on a page."""
        with page:
            for function in (self.chat, self.ask, self.boxes, self.read_text):
                # The engine has its own queue; Gradio must not hold questions back as well.
                api(function, api_name=function.__name__, concurrency_limit=None)
            page.unload(self.leave)

    async def chat(
        self,
        message: str,
        request: gr.Request,
        pictures: list[str] = [],  # noqa: B006 - Gradio shows it as the default; nobody changes it
        history: list[dict[str, str]] = [],  # noqa: B006
        system: str = "",
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """Chat about pictures; the answer so far comes again and again until it is whole.

        Args:
            message: the new question.
            pictures: data URLs (data:image/jpeg;base64,...) or uploaded files; they belong to the
                first question of the chat.
            history: the chat so far, [{"role": "user" or "assistant", "content": text}, ...].
            system: instructions that stand before the chat.
            max_tokens: tokens the answer may have; the server's default when left out.
            temperature: 0 always takes the likeliest word; the server's default when left out.
        """
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages += [*_checked_history(history), {"role": "user", "content": message}]
        options = {"max_tokens": max_tokens, "temperature": temperature}
        async for text in self._answer(messages, pictures, options, request):
            yield text

    async def ask(
        self,
        picture: str,
        question: str,
        request: gr.Request,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> str:
        """Answer one question about a picture.

        Args:
            picture: a data URL (data:image/jpeg;base64,...) or an uploaded file.
            question: what to ask, in any language.
            max_tokens: tokens the answer may have; the server's default when left out.
            temperature: 0 always takes the likeliest word; the server's default when left out.
        """
        options = {"max_tokens": max_tokens, "temperature": temperature}
        return (await self._whole(picture, question, options, request)).text

    async def boxes(
        self, picture: str, request: gr.Request, what: str = ""
    ) -> list[dict[str, Any]]:
        """Find things in a picture; each as {"label": text, "box": [left, top, right, bottom]}.

        Args:
            picture: a data URL (data:image/jpeg;base64,...) or an uploaded file.
            what: the things to find, such as "red cars"; everything when left out. Places are in
                pixels of the upright picture.
        """
        question = _SOME_BOXES.format(what=what.strip()) if what.strip() else _ALL_BOXES
        running = await self._whole(picture, question, {**_EXACTLY, "max_tokens": 1024}, request)
        (image,) = running.question.messages[-1].pictures
        size = (image.width_px, image.height_px)
        return [
            {"label": box.label, "box": list(box.in_pixels(*size))}
            for box in read_boxes(running.text)
        ]

    async def read_text(self, picture: str, request: gr.Request) -> str:
        """Read the text in a picture.

        Args:
            picture: a data URL (data:image/jpeg;base64,...) or an uploaded file.
        """
        options = {**_EXACTLY, "max_tokens": 2048}
        return (await self._whole(picture, _READ_TEXT, options, request)).text

    def leave(self, request: gr.Request) -> None:
        """A client is gone: its work ends."""
        with self._lock:
            running = list(self._running.get(request.session_hash or "", ()))
        for one in running:
            one.answer.stop()

    async def _whole(
        self, picture: Any, question: str, options: dict[str, Any], request: gr.Request
    ) -> Running:
        messages = [{"role": "user", "content": question}]
        running: list[Running] = []
        pictures = [picture] if picture else []
        async for _ in self._answer(messages, pictures, options, request, running):
            pass
        return running[0]

    async def _answer(
        self,
        messages: list[Any],
        pictures: Any,
        options: dict[str, Any],
        request: gr.Request,
        kept: list[Running] | None = None,
    ) -> AsyncGenerator[str, None]:
        """Yield the text so far, also when nothing is new. Raises gr.Error."""
        kept = [] if kept is None else kept
        session = request.session_hash or ""
        try:
            body = _body(messages, options)
            question = await self._answering.read(body, _sources(pictures))
            running = self._answering.ask(question, _visitor_of(request))
            kept.append(running)
            with self._registered(session, running):
                async with aclosing(self._answering.follow(running, _nobody_is_gone)) as parts:
                    async for _ in parts:
                        yield running.text
            _ = running.end
        except (VLMError, Refusal) as error:
            raise gr.Error(str(error), print_exception=False) from error

    @contextmanager
    def _registered(self, session: str, running: Running) -> Iterator[None]:
        with self._lock:
            self._running.setdefault(session, []).append(running)
        try:
            yield
        finally:
            with self._lock:
                self._running[session].remove(running)
                if not self._running[session]:
                    del self._running[session]


def forbid_downloads() -> None:
    """Let no request make this server fetch a web address in Gradio's way.

    Gradio downloads a file whose path is an address, for any component and without a bound of
    size; vlm/server/web_pictures.py is the only way, where the operator allows it.
    """

    async def refuse(url: str, *_: Any) -> NoReturn:
        raise gr.Error("Files are not fetched from web addresses. Upload the file.")

    setattr(processing_utils, "async_ssrf_protected_get", refuse)  # noqa: B010 - a stricter one


def _is_upload(path: str) -> bool:
    """Say whether a path is a file that Gradio took in."""
    try:
        real = Path(path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        return False
    return real.is_file() and real.is_relative_to(Path(get_upload_folder()).resolve())


def _checked_history(history: Any) -> list[Any]:
    """A history may hold questions and answers only. Raises nothing: ChatBody checks the rest."""
    entries = list(history) if isinstance(history, list | tuple) else [history]
    roles = ("user", "assistant")
    if any(isinstance(entry, dict) and entry.get("role") not in roles for entry in entries):
        raise gr.Error('A message of the history has the role "user" or "assistant".')
    return entries


def _body(messages: list[Any], options: dict[str, Any]) -> ChatBody:
    """Put a chat into the API's form, which checks it. Raises Refusal."""
    try:
        return ChatBody.model_validate({"messages": messages, **options})
    except ValidationError as error:
        raise refusal_of_form(error) from None


def _sources(pictures: Any) -> list[str | Path]:
    """Tell uploaded files from addresses. Raises PictureError for any other file."""
    return [_source(picture) for picture in pictures or ()]


def _source(picture: object) -> str | Path:
    if isinstance(picture, str):
        return picture
    path = picture.get("path") if isinstance(picture, dict) else None
    if not isinstance(path, str) or not _is_upload(path):
        raise PictureError("A picture must be a data URL or a file uploaded to this server.")
    return Path(path)


def _visitor_of(request: gr.Request) -> str:
    """The bound that no cache crosses: a client's session, at the place it comes from."""
    # All who come over MCP share one session of Gradio's, so each call stands for itself.
    is_shared = not request.session_hash or request.headers.get("x-gradio-user") == "mcp"
    return page_visitor(request, uuid.uuid4().hex if is_shared else request.session_hash or "")


async def _nobody_is_gone() -> bool:
    return False  # leave() stops the work
