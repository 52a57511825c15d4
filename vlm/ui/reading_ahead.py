"""Tell what the question in the input will cost, and have its pictures read while it is typed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import gradio as gr

from vlm.chat import Answer, AskRequest, ChatEngine, Message, Piece, Rates
from vlm.config import Settings
from vlm.errors import PictureError, VLMError
from vlm.images import open_picture, peek_size
from vlm.ui.cost_line import cost_line, trouble_line
from vlm.ui.estimate import Cost, Question, Reading, spare_bytes
from vlm.ui.options import new_tokens_range, read_system_prompt, read_visual_tokens
from vlm.ui.pace import Pace
from vlm.ui.question_box import box_content, picture_limits
from vlm.ui.room import lower_detail, turns_to_drop
from vlm.ui.sessions import Session
from vlm.ui.texts import texts_in

logger = logging.getLogger(__name__)

TOLD_EVERY_S = 0.25


class Told(NamedTuple):
    """What is told of the question in the input, named as the page's parts."""

    cost: Any
    lower_detail: Any
    drop_oldest: Any


class ReadingAhead:
    """What is done for a question before it is sent.

    `options` are always picture detail, system prompt and the longest answer allowed.
    """

    def __init__(self, engine: ChatEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._limits = picture_limits(settings)

    def read(self, session: Session, box: dict[str, Any] | None, *options: Any) -> Iterator[Told]:
        """Tell what the question costs, and have its pictures read; tell how far that is.

        Pictures that were taken out end what is being read. Bad ones are told about when the
        question is sent, not here.
        """
        if session.ahead is not None:
            session.ahead.stop()  # a question that was sent meanwhile keeps it going
        session.ahead = session.reading = None
        told = self.tell(session, box, *options)
        yield told
        try:
            answer = self._begin(session, box, options)
            if answer is None:
                return
            session.ahead = answer
            for _ in self._follow(session, answer, box, options):
                before, told = told, self.tell(session, box, *options)
                if told != before:
                    yield told
        except VLMError as error:
            logger.info("pictures were not read ahead: %s", error)
            session.reading = None
            yield self.tell(session, box, *options)

    def tell(self, session: Session, box: dict[str, Any] | None, *options: Any) -> Told:
        """Tell what the question costs as it stands; nothing once it is sent."""
        cost = self._cost(session, box, options)
        if cost is None:
            return _told()
        texts, spare = texts_in(session.language), self._spare_bytes()
        is_busy = session.conversation.is_busy
        trouble = cost.trouble(spare)
        if trouble is not None:
            return _told(
                trouble_line(cost, trouble, spare, texts),
                can_lower=lower_detail(cost, spare) is not None,
                can_drop=bool(cost.question.turns) and not is_busy,
            )
        # Beside a running answer nobody knows how long the next one will take.
        rates = Rates() if is_busy else self._engine.rates()
        return _told(cost_line(cost, rates, session.reading, texts))

    def lower(self, session: Session, box: dict[str, Any] | None, *options: Any) -> int | None:
        """Find the picture detail at which the question fits; None when none is better."""
        cost = self._cost(session, box, options)
        return None if cost is None else lower_detail(cost, self._spare_bytes())

    def drop_oldest(self, session: Session, box: dict[str, Any] | None, *options: Any) -> None:
        """Drop the oldest messages, those with pictures first, until the question fits."""
        if (cost := self._cost(session, box, options)) is not None:
            session.conversation.leave_out(turns_to_drop(cost, self._spare_bytes()))

    def _cost(
        self, session: Session, box: dict[str, Any] | None, options: tuple[Any, ...]
    ) -> Cost | None:
        """Weigh the question; None while the model is not there to be asked."""
        detail, system_prompt, new_tokens = options
        capacity = self._engine.state().capacity
        text, uploads = box_content(box)
        chat, edited = session.conversation, session.edited
        turns = [turn for turn in chat.turns if turn.end not in ("failed", "running")]
        if edited in turns:
            turns = turns[: turns.index(edited)]
        if capacity is None or not (text or uploads):
            return None
        tokens, reading = read_visual_tokens(self._settings, detail), session.reading
        is_same = edited is not None and edited.uploads == uploads
        question = Question(
            sizes=self._sizes(uploads),
            text=text,
            turns=tuple(turns),
            max_visual_tokens=tokens,
            new_tokens=self._new_tokens(new_tokens),
            system=read_system_prompt(system_prompt),
            is_cut=bool(turns) and chat.was_cut(turns[-1]),
            is_read=is_same or (reading is not None and reading.is_done),
        )
        return Cost(question, capacity)

    def _sizes(self, uploads: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
        """Read the sizes of the pictures that can be opened."""
        sizes = []
        for path in uploads[: self._settings.picture.max_pictures]:
            try:
                sizes.append(peek_size(path, self._limits))
            except PictureError:
                continue
        return tuple(sizes)

    def _new_tokens(self, value: Any) -> int:
        start = self._settings.generation.max_new_tokens
        return int(new_tokens_range(self._settings).bound(value, start))

    def _spare_bytes(self) -> int:
        return spare_bytes(self._engine.memory(), self._settings.memory.min_free_bytes)

    def _begin(
        self, session: Session, box: dict[str, Any] | None, options: tuple[Any, ...]
    ) -> Answer | None:
        """Have the pictures read; None where nothing is to be read. Raises VLMError."""
        _, uploads = box_content(box)
        chat = session.conversation
        is_too_many = len(uploads) > self._settings.picture.max_pictures
        # An earlier question that is edited has its picture read already.
        if not uploads or chat.is_busy or is_too_many or session.edited is not None:
            return None
        cost = self._cost(session, box, options)
        if cost is not None and cost.trouble(self._spare_bytes()) in ("too_long", "memory"):
            return None
        detail, system_prompt, _ = options
        pictures = tuple(open_picture(path, limits=self._limits) for path in uploads)
        text = read_system_prompt(system_prompt)
        system = (Message("system", text),) if text else ()
        messages = (*system, *chat.messages(), Message("user", "", pictures))
        tokens = read_visual_tokens(self._settings, detail)
        return self._engine.read_ahead(AskRequest(chat.id, messages, max_visual_tokens=tokens))

    def _follow(
        self, session: Session, answer: Answer, box: dict[str, Any] | None, options: tuple[Any, ...]
    ) -> Iterator[None]:
        """Note how far the reading is; yield when that is to be told. Raises VLMError."""
        pace, told_at_s = Pace(), 0.0
        for piece in answer:
            # Once the question is sent, or the pictures change, this is old news.
            if session.ahead is not answer:
                continue
            now_s = time.monotonic()
            session.reading = self._reading(piece, pace, self._vision_share(session, box, options))
            if piece.stage == "done" or now_s - told_at_s >= TOLD_EVERY_S:
                told_at_s = now_s
                yield

    def _vision_share(
        self, session: Session, box: dict[str, Any] | None, options: tuple[Any, ...]
    ) -> float:
        """The part of the reading's time that goes to the vision tower; half until measured."""
        cost, rates = self._cost(session, box, options), self._engine.rates()
        if cost is None or not rates.vision_tps or not rates.prefill_tps:
            return 0.5
        vision_s = cost.unread_visual_tokens / rates.vision_tps
        prefill_s = cost.unread_tokens / rates.prefill_tps
        return vision_s / (vision_s + prefill_s) if vision_s + prefill_s else 0.5

    def _reading(self, piece: Piece, pace: Pace, vision_share: float) -> Reading | None:
        if piece.stage == "done":
            is_read = piece.stats is not None and piece.stats.finish_reason == "stop"
            return Reading(1.0, is_done=True) if is_read else None
        if piece.stage not in ("vision", "prefill"):
            return None
        now_s, progress = time.monotonic(), piece.progress * vision_share
        if piece.stage == "prefill":
            progress = vision_share + piece.progress * (1.0 - vision_share)
        pace.note(progress, now_s)
        return Reading(progress, pace.left_s(now_s))


def _told(line: str = "", can_lower: bool = False, can_drop: bool = False) -> Told:
    return Told(line, gr.update(visible=can_lower), gr.update(visible=can_drop))
