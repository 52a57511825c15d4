"""Streamed text is whole at every step and, joined, equals the tokenizer's own decoding."""

import random
import time

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vlm.chat_template import ChatTemplate
from vlm.detokenize import TextStream
from vlm.prompt import ChatTokenizer


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level vocabulary without merges: every character of several bytes is split."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|im_end|>", "<|image_pad|>"]
    backend.add_special_tokens([AddedToken(t, special=True) for t in special])
    backend.add_tokens([AddedToken(t, special=False) for t in ("<think>", "思考 ")])
    return ChatTokenizer(backend, ChatTemplate("", {}), (backend.token_to_id("<|im_end|>"),))


@pytest.fixture(scope="module")
def bundled(bundled_folder):
    return ChatTokenizer.from_folder(bundled_folder)


def stream(tokenizer, ids):
    text = TextStream(tokenizer)
    return [*(text.push(i) for i in ids), text.flush()]


def whole(tokenizer, ids):
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend)
    return wrapped.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "图里有三个圆形。",
        "😀👩‍👩‍👧 e\u0301",
        " leading",
        "a\n\n b\t\0",
        "ÿÃ\u00ad\u0100 ¡",
        "",
    ],
)
def test_characters_split_over_tokens_never_show_a_replacement(tokenizer, bundled, text):
    for each in (tokenizer, bundled):
        pieces = stream(each, each.encode_plain(text))
        assert "".join(pieces) == text.replace("e\u0301", "é" if each is bundled else "e\u0301")
        assert all("\ufffd" not in piece for piece in pieces)


def test_text_comes_as_soon_as_a_character_is_complete(tokenizer):
    assert stream(tokenizer, tokenizer.encode_plain("a😀b")) == ["a", "", "", "", "😀", "b", ""]


def test_a_real_replacement_character_is_text_like_any_other(tokenizer):
    assert "".join(stream(tokenizer, tokenizer.encode_plain("a\ufffdb"))) == "a\ufffdb"


def test_a_character_cut_off_at_the_end_is_flushed(tokenizer):
    ids = tokenizer.encode_plain("a😀")[:-1]
    pieces = stream(tokenizer, ids)
    assert pieces[-1] == "\ufffd" and "".join(pieces) == whole(tokenizer, ids) == "a\ufffd"


def test_control_tokens_are_dropped_also_inside_a_character(tokenizer):
    ids = tokenizer.encode_plain("图")
    ids.insert(1, tokenizer.image_token_id)
    ids.append(tokenizer.eos_token_ids[0])
    assert "".join(stream(tokenizer, ids)) == whole(tokenizer, ids) == "图"


def test_other_added_tokens_are_shown_as_written(tokenizer):
    ids = [tokenizer.backend.token_to_id(token) for token in ("<think>", "思考 ")]
    assert "".join(stream(tokenizer, ids)) == whole(tokenizer, ids) == "<think>思考 "


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer):
    ids = [*tokenizer.encode_plain("a"), 10**6, *tokenizer.encode_plain("b")]
    assert "".join(stream(tokenizer, ids)) == whole(tokenizer, ids) == "ab"


def test_any_sequence_of_tokens_joins_to_the_tokenizers_own_decoding(tokenizer, bundled):
    chance = random.Random(0)
    for each in (tokenizer, bundled):
        size = each.backend.get_vocab_size(with_added_tokens=True)
        for _ in range(300):
            ids = [chance.randrange(size) for _ in range(chance.randrange(40))]
            assert "".join(stream(each, ids)) == whole(each, ids)


def test_the_cost_of_a_token_does_not_grow_with_the_answer(tokenizer):
    ids = tokenizer.encode_plain("图😀") * 20_000
    started = time.perf_counter()
    assert len("".join(stream(tokenizer, ids))) == 40_000
    # Decoding everything again at each of 140,000 tokens would take hours.
    assert time.perf_counter() - started < 20
