"""Which visitor has which chat: kept for one page, by the session of the browser tab.

Nothing here is global: the store belongs to the page that made it.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from vlm.chat import Answer
from vlm.ui.conversation import Conversation, Turn
from vlm.ui.estimate import Reading
from vlm.ui.texts import Language
from vlm.units import GIB

MOST_SESSIONS = 200
"""Tabs that are remembered; the longest unused one makes place."""

MOST_PICTURE_BYTES = 2 * GIB
"""Of the decoded pictures of all tabs, 6 MB for a large one; beyond that tabs make place too."""

KEPT_AFTER_LEAVING_S = 600.0
"""A phone that sleeps or a shaky network looks like a closed tab; its chat waits so long."""


@dataclass(eq=False)
class Session:
    """What one browser tab has: its chat and its language."""

    conversation: Conversation = field(default_factory=Conversation)
    language: Language = "en"
    shown_header: str = ""
    """What the header shows now, so that only changes are sent."""
    offers_built_in: bool = False
    """Whether the samples shown are those for the built-in model."""
    last_sent: tuple[str, tuple[str, ...]] = ("", ())
    last_sent_at_s: float = 0.0
    edited: Turn | None = None
    """The earlier question that the input holds to be edited."""
    draft: tuple[str, tuple[str, ...]] = ("", ())
    """What the input held before: text and paths of files."""
    ahead: Answer | None = None
    """The reading of the pictures in the input, before they are sent."""
    reading: Reading | None = None
    """How far that has come; of pictures that may have changed since."""
    left_at_s: float | None = None
    """When the tab was closed, or lost its connection."""
    visitor: str = ""
    """The name that the visitor logged in with, if any."""
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    """Known to this tab only: who shows it after a reload gets the tab's chat back."""

    def is_repeat(self, text: str, uploads: tuple[str, ...], within_s: float) -> bool:
        """Say whether the same was sent a moment ago (a double click); remember this one."""
        now_s = time.monotonic()
        is_same = self.last_sent == (text, uploads)
        if is_same and now_s - self.last_sent_at_s < within_s:
            return True
        self.last_sent, self.last_sent_at_s = (text, uploads), now_s
        return False

    def expect_repeat(self) -> None:
        """A question went back into the input: sending it again is meant."""
        self.last_sent = ("", ())


class Sessions:
    """The tabs of one page; safe to use from several threads."""

    def __init__(
        self,
        on_leave: Callable[[Conversation], None],
        on_drop: Callable[[Conversation], None],
        kept_after_leaving_s: float = KEPT_AFTER_LEAVING_S,
    ) -> None:
        """Make an empty store.

        Args:
            on_leave: called with the chat of a tab that was closed, its work stopped.
            on_drop: called with each chat that nobody can come back to.
            kept_after_leaving_s: how long a closed tab's chat waits for it.
        """
        self._on_leave = on_leave
        self._on_drop = on_drop
        self._kept_after_leaving_s = kept_after_leaving_s
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, session_hash: str | None) -> Session:
        """The tab's session; a new one when the tab is not known."""
        with self._lock:
            session = self._sessions.setdefault(session_hash or "", Session())
            session.left_at_s = None
            self._sessions.move_to_end(session_hash or "")
            dropped = self._take_expired()
        for old in dropped:
            self._drop(old.conversation)
        return session

    def start_anew(self, session: Session, chat: Conversation | None = None) -> Conversation:
        """Give the tab another chat, an empty one if none is given; drop the one it had."""
        with self._lock:
            old, session.conversation = session.conversation, chat or Conversation()
        self._drop(old)
        return session.conversation

    def take_over(self, session: Session, token: str, is_gone: bool) -> bool:
        """Give the tab the chat it had before it was loaded again; False when there is none.

        The tab of before must have left; is_gone: the browser says so, it is the same tab.
        """
        with self._lock:
            old = next((one for one in self._sessions.values() if _is_before(one, token)), None)
            if old in (None, session) or not (is_gone or old.left_at_s is not None):
                return False
            if old.visitor != session.visitor or not old.conversation.turns:
                return False
            mine, session.conversation = session.conversation, old.conversation
            old.conversation = Conversation()
        self._drop(mine)
        session.conversation.stop()
        return True

    def leave(self, session_hash: str | None) -> None:
        """A tab was closed or lost its connection: its work stops, its chat waits a while."""
        with self._lock:
            session = self._sessions.get(session_hash or "")
            if session is not None:
                session.left_at_s = time.monotonic()
            dropped = self._take_expired()
        if session is not None:
            session.conversation.stop()
            self._on_leave(session.conversation)
        for old in dropped:
            self._drop(old.conversation)

    def __len__(self) -> int:
        return len(self._sessions)

    def _take_expired(self) -> list[Session]:
        """Remove the tabs that left long ago, and the longest unused ones beyond the limit."""
        oldest_s = time.monotonic() - self._kept_after_leaving_s
        expired = [
            key
            for key, session in self._sessions.items()
            if session.left_at_s is not None and session.left_at_s < oldest_s
        ]
        too_many = list(self._sessions)[: max(0, len(self._sessions) - MOST_SESSIONS)]
        dropped = [self._sessions.pop(key) for key in dict.fromkeys(expired + too_many)]
        kept_bytes = sum(one.conversation.picture_bytes for one in self._sessions.values())
        while kept_bytes > MOST_PICTURE_BYTES and len(self._sessions) > 1:
            _, oldest = self._sessions.popitem(last=False)
            kept_bytes -= oldest.conversation.picture_bytes
            dropped.append(oldest)
        return dropped

    def _drop(self, conversation: Conversation) -> None:
        conversation.close()
        self._on_drop(conversation)


def _is_before(session: Session, token: str) -> bool:
    return hmac.compare_digest(session.token.encode(), token.encode(errors="replace"))
