"""Both languages say the same, with the same places to fill in."""

from __future__ import annotations

import re

import pytest

from vlm.ui.texts import EN, ZH, field_names, other, preferred_language

_SAME = {"top_p", "top_k"}


def _flat(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_flat, value))
    return str(value)


@pytest.mark.parametrize("name", field_names())
def test_every_text_is_there_in_both_languages(name: str) -> None:
    english, chinese = _flat(getattr(EN, name)), _flat(getattr(ZH, name))
    assert english.strip() and chinese.strip()
    assert sorted(re.findall(r"\{\w*\}", english)) == sorted(re.findall(r"\{\w*\}", chinese))
    if name not in _SAME:
        assert english != chinese


def test_chinese_has_chinese_punctuation() -> None:
    western = re.compile(r"[\u4e00-\u9fff] ?[,.;:!?()]|[,;:!?()] ?[\u4e00-\u9fff]")
    assert not [name for name in field_names() if western.search(_flat(getattr(ZH, name)))]


def test_both_name_the_same_details_and_ends() -> None:
    assert [key for key, _ in EN.details] == [key for key, _ in ZH.details]
    assert [key for key, _ in EN.ends] == [key for key, _ in ZH.ends]


@pytest.mark.parametrize(
    ("header", "language"),
    [
        (None, "en"),
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("de-DE,de;q=0.9", "en"),
        ("fr,zh-TW;q=0.5", "zh"),
    ],
)
def test_the_browser_chooses(header: str | None, language: str) -> None:
    assert preferred_language(header) == language


def test_the_switch_goes_back_and_forth() -> None:
    assert other(other("en")) == "en" and other("en") == "zh"
