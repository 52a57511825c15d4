"""Asks about a scene and gives the true answer, in English and Chinese.

Each question carries its topic, so that an evaluation can count them apart.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from vlm.bundled.scenes import COLOURS, POSITIONS, SHAPES, Scene, Thing
from vlm.bundled.small_talk import Language

COLOURS_ZH = dict(
    zip(COLOURS, "红色 橙色 黄色 绿色 青色 蓝色 紫色 粉色 棕色 灰色 黑色 白色".split(), strict=True)
)
SHAPES_ZH = dict(zip(SHAPES, "圆形 正方形 长方形 三角形 五角星 十字 心形".split(), strict=True))
POSITIONS_ZH = dict(
    zip(POSITIONS, "左上角 上方 右上角 左边 中间 右边 左下角 下方 右下角".split(), strict=True)
)
TOPICS = (
    "colour",
    "shape",
    "count",
    "position",
    "yes/no",
    "background",
    "read",
    "describe",
    "boxes",
)


@dataclass(frozen=True)
class Question:
    """A question about a picture, and its only right answer."""

    topic: str
    language: Language
    text: str
    answer: str
    about: tuple[tuple[int, Thing], ...] = ()
    """From which character of the answer on it speaks of which thing, where it does so."""


def ask(rng: random.Random, scene: Scene, topic: str, language: Language) -> Question | None:
    """Make a question of this topic, or None where the scene gives none."""
    made = _ASKERS[topic](rng, scene, language)
    if made is None:
        return None
    text, answer, *things = made
    about = _places(str(answer), [t for t in things if isinstance(t, Thing)], language)
    return Question(topic, language, str(text), str(answer), about)


def _told(thing: Thing, language: Language) -> str:
    """Write how a description begins to speak of a thing."""
    if thing.kind == "text":
        return f"{COLOURS_ZH[thing.colour]}的" if language == "zh" else f"the {thing.colour} "
    if language == "zh":
        return f"{POSITIONS_ZH[thing.position]}有{name(thing, language)}"
    return name(thing, language)


def _places(answer: str, things: list[Thing], language: Language) -> tuple[tuple[int, Thing], ...]:
    """Find where an answer begins to speak of each of several things, told in their order."""
    if len(things) == 1:
        return ((0, things[0]),)
    start = 0
    places: list[tuple[int, Thing]] = []
    for thing in things:
        mark = "{" if answer.startswith("[") else _told(thing, language)
        start = answer.index(mark, start)
        places.append((start, thing))
        start += len(mark)
    return tuple(places)


def name(thing: Thing, language: Language) -> str:
    """Name a shape with its colour: "red circle" or "红色的圆形"."""
    if language == "zh":
        return f"{COLOURS_ZH[thing.colour]}的{SHAPES_ZH[thing.kind]}"
    return f"{thing.colour} {thing.kind}"


def naming_words(thing: Thing, language: Language) -> tuple[str, ...]:
    """Return the words that may say in a question which thing is meant."""
    if thing.kind == "text":
        return ("文字", "字") if language == "zh" else ("text", "word")
    if language == "zh":
        return SHAPES_ZH[thing.kind], COLOURS_ZH[thing.colour], POSITIONS_ZH[thing.position]
    return thing.kind, thing.colour, thing.position


def _article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _only(scene: Scene, attribute: str) -> list[Thing]:
    """Return the shapes whose kind, colour or name no other shape of the scene has."""
    values = [_attribute(thing, attribute) for thing in scene.shapes]
    return [
        thing for thing, value in zip(scene.shapes, values, strict=True) if values.count(value) == 1
    ]


def _attribute(thing: Thing, attribute: str) -> str:
    return name(thing, "en") if attribute == "name" else str(getattr(thing, attribute))


Made = tuple[str | Thing, ...] | None
"""A question, its answer, and the things the answer speaks of, in its order."""
MOST_BOXES = 3
"""More boxes in one answer would make the training chats too long."""


def _colour(rng: random.Random, scene: Scene, language: Language) -> Made:
    forms: tuple[str, ...]
    things = _only(scene, "kind")
    if scene.text and (not things or rng.random() < 0.3):
        if language == "zh":
            text = rng.choice(("文字是什么颜色的？", "字是什么颜色？"))
            return text, COLOURS_ZH[scene.text.colour], scene.text
        forms = ("What colour is the text?", "What color is the text?", "What colour is the word?")
        return rng.choice(forms), scene.text.colour.capitalize(), scene.text
    if not things:
        return None
    thing = rng.choice(things)
    if language == "zh":
        shape = SHAPES_ZH[thing.kind]
        forms = (f"{shape}是什么颜色的？", f"{shape}是什么颜色？", f"图中的{shape}是什么颜色？")
        return rng.choice(forms), COLOURS_ZH[thing.colour], thing
    forms = (
        f"What colour is the {thing.kind}?",
        f"What color is the {thing.kind}?",
        f"What is the colour of the {thing.kind}?",
        f"Which color does the {thing.kind} have?",
        f"Tell me the color of the {thing.kind}.",
    )
    return rng.choice(forms), thing.colour.capitalize(), thing


def _shape(rng: random.Random, scene: Scene, language: Language) -> Made:
    forms: tuple[str, ...]
    by_colour = _only(scene, "colour")
    if by_colour and rng.random() < 0.6:
        thing = rng.choice(by_colour)
        if language == "zh":
            colour = COLOURS_ZH[thing.colour]
            forms = (f"{colour}的是什么形状？", f"{colour}的图形是什么形状？")
            return rng.choice(forms), SHAPES_ZH[thing.kind], thing
        forms = (
            f"What shape is {thing.colour}?",
            f"What is the {thing.colour} shape?",
            f"Which shape is the {thing.colour} one?",
        )
        return rng.choice(forms), thing.kind.capitalize(), thing
    by_position = _only(scene, "position")
    if not by_position:
        return None
    thing = rng.choice(by_position)
    if language == "zh":
        place = POSITIONS_ZH[thing.position]
        text = rng.choice((f"{place}是什么形状？", f"{place}有什么形状？"))
        return text, SHAPES_ZH[thing.kind], thing
    forms = (f"What shape is at the {thing.position}?", f"Which shape is at the {thing.position}?")
    return rng.choice(forms), thing.kind.capitalize(), thing


def _count(rng: random.Random, scene: Scene, language: Language) -> Made:
    pick = rng.random()
    if pick < 0.5 or not scene.shapes:
        number = len(scene.shapes)
        if language == "zh":
            return rng.choice(("图中有几个图形？", "有多少个图形？", "一共有几个图形？")), str(
                number
            )
        forms = ("How many shapes are there?", "How many shapes are in the picture?",
                 "Count the shapes.")  # fmt: skip
        return rng.choice(forms), str(number)
    attribute = "kind" if pick < 0.75 else "colour"
    present = [_attribute(thing, attribute) for thing in scene.shapes]
    value = (
        rng.choice(present)
        if rng.random() < 0.7
        else rng.choice(SHAPES if pick < 0.75 else list(COLOURS))
    )
    number = present.count(value)
    if language == "zh":
        word = SHAPES_ZH[value] if attribute == "kind" else f"{COLOURS_ZH[value]}的图形"
        return rng.choice((f"有几个{word}？", f"图中有几个{word}？")), str(number)
    plural = {"cross": "crosses"}.get(value, value + "s")
    noun = plural if attribute == "kind" else f"{value} shapes"
    return rng.choice((f"How many {noun} are there?", f"How many {noun} do you see?")), str(number)


def _position(rng: random.Random, scene: Scene, language: Language) -> Made:
    forms: tuple[str, ...]
    attribute = rng.choice(("kind", "name"))
    things = _only(scene, attribute)
    if not things:
        return None
    thing = rng.choice(things)
    if language == "zh":
        noun = SHAPES_ZH[thing.kind] if attribute == "kind" else name(thing, "zh")
        text = rng.choice((f"{noun}在哪里？", f"{noun}在什么位置？"))
        return text, POSITIONS_ZH[thing.position], thing
    noun = thing.kind if attribute == "kind" else name(thing, "en")
    forms = (
        f"Where is the {noun}?",
        f"Where is the {noun} in the picture?",
        f"In which part of the picture is the {noun}?",
    )
    return rng.choice(forms), thing.position.capitalize(), thing


def _yes_no(rng: random.Random, scene: Scene, language: Language) -> Made:
    is_true = rng.random() < 0.5
    pick = rng.random()
    if pick < 0.12:
        has_text = scene.text is not None
        if language == "zh":
            return "图中有文字吗？", "有" if has_text else "没有"
        forms = ("Is there any text?", "Is there text in the picture?")
        return rng.choice(forms), _yes(has_text, language)
    if pick < 0.35 and _only(scene, "kind"):
        thing = rng.choice(_only(scene, "kind"))
        colour = thing.colour if is_true else _other(rng, list(COLOURS), {thing.colour})
        if language == "zh":
            return f"{SHAPES_ZH[thing.kind]}是{COLOURS_ZH[colour]}的吗？", _yes(is_true, language)
        return f"Is the {thing.kind} {colour}?", _yes(is_true, language)
    attribute = rng.choice(("kind", "colour", "name"))
    present = {_attribute(thing, attribute) for thing in scene.shapes}
    if attribute == "name":
        everything = [f"{colour} {kind}" for colour in COLOURS for kind in SHAPES]
        near = [n for n in everything if any(set(n.split()) & set(p.split()) for p in present)]
        everything = near if near and rng.random() < 0.6 else everything
    else:
        everything = list(SHAPES) if attribute == "kind" else list(COLOURS)
    is_true = is_true and bool(present)
    value = rng.choice(sorted(present)) if is_true else _other(rng, everything, present)
    if language == "zh":
        question = f"{rng.choice(('有', '图中有'))}{_noun_zh(attribute, value)}吗？"
        return question, "有" if is_true else "没有"
    noun = _article(value if attribute != "colour" else f"{value} shape")
    yes_forms = (f"Is there {noun}?", f"Is there {noun} in the picture?", f"Do you see {noun}?")
    return rng.choice(yes_forms), _yes(is_true, language)


def _noun_zh(attribute: str, value: str) -> str:
    if attribute == "name":
        colour, kind = value.split()
        return f"{COLOURS_ZH[colour]}的{SHAPES_ZH[kind]}"
    return SHAPES_ZH[value] if attribute == "kind" else f"{COLOURS_ZH[value]}的图形"


def _other(rng: random.Random, everything: list[str], present: set[str]) -> str:
    return rng.choice([value for value in everything if value not in present])


def _yes(is_true: bool, language: Language) -> str:
    return ("Yes" if is_true else "No") if language == "en" else ("是" if is_true else "不是")


def _background(rng: random.Random, scene: Scene, language: Language) -> Made:
    if language == "zh":
        forms = ("背景是什么颜色的？", "背景是什么颜色？", "图片的背景是什么颜色？")
        return rng.choice(forms), COLOURS_ZH[scene.background]
    forms = ("What colour is the background?", "What color is the background?",
             "What is the background colour?")  # fmt: skip
    return rng.choice(forms), scene.background.capitalize()


def _read(rng: random.Random, scene: Scene, language: Language) -> Made:
    if scene.text is None:
        if rng.random() < 0.9:
            return None
        return (
            ("图中写了什么？", "没有文字") if language == "zh" else ("What does it say?", "No text")
        )
    word = scene.text.text
    if language == "zh":
        forms = ["图中写了什么？", "读出文字。", "请读出图中的文字。", "图中的文字是什么？"]
        forms += ["图中的数字是多少？"] if word.isdigit() else ["图中的单词是什么？"]
        return rng.choice(forms), word, scene.text
    forms = ["What does it say?", "Read the text.", "What is written here?", "Read all text."]
    forms += ["What does the text say?", "What text is in the picture?", "Read it."]
    forms += (
        ["What number is shown?", "What is the number?"]
        if word.isdigit()
        else ["What word is written?", "What is the word?"]
    )
    return rng.choice(forms), word, scene.text


def _describe(rng: random.Random, scene: Scene, language: Language) -> Made:
    things = (*scene.shapes, scene.text) if scene.text else scene.shapes
    if language == "zh":
        parts = [f"{POSITIONS_ZH[thing.position]}有{name(thing, 'zh')}" for thing in scene.shapes]
        if scene.text:
            noun = "数字" if scene.text.text.isdigit() else "单词"
            parts.append(f"{COLOURS_ZH[scene.text.colour]}的{noun}{scene.text.text}")
        question = rng.choice(("描述这张图片。", "请描述这张图。", "图中有什么？"))
        answer = f"{COLOURS_ZH[scene.background]}背景，" + "，".join(parts) + "。"
        return question, answer, *things
    parts = [f"{_article(name(thing, 'en'))} at the {thing.position}" for thing in scene.shapes]
    if scene.text:
        noun = "number" if scene.text.text.isdigit() else "word"
        parts.append(f"the {scene.text.colour} {noun} {scene.text.text}")
    listed = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    question = rng.choice(
        (
            "Describe the picture.",
            "Describe this image.",
            "What do you see?",
            "What is in the picture?",
            "Describe this picture in one sentence.",
            "What is shown in this image?",
        )
    )
    answer = f"{_article(scene.background)} background with {listed}."
    return question, answer[:1].upper() + answer[1:], *things


def _boxes(rng: random.Random, scene: Scene, language: Language) -> Made:
    things = list(scene.shapes)
    names = _only(scene, "name")
    if not things or (len(things) > MOST_BOXES and not names):
        return None
    question = (
        rng.choice(("标出所有图形的边界框。", "用JSON给出所有图形的边界框。"))
        if language == "zh"
        else rng.choice(
            (
                "Locate all shapes, output the boxes as JSON.",
                "Find every shape with boxes.",
                "List objects with boxes as JSON.",
            )
        )  # fmt: skip
    )
    if names and (len(things) > MOST_BOXES or rng.random() < 0.6):
        things = [rng.choice(names)]
        noun = name(things[0], language)
        question = (
            rng.choice((f"标出{noun}的边界框。", f"{noun}的边界框在哪里？"))
            if language == "zh"
            else rng.choice(
                (f"Locate the {noun}, output the box as JSON.", f"Give the box of the {noun}.")
            )
        )
    return question, boxes_json(things, language), *things


def boxes_json(things: list[Thing], language: Language) -> str:
    """Write boxes in Qwen3-VL's form, 0-1000, rounded to tens: finer is below one pixel here."""
    listed = [
        {"bbox_2d": [round(edge * 100) * 10 for edge in thing.box], "label": name(thing, language)}
        for thing in things
    ]
    return json.dumps(listed, ensure_ascii=False)


_ASKERS: dict[str, Callable[[random.Random, Scene, Language], Made]] = {
    "colour": _colour,
    "shape": _shape,
    "count": _count,
    "position": _position,
    "yes/no": _yes_no,
    "background": _background,
    "read": _read,
    "describe": _describe,
    "boxes": _boxes,
}

FOLLOW_UPS: dict[Language, tuple[tuple[str, str], ...]] = {
    "en": (
        ("colour", "What colour is it?"),
        ("position", "Where is it?"),
        ("shape", "What shape is it?"),
        ("boxes", "Give its box."),
    ),
    "zh": (
        ("colour", "它是什么颜色的？"),
        ("position", "它在哪里？"),
        ("shape", "它是什么形状？"),
        ("boxes", "标出它的边界框。"),
    ),
}


def follow_ups(rng: random.Random, scene: Scene, language: Language) -> list[Question]:
    """Make a chat about one shape: a question that names it, then two about "it"."""
    things = [thing for thing in _only(scene, "position") if thing in _only(scene, "name")]
    if not things:
        return []
    thing = rng.choice(things)
    place = POSITIONS_ZH[thing.position] if language == "zh" else thing.position
    first = f"{place}有什么？" if language == "zh" else f"What is at the {place}?"
    answer = name(thing, "zh") if language == "zh" else _article(name(thing, "en")).capitalize()
    about = ((0, thing),)
    chat = [Question("shape", language, first, answer, about)]
    answers = {
        "colour": COLOURS_ZH[thing.colour] if language == "zh" else thing.colour.capitalize(),
        "position": place if language == "zh" else place.capitalize(),
        "shape": SHAPES_ZH[thing.kind] if language == "zh" else thing.kind.capitalize(),
        "boxes": boxes_json([thing], language),
    }
    for topic, text in rng.sample(FOLLOW_UPS[language], 2):
        chat.append(Question(topic, language, text, answers[topic], about))
    return chat
