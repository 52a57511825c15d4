"""Turn chat text into what the chat component may show: Markdown without surprises.

What is shown is derived from the history and never read back into it.
"""

from __future__ import annotations

import re

# Fenced blocks and code spans, which Markdown shows as written. An open fence (an answer
# that is still being written) reaches to the end.
_CODE = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*(?:\n[\s\S]*?(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)|\Z)"
    r"|(?P<ticks>`+)(?!`)[\s\S]*?(?<!`)(?P=ticks)(?!`)",
    re.MULTILINE,
)
_ENTITY = re.compile(r"&(?=#?\w+;)")
_MARKUP = re.compile(r"[\\`*_\[\]<>|~$&#]|:(?=//)|(?<=www)\.")
_LINE_START = re.compile(r"^( *)([-+=]|\d+[.)])", re.MULTILINE)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)


def answer_markdown(text: str) -> str:
    """Make a model's answer safe: its Markdown works, its tags are shown as written.

    Neither HTML nor an outside picture can come of it; code is left alone.
    """
    shown, end = [], 0
    for code in _CODE.finditer(text):
        shown += [_disarm(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*shown, _disarm(text[end:])])


def _disarm(text: str) -> str:
    text = _ENTITY.sub("&amp;", text).replace("<", "&lt;")
    return text.replace("![", "&#33;[")


def plain_markdown(text: str) -> str:
    """Show a person's text exactly as typed: no Markdown, LaTeX, HTML or link in it."""
    text = _MARKUP.sub(_as_entity, text)
    text = _LINE_START.sub(lambda m: m[1] + m[2][:-1] + f"&#{ord(m[2][-1])};", text)
    return _INDENT.sub(lambda m: "&nbsp;" * len(m[0].expandtabs(4)), text)


def _as_entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"
