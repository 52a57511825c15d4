"""The committed model is small, real, and answers: it is what a first look shows."""

import pytest
from safetensors import safe_open

from vlm.bundled import BUNDLED_FOLDER
from vlm.bundled.evaluate import answer, ask_easy_vqa, ask_held_out, open_generator
from vlm.bundled.small_talk import HONEST_ANSWER
from vlm.chat import Message

WEIGHTS = BUNDLED_FOLDER / "model.safetensors"


@pytest.fixture(scope="module")
def generator():
    return open_generator(BUNDLED_FOLDER, "fp32")


def test_it_has_five_to_ten_million_weights_in_at_most_20_mb():
    with safe_open(WEIGHTS, "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}
    total = 0
    for shape in shapes:
        count = 1
        for size in shape:
            count *= size
        total += count
    assert 5e6 <= total <= 10e6
    assert kinds == {"BF16"}
    assert WEIGHTS.stat().st_size <= 20_000_000


@pytest.fixture(scope="module")
def shares(generator):
    """Share of right answers by topic, over a few held-out pictures and both languages."""
    scores = ask_held_out(generator, 24)
    right, asked = {}, {}
    for (topic, _), score in scores.items():
        right[topic] = right.get(topic, 0.0) + score.right
        asked[topic] = asked.get(topic, 0) + score.asked
    return {topic: right[topic] / asked[topic] for topic in asked}


# Below what README's table says, because few pictures are asked about here.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("topic", "least"),
    [
        ("background", 0.95),
        ("shape", 0.93),
        ("position", 0.93),
        ("colour", 0.93),
        ("yes/no", 0.9),
        ("count", 0.85),
        ("read (characters)", 0.85),
    ],
)
def test_it_answers_held_out_pictures(shares, topic, least):
    assert shares[topic] >= least


@pytest.mark.slow
def test_it_answers_pictures_that_others_drew(generator):
    assert ask_easy_vqa(generator, 12).share >= 0.95


@pytest.mark.parametrize(
    ("language", "question"),
    [("en", "What is the capital of France?"), ("zh", "法国的首都是哪里？")],
)
def test_it_says_what_it_does_not_know(generator, language, question):
    text = answer(generator, question, [Message("user", question)])
    assert text == HONEST_ANSWER[language]
