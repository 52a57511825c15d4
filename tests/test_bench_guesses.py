"""What guessing gains: measured on one engine, with the same answer either way."""

from pathlib import Path

import pytest

from vlm.chat import AskRequest, Message, Sampling
from vlm.commands.bench_questions import BOXES_QUESTION
from vlm.commands.doctor_pictures import draw_shapes
from vlm.config import load_settings
from vlm.engine import Engine
from vlm.guesses import Guesser


def test_a_question_may_be_answered_without_guesses(
    bundled_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    guess = Guesser.guess

    def counted(self: Guesser, most: int) -> list[int]:
        asked.append(most)
        return guess(self, most)

    monkeypatch.setattr(Guesser, "guess", counted)
    settings = load_settings("default", {"model.model": "bundled", "model.precision": "fp32"})
    engine = Engine(settings)
    try:
        answers = []
        for may_guess in (False, True):
            before = len(asked)
            answers.append(answer(engine, may_guess))
            assert (len(asked) > before) == may_guess
    finally:
        engine.close()
    assert answers[0] == answers[1]
    assert len(answers[0]) > 8


def answer(engine: Engine, may_guess: bool) -> tuple[int, ...]:
    """Ask for boxes greedily and return the ids of the answer."""
    message = Message("user", BOXES_QUESTION, (draw_shapes(),))
    request = AskRequest(
        f"guessing {may_guess}", (message,), Sampling(temperature=0.0), may_guess=may_guess
    )
    for piece in engine.ask(request):
        if piece.stats is not None:
            return piece.stats.token_ids
    raise AssertionError("an answer without figures")
