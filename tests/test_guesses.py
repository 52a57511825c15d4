"""Guesses come from earlier in the chat, and stop while they do not pay."""

from vlm.guesses import FIRST_PAUSE_TOKENS, Guesser


def test_what_followed_the_last_tokens_before_is_guessed():
    guesser = Guesser([1, 2, 3, 4, 5, 6, 7, 1, 2, 3])
    assert guesser.guess(3) == [4, 5, 6]
    assert guesser.guess(1) == [4]


def test_the_latest_of_several_places_counts():
    guesser = Guesser([1, 2, 3, 4, 1, 2, 3, 5, 9, 1, 2, 3])
    assert guesser.guess(2) == [5, 9]


def test_tokens_of_the_answer_count_like_those_of_the_prompt():
    guesser = Guesser([1, 2, 3, 4])
    assert guesser.guess(3) == []
    for token_id in (8, 1, 2, 3):
        guesser.push(token_id)
    assert guesser.guess(3) == [4, 8, 1]


def test_a_short_prompt_gives_no_guess():
    assert Guesser([1, 2]).guess(3) == []
    assert Guesser([]).guess(3) == []


def test_a_place_near_the_end_gives_fewer():
    assert Guesser([5, 5, 5, 5]).guess(3) == [5]


def test_guesses_that_are_never_right_stop_for_a_while_and_come_back():
    guesser = Guesser([1, 2, 3] * 4)
    tries = 0
    while guesser.guess(3):
        guesser.learn(0)
        tries += 1
        assert tries < 10
    pushed = 0
    while not guesser.guess(3):
        guesser.push([1, 2, 3][pushed % 3])
        pushed += 1
    assert pushed == FIRST_PAUSE_TOKENS
    while guesser.guess(3):
        guesser.learn(0)
    again = 0
    while not guesser.guess(3):
        guesser.push([1, 2, 3][(pushed + again) % 3])
        again += 1
    assert again == 2 * FIRST_PAUSE_TOKENS


def test_guesses_that_are_right_go_on():
    guesser = Guesser([1, 2, 3] * 4)
    for _ in range(100):
        assert guesser.guess(3)
        guesser.learn(2)
