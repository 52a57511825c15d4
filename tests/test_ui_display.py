"""What people type shows as typed; what the model writes is Markdown that cannot do harm."""

from __future__ import annotations

import html
import re

import pytest

from vlm.ui.display import answer_markdown, plain_markdown

MARKUP = (
    "1. *a* _b_ **c** `d` # e\n# f\n> g\n- h\n+ i\n| j |\n~k~ \\(x\\) $$y$$ "
    "![l](http://m) www.n.o &lt;"
)


def test_typed_text_loses_all_its_markup_and_no_character() -> None:
    shown = plain_markdown(MARKUP)
    assert not re.search(r"[\\`*_\[\]<>|~$]|^\s*(#|-|\+|\d+\.)", re.sub(r"&#\d+;", "", shown), re.M)
    assert "://" not in shown and "www." not in shown
    assert html.unescape(shown) == MARKUP


def test_typed_indentation_stays_and_makes_no_code() -> None:
    assert html.unescape(plain_markdown("a\n\n    b\n\tc")).replace("\xa0", " ") == (
        "a\n\n    b\n    c"
    )
    assert not re.search(r"^( {4}|\t)", plain_markdown("    b"), re.M)


@pytest.mark.parametrize(
    "text",
    ["What is this?", "颜色是什么？", "Is it 5:30 (or so), 50% off; yes, Bob's e-mail: a@b.c!"],
)
def test_ordinary_text_is_left_alone_so_that_copies_are_clean(text: str) -> None:
    assert plain_markdown(text) == text


def test_answers_keep_their_markdown() -> None:
    text = "**bold** `a < b`\n\n| a | b |\n|---|---|\n| 1 | $5 |\n\n- [link](http://a.b)\n\\(x^2\\)"
    assert answer_markdown(text) == text


def test_tags_and_outside_pictures_in_answers_are_shown_as_written() -> None:
    text = "<img src=x onerror=alert(1)> ![a](http://b/c.png) &lt;b> a < b"
    shown = answer_markdown(text)
    assert "<" not in shown and "![" not in shown
    assert html.unescape(shown) == text


def test_code_is_left_alone_also_while_it_is_still_written() -> None:
    block = "```html\n<b>&amp;![a](b)\n```"
    assert answer_markdown(f"<i>\n{block}\n<u>") == f"&lt;i>\n{block}\n&lt;u>"
    assert answer_markdown("<i>\n```html\n<b>") == "&lt;i>\n```html\n<b>"
    assert answer_markdown("`<b>` ``a ` <c>`` <d>") == "`<b>` ``a ` <c>`` &lt;d>"


def test_a_lone_backtick_hides_nothing_after_it() -> None:
    assert answer_markdown("a ` b <script>") == "a ` b &lt;script>"
