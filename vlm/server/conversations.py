"""Find which earlier chat a stateless request continues, so that its cache is used again.

A client sends all messages anew each time. What was answered is remembered as fingerprints,
never as text, under the visitor who asked: nobody else's request can match them.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from vlm.chat import Message

_PICTURE_WEIGHT = 2000
"""A picture of 500 tokens costs as much to read again as so many characters."""


@dataclass(frozen=True)
class Unit:
    """A role, picture or text of a chat, known by itself and all that came before it."""

    digest: bytes
    weight: int
    """About how many characters of text cost as much to read."""


@dataclass(eq=False)
class KnownConversation:
    """One chat that the engine may have a cache of."""

    visitor: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    units: list[Unit] = field(default_factory=list)
    exact_ids: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    """By the digest of an answer we gave: the ids it was written with."""
    is_busy: bool = True
    used_at_s: float = 0.0


class KnownConversations:
    """The chats of all visitors; safe to use from several threads."""

    def __init__(
        self,
        forget: Callable[[str], None],
        most: int = 200,
        kept_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            forget: drops a conversation's cache.
            most: chats remembered; the longest unused one makes place.
            kept_s: a chat unused for so long is forgotten.
            clock: seconds.
        """
        self._forget = forget
        self._most = most
        self._kept_s = kept_s
        self._clock = clock
        self._known: list[KnownConversation] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def begin(
        self, visitor: str, messages: Sequence[Message], max_visual_tokens: int
    ) -> tuple[KnownConversation, tuple[Message, ...]]:
        """Choose the chat a request goes on with, and hold it until end().

        Returns it with the messages, those answers we gave ourselves with their exact ids.
        """
        units = fingerprint(visitor, messages, max_visual_tokens)
        with self._lock:
            dropped = self._take_old()
            chosen = self._choose(visitor, units)
            if chosen is None:
                chosen = KnownConversation(visitor)
                self._known.append(chosen)
            chosen.is_busy = True
        for old in dropped:
            self._forget(old.id)
        told = _with_exact_ids(messages, visitor, max_visual_tokens, chosen.exact_ids)
        chosen.units = units
        live = {unit.digest for unit in units}
        chosen.exact_ids = {d: ids for d, ids in chosen.exact_ids.items() if d in live}
        return chosen, told

    def end(
        self,
        chosen: KnownConversation,
        answered: Sequence[Message] = (),
        max_visual_tokens: int = 0,
    ) -> None:
        """Let a chat be continued; `answered` is the whole chat with the answer, if it has one."""
        if answered:
            chosen.units = fingerprint(chosen.visitor, answered, max_visual_tokens)
            if answered[-1].token_ids:
                chosen.exact_ids[chosen.units[-1].digest] = answered[-1].token_ids
        with self._lock:
            chosen.is_busy = False
            chosen.used_at_s = self._clock()
            self._known = [known for known in self._known if known is not chosen] + [chosen]

    def _choose(self, visitor: str, units: Sequence[Unit]) -> KnownConversation | None:
        """Take the idle chat that shares most, unless more would be lost than is won."""
        best, best_weight = None, 0
        for known in self._known:
            if known.visitor != visitor or known.is_busy:
                continue
            shared = _shared(known.units, units)
            weight = _weight(units[:shared])
            # The very same messages go on with it too, whatever was answered to them.
            is_worth = shared == len(units) or weight >= _weight(known.units[shared:])
            if is_worth and weight > best_weight:
                best, best_weight = known, weight
        return best

    def _take_old(self) -> list[KnownConversation]:
        """Remove the chats that are too old or too many."""
        oldest_s = self._clock() - self._kept_s
        idle = [known for known in self._known if not known.is_busy]
        dropped = [known for known in idle if known.used_at_s < oldest_s]
        too_many = len(self._known) - len(dropped) - self._most + 1
        dropped += [known for known in idle if known not in dropped][: max(0, too_many)]
        self._known = [known for known in self._known if known not in dropped]
        return dropped


def fingerprint(visitor: str, messages: Sequence[Message], max_visual_tokens: int) -> list[Unit]:
    """Turn a chat into units; two chats have equal units as far as they are the same."""
    units: list[Unit] = []
    digest = hashlib.sha256(visitor.encode()).digest()

    def add(kind: str, content: str, weight: int) -> None:
        nonlocal digest
        packed = f"{kind}\0{content}".encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(digest + packed).digest()
        units.append(Unit(digest, weight))

    for message in messages:
        add("role", message.role, 0)
        for picture in message.pictures:
            add("picture", f"{picture.content_hash} {max_visual_tokens}", _PICTURE_WEIGHT)
        # The prompt does not hold the white space around a text either.
        add("text", message.text.strip(), len(message.text) + 1)
    return units


def _with_exact_ids(
    messages: Sequence[Message],
    visitor: str,
    max_visual_tokens: int,
    exact_ids: dict[bytes, tuple[int, ...]],
) -> tuple[Message, ...]:
    told = []
    for count, message in enumerate(messages, 1):
        if message.role == "assistant" and exact_ids:
            last = fingerprint(visitor, messages[:count], max_visual_tokens)[-1]
            message = replace(message, token_ids=exact_ids.get(last.digest))
        told.append(message)
    return tuple(told)


def _shared(known: Sequence[Unit], asked: Sequence[Unit]) -> int:
    """Count the leading units that are equal."""
    count = 0
    for ours, theirs in zip(known, asked, strict=False):
        if ours.digest != theirs.digest:
            break
        count += 1
    return count


def _weight(units: Sequence[Unit]) -> int:
    return sum(unit.weight for unit in units)
