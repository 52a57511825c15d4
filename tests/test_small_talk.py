"""What the built-in model is taught to say about what it does not know."""

from vlm.bundled.small_talk import HONEST_ANSWER, OUT_OF_SCOPE, SMALL_TALK


def test_what_it_cannot_know_has_one_honest_answer_in_the_language_of_the_question():
    assert set(HONEST_ANSWER) == {"en", "zh"}
    for language, text in OUT_OF_SCOPE:
        assert (language == "zh") == any("\u4e00" <= character <= "\u9fff" for character in text)


def test_no_question_has_two_answers():
    texts = [text for _, text, _ in SMALL_TALK] + [text for _, text in OUT_OF_SCOPE]
    assert len(texts) == len(set(texts))
