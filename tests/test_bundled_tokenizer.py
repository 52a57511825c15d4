"""The built-in model's tokenizer and configuration files."""

import json

from tokenizers import Tokenizer

from vlm.bundled.tokenizer import SPECIAL_TOKENS, VOCABULARY, build_tokenizer, write_folder


def test_a_printed_word_stays_single_characters(bundled_folder):
    tokenizer = Tokenizer.from_file(str(bundled_folder / "tokenizer.json"))
    assert tokenizer.encode("JYROVA").tokens == list("JYROVA")
    assert tokenizer.encode("90417").tokens == list("90417")


def test_common_words_are_one_token_in_both_languages(bundled_folder):
    tokenizer = Tokenizer.from_file(str(bundled_folder / "tokenizer.json"))
    for text in ("Red", " circle", "红色", "圆形", "左上角"):
        assert len(tokenizer.encode(text).ids) == 1, text


def test_any_text_comes_back_unchanged(bundled_folder):
    tokenizer = Tokenizer.from_file(str(bundled_folder / "tokenizer.json"))
    for text in ("naïve café 🙂", "日本語\n\ttabs", "x" * 300):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_committed_files_are_what_the_code_writes(bundled_folder, tmp_path):
    write_folder(tmp_path, seed=1)
    for path in tmp_path.iterdir():
        if path.name == "tokenizer.json":  # its merges are kept when questions are reworded
            continue
        wanted = (bundled_folder / path.name).read_text(encoding="utf-8")
        assert json.loads(path.read_text(encoding="utf-8")) == json.loads(wanted), path.name


def test_special_tokens_come_last():
    tokenizer = build_tokenizer(seed=2)
    ids = [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS]
    assert ids == list(range(VOCABULARY - len(SPECIAL_TOKENS), VOCABULARY))
