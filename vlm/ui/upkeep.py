"""The two buttons of the panel: free all caches, warm the model up; each tells its effect."""

from __future__ import annotations

import html
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from vlm.chat import ChatEngine
from vlm.config import Settings
from vlm.errors import VLMError
from vlm.ui.answer_line import format_seconds
from vlm.ui.chinese import in_language
from vlm.ui.sessions import Session
from vlm.ui.texts import texts_in
from vlm.units import format_bytes
from vlm.warm_up import warm_up

logger = logging.getLogger(__name__)


def effect_html(sentence: str) -> str:
    """The line under the buttons; a screen reader reads it out when it changes."""
    return f'<p class="effect" role="status">{html.escape(sentence)}</p>'


class Upkeep:
    """What the buttons do, for the tabs of one page."""

    def __init__(
        self, engine: ChatEngine, settings: Settings, session_of: Callable[[gr.Request], Session]
    ) -> None:
        self._engine = engine
        self._max_visual_tokens = settings.picture.max_visual_tokens
        self._session_of = session_of
        self._warming = threading.Lock()
        """Held while a warm-up runs: a second one at the same time would warm nothing."""

    def free(self, request: gr.Request) -> str:
        """Drop the caches of all chats that are not being answered; say how much it was."""
        texts = texts_in(self._session_of(request).language)
        freed = self._engine.free_caches()
        logger.info("caches were freed: %d bytes", freed)
        return effect_html(
            texts.freed.format(size=format_bytes(freed)) if freed else texts.nothing_to_free
        )

    def warm_up(self, request: gr.Request) -> Iterator[tuple[Any, str]]:
        """Ask one short question about a drawn picture; update the button and the line."""
        session = self._session_of(request)
        texts = texts_in(session.language)
        if not self._warming.acquire(blocking=False):
            yield gr.skip(), effect_html(texts.warming_up)
            return
        said = texts.broke
        try:
            yield gr.update(interactive=False), effect_html(texts.warming_up)
            stats = warm_up(self._engine, self._max_visual_tokens)
            said = texts.warmed_up.format(time=format_seconds(stats.ttft_s))
        except VLMError as error:
            said = in_language(str(error), session.language)
        except Exception:
            logger.exception("the warm-up ended with an unexpected error")
        finally:
            self._warming.release()
        yield gr.update(interactive=True), effect_html(said)
