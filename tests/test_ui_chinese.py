"""Everything the engine may say on the page has a Chinese form with the same values in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY

from vlm import errors
from vlm.ui.chinese import FORMS, in_language

VLM = REPOSITORY / "vlm"
# Only the terminal or another program reads what these say.
TERMINAL_ONLY = {"config.py", "choose_engine.py", "address.py"}
TERMINAL_ONLY |= {"commands", "bundled", "server", "bench"}
ERRORS = {
    name
    for name, thing in vars(errors).items()
    if isinstance(thing, type) and issubclass(thing, errors.VLMError)
}
CHINESE = re.compile(r"[\u4e00-\u9fff]")
WESTERN = re.compile(r"[\u4e00-\u9fff]( ?[,;:!?()]|\.)|[,;:!?()] ?[\u4e00-\u9fff]")
"""Western punctuation beside a Chinese character."""
ENGLISH = re.compile(r"\b[a-z]{2,}[ ,]+[a-z]{2,}[ ,]+[a-z]{2,}\b")


def speaking_files() -> list[Path]:
    """Files whose sentences may reach the page: the engine's, and what stands in for it."""
    own = [
        path
        for path in sorted(VLM.rglob("*.py"))
        if TERMINAL_ONLY.isdisjoint({path.relative_to(VLM).parts[0], path.name})
        and path.relative_to(VLM).parts[0] != "ui"
    ]
    return [*own, VLM / "ui" / "late_engine.py"]


def rendered(node: ast.AST) -> str | None:
    """The text of a string or f-string, a 7 standing for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(rendered(part) or "7" for part in node.values)
    return None


def is_silent(node: ast.AST) -> bool:
    """Whether nobody but a developer reads the strings below this node."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return isinstance(node.exc.func, ast.Name) and node.exc.func.id not in ERRORS | {
            "unreachable"
        }
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Name) and node.func.value.id in ("logger", "re")
    return False


def strings(node: ast.AST) -> Iterator[str]:
    if is_silent(node):
        return
    text = rendered(node)
    if text is not None:
        yield text
        return
    for child in ast.iter_child_nodes(node):
        yield from strings(child)


def is_sentence(text: str) -> bool:
    return text.endswith((".", "!", "?")) and len(text.split()) > 2


def sentences() -> list[tuple[str, str]]:
    found = []
    for path in speaking_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [(path.name, text) for text in strings(tree) if is_sentence(text)]
    return found


def test_sentences_are_found_in_the_source() -> None:
    assert len(sentences()) > 80
    assert ("images.py", "This picture file is no longer there. Add it again.") in sentences()


def test_each_sentence_of_the_engine_has_a_chinese_form() -> None:
    missing = []
    for file, text in sentences():
        chinese = in_language(text.strip(), "zh")
        if not CHINESE.search(chinese) or ENGLISH.search(chinese):
            missing.append(f"{file}: {text}")
    assert not missing, "add these to vlm/ui/chinese.py"


def test_each_form_has_the_same_places_and_chinese_punctuation() -> None:
    for english, chinese in FORMS.items():
        places = set(re.findall(r"\{\w+\}", english))
        # What says "about the picture" is part of the Chinese sentence.
        assert set(re.findall(r"\{\w+\}", chinese)) == places - {"{about}"}
        assert not WESTERN.search(chinese), chinese


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (
            "This image is 9 000 x 7 000 px; the limit is 40 megapixels. Resize it and try again.",
            "图片为 9 000 x 7 000 像素，上限是 40 百万像素。请缩小后再试。",
        ),
        (
            "This message has no text. Type a question about the picture and try again.",
            "消息没有文字。请输入关于图片的问题后再试。",
        ),
        (
            "16-bit weights with fp32 arithmetic (FBGEMM) are fastest on this CPU: a token 2.4x "
            "and a prompt 1.1x as fast as fp32, measured here.",
            "16 位权重加 fp32 运算（FBGEMM）在这个处理器上最快："
            "本机实测，逐词元速度是 fp32 的 2.4 倍，读入速度是 1.1 倍。",
        ),
        (
            "/m is no whole model: a.json is missing; b is cut off or damaged (x). "
            "Put those files there, or download the model again.",
            "/m 中的模型不完整：缺少 a.json；b 不完整或已损坏（x）。"
            "请补齐这些文件，或重新下载模型。",
        ),
        ("Nobody foresaw this.", "Nobody foresaw this."),
    ],
)
def test_values_come_over_and_the_unknown_stays_english(english: str, chinese: str) -> None:
    assert in_language(english, "zh") == chinese
    assert in_language(english, "en") == english


def test_the_banner_of_the_built_in_model_is_wholly_chinese() -> None:
    notice = (
        "This is the small built-in model: it knows shapes, colours and short words only, "
        "not your photos. The real model, Qwen3-VL-2B-Instruct, is not used: "
        "Qwen/Qwen3-VL-2B-Instruct was not fetched: offline mode is on (HF_HUB_OFFLINE). "
        "If you have it on disk, give its folder with --model FOLDER."
    )
    chinese = in_language(notice, "zh")
    assert "未使用真正的模型 Qwen3-VL-2B-Instruct：没有下载 Qwen/Qwen3-VL-2B-Instruct：" in chinese
    assert chinese.endswith("请用 --model 指定它的文件夹。") and not ENGLISH.search(chinese)
