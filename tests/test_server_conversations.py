"""A stateless request finds the chat it goes on with: its own visitor's, idle, worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image

from vlm.chat import Message
from vlm.images import Picture, open_picture
from vlm.server.conversations import KnownConversations

QUESTION = Message("user", "What is this?")
ANSWER = Message("assistant", "A red circle.", token_ids=(5, 6, 7))
NEXT = Message("user", "And its size?")


class Book:
    """Known conversations with a clock and a memory of what was forgotten."""

    def __init__(self, **options: object) -> None:
        self.forgotten: list[str] = []
        self.now_s = 0.0
        self.known = KnownConversations(
            self.forgotten.append,
            clock=lambda: self.now_s,
            **options,  # type: ignore[arg-type]
        )

    def ask(self, *messages: Message, visitor: str = "ann", answer: Message | None = None) -> str:
        """Go through one request; gives the conversation's id."""
        chosen, self.told = self.known.begin(visitor, messages, 512)
        self.known.end(chosen, (*messages, answer) if answer else (), 512)
        return chosen.id


def without_ids(message: Message) -> Message:
    return replace(message, token_ids=None)


@pytest.fixture
def picture() -> Picture:
    return open_picture(Image.new("RGB", (64, 64), "red"))


def test_the_next_question_goes_on_with_the_exact_ids_of_our_answer() -> None:
    book = Book()
    first = book.ask(QUESTION, answer=ANSWER)
    sent = replace(without_ids(ANSWER), text=" A red circle.\n")
    assert book.ask(QUESTION, sent, NEXT) == first
    assert [message.token_ids for message in book.told] == [None, (5, 6, 7), None]


def test_an_answer_the_client_changed_keeps_no_ids() -> None:
    book = Book()
    book.ask(QUESTION, answer=ANSWER)
    book.ask(QUESTION, Message("assistant", "A blue circle."), NEXT)
    assert all(message.token_ids is None for message in book.told)


def test_the_same_messages_again_go_on_with_it() -> None:
    book = Book()
    long = replace(ANSWER, text="long " * 1000)
    assert book.ask(QUESTION, answer=long) == book.ask(QUESTION)


def test_another_visitor_never_meets_it() -> None:
    book = Book()
    first = book.ask(QUESTION, answer=ANSWER)
    assert book.ask(QUESTION, without_ids(ANSWER), NEXT, visitor="bob") != first
    assert all(message.token_ids is None for message in book.told)


def test_two_requests_at_once_never_share_one() -> None:
    book = Book()
    one, _ = book.known.begin("ann", (QUESTION,), 512)
    two, _ = book.known.begin("ann", (QUESTION,), 512)
    assert one.id != two.id


def test_a_picture_is_worth_more_than_the_end_of_the_chat_about_it(picture: Picture) -> None:
    book = Book()
    first = book.ask(replace(QUESTION, pictures=(picture,)), answer=ANSWER)
    assert book.ask(Message("user", "Another question", (picture,))) == first


def test_a_short_system_prompt_is_not_worth_a_long_chat() -> None:
    book, system = Book(), Message("system", "Be brief.")
    first = book.ask(system, replace(QUESTION, text="word " * 100), answer=ANSWER)
    assert book.ask(system, NEXT) != first


def test_a_picture_read_in_other_detail_is_another_chat(picture: Picture) -> None:
    book = Book()
    question = replace(QUESTION, pictures=(picture,))
    first = book.ask(question, answer=ANSWER)
    other, _ = book.known.begin("ann", (question,), 1280)
    assert other.id != first


def test_old_and_too_many_chats_are_forgotten() -> None:
    book = Book(most=3, kept_s=100.0)
    ids = [book.ask(Message("user", text)) for text in ("a", "b", "c", "d")]
    assert book.forgotten == ids[:1] and len(book.known) == 3
    book.now_s = 101.0
    book.ask(QUESTION)
    assert book.forgotten == ids and len(book.known) == 1
