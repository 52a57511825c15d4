"""History, shown turns and the running answer stay in step, whatever is pressed when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlm.chat import Message, Piece
from vlm.stats import AnswerClock
from vlm.ui.conversation import Conversation, Turn


class Running:
    """An answer that only counts how often it is stopped."""

    def __init__(self) -> None:
        self.stops = 0

    def __iter__(self) -> Iterator[Piece]:
        return iter(())

    def stop(self) -> None:
        self.stops += 1


def ask(text: str) -> Turn:
    return Turn(Message("user", text))


def answered(chat: Conversation, text: str, answer: str) -> Turn:
    turn = ask(text)
    assert chat.begin(turn)
    turn.answer = answer
    chat.finish(turn, "stop")
    return turn


def told(chat: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in chat.messages()]


def test_history_alternates_and_ends_with_the_open_question() -> None:
    chat = Conversation()
    answered(chat, "one", "1")
    chat.begin(ask("two"))
    assert told(chat) == [("user", "one"), ("assistant", "1"), ("user", "two")]


def test_answers_carry_their_exact_ids() -> None:
    chat = Conversation()
    turn = answered(chat, "one", "1")
    turn.stats = AnswerClock().stats("stop", token_ids=(5, 6))
    assert chat.messages()[1].token_ids == (5, 6)


def test_an_edited_question_replaces_the_earlier_one_and_what_came_after() -> None:
    chat = Conversation()
    answered(chat, "one", "1")
    second = answered(chat, "two", "2")
    answered(chat, "three", "3")
    assert chat.begin(ask("two, better"), instead_of=second)
    assert told(chat) == [("user", "one"), ("assistant", "1"), ("user", "two, better")]


def test_a_question_that_is_gone_cannot_be_replaced() -> None:
    chat = Conversation()
    answered(chat, "one", "1")
    assert chat.begin(ask("two"), instead_of=ask("never asked"))
    assert told(chat) == [("user", "one"), ("assistant", "1"), ("user", "two")]


def test_only_one_answer_at_a_time() -> None:
    chat = Conversation()
    assert chat.begin(ask("one"))
    assert not chat.begin(ask("two"))
    assert chat.begin_again() is None and chat.take_back() is None
    assert told(chat) == [("user", "one")]


def test_a_failed_turn_is_no_history_and_makes_place() -> None:
    chat = Conversation()
    answered(chat, "one", "1")
    failed = ask("two")
    chat.begin(failed)
    chat.finish(failed, "failed", "too long")
    chat.begin(ask("three"))
    assert told(chat) == [("user", "one"), ("assistant", "1"), ("user", "three")]
    assert len(chat.turns) == 2


def test_small_copies_of_pictures_go_with_the_turns_that_are_no_longer_shown(
    tmp_path: Path,
) -> None:
    def with_picture(name: str) -> Turn:
        path = tmp_path / name
        path.write_bytes(b"a picture")
        return Turn(Message("user", name), thumbnails=(path,))

    def left() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    chat = Conversation()
    answered_one, failed = with_picture("answered"), with_picture("failed")
    chat.begin(answered_one)
    chat.finish(answered_one, "stop")
    chat.begin(failed)
    chat.finish(failed, "failed", "too long")
    assert left() == ["answered", "failed"], "a failed question is shown until another one comes"
    again = chat.begin_again()
    assert again is not None and left() == ["answered", "failed"], "asked again, it still is"
    chat.finish(again, "failed", "too long")
    chat.begin(with_picture("next"))
    assert left() == ["answered", "next"]
    assert not chat.begin(with_picture("too early"))
    assert left() == ["answered", "next"]
    chat.close()
    chat.finish(chat.turns[-1], "stop")
    assert not chat.begin(with_picture("too late"))
    assert left() == ["answered", "next"]


def test_the_first_end_counts() -> None:
    chat = Conversation()
    turn = ask("one")
    chat.begin(turn)
    chat.finish(turn, "cancelled")
    chat.finish(turn, "failed", "late")
    assert (turn.end, turn.error) == ("cancelled", "")


def test_retry_forgets_the_old_answer_only() -> None:
    chat = Conversation()
    answered(chat, "one", "1")
    answered(chat, "two", "2")
    again = chat.begin_again()
    assert again is not None and again.answer == "" and again.question.text == "two"
    assert told(chat) == [("user", "one"), ("assistant", "1"), ("user", "two")]


def test_undo_returns_the_last_turn_until_none_is_left() -> None:
    chat = Conversation()
    answered(chat, "one", "1")
    answered(chat, "two", "2")
    texts = [turn.question.text for turn in iter(chat.take_back, None)]
    assert texts == ["two", "one"]
    assert told(chat) == []


def test_stop_reaches_the_answer_also_when_it_comes_too_early() -> None:
    chat, early, late = Conversation(), Running(), Running()
    chat.begin(ask("one"))
    assert chat.stop()
    chat.attach(early)
    assert early.stops == 1
    chat.finish(chat.turns[0], "cancelled")
    assert not chat.stop()
    chat.begin(ask("two"))
    chat.attach(late)
    assert late.stops == 0
    assert chat.stop() and late.stops == 1


def test_a_closed_chat_takes_no_turns() -> None:
    chat, running = Conversation(), Running()
    chat.begin(ask("one"))
    chat.attach(running)
    chat.close()
    assert running.stops == 1 and chat.is_closed
    chat.finish(chat.turns[0], "cancelled")
    assert not chat.begin(ask("two"))
