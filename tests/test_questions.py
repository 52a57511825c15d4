"""Questions about a scene have one true answer, in both languages."""

import json
import random

import pytest
from PIL import Image

from vlm.bundled.questions import (
    COLOURS_ZH,
    POSITIONS_ZH,
    SHAPES_ZH,
    TOPICS,
    ask,
    boxes_json,
    follow_ups,
)
from vlm.bundled.scenes import COLOURS, POSITIONS, SHAPES, Scene, SceneMix, Thing, draw_scene

CIRCLE = Thing("circle", "red", (0.05, 0.05, 0.25, 0.25))
SQUARE = Thing("square", "blue", (0.4, 0.4, 0.6, 0.6))
WORD = Thing("text", "black", (0.1, 0.8, 0.6, 0.9), "HELLO", (0.15, 0.25, 0.35, 0.45, 0.55))
SCENE = Scene(Image.new("RGB", (9, 9)), "white", (CIRCLE, SQUARE, WORD))


def all_made(topic, language, scene=SCENE):
    made = (ask(random.Random(i), scene, topic, language) for i in range(60))
    return {question.text: question.answer for question in made if question is not None}


def test_every_name_has_a_chinese_one():
    assert set(COLOURS_ZH) == set(COLOURS)
    assert set(SHAPES_ZH) == set(SHAPES)
    assert set(POSITIONS_ZH) == set(POSITIONS)


@pytest.mark.parametrize(
    ("topic", "language", "question", "answer"),
    [
        ("colour", "en", "What colour is the circle?", "Red"),
        ("colour", "zh", "正方形是什么颜色？", "蓝色"),
        ("shape", "en", "What shape is blue?", "Square"),
        ("shape", "zh", "红色的是什么形状？", "圆形"),
        ("count", "en", "How many shapes are there?", "2"),
        ("count", "zh", "图中有几个图形？", "2"),
        ("position", "en", "Where is the red circle?", "Top left"),
        ("position", "zh", "正方形在哪里？", "中间"),
        ("background", "en", "What colour is the background?", "White"),
        ("background", "zh", "背景是什么颜色？", "白色"),
        ("read", "en", "What does it say?", "HELLO"),
        ("read", "zh", "图中写了什么？", "HELLO"),
    ],
)
def test_the_answer_is_true(topic, language, question, answer):
    assert all_made(topic, language)[question] == answer


def test_yes_and_no_are_both_asked_and_true():
    made = all_made("yes/no", "en")
    assert made.get("Is there any text?", "Yes") == "Yes"
    for question, answer in made.items():
        if question.startswith("Is the circle"):
            assert answer == ("Yes" if "red" in question else "No")
    assert set(made.values()) == {"Yes", "No"}


def test_a_description_names_everything():
    for text in all_made("describe", "en").values():
        for part in ("A white background", "a red circle at the top left", "HELLO"):
            assert part in text


def test_boxes_are_qwens_json():
    boxes = json.loads(boxes_json([CIRCLE], "en"))
    assert boxes == [{"bbox_2d": [50, 50, 250, 250], "label": "red circle"}]


def test_it_is_the_shape_named_before():
    chat = follow_ups(random.Random(1), SCENE, "en")
    answers = {question.text: question.answer for question in chat[1:]}
    thing = CIRCLE if "red" in chat[0].answer else SQUARE
    assert answers
    if "What colour is it?" in answers:
        assert answers["What colour is it?"] == thing.colour.capitalize()
    if "Where is it?" in answers:
        assert answers["Where is it?"] == thing.position.capitalize()


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_is_asked_about_drawn_scenes_in_both_languages(topic):
    drawn = [draw_scene(random.Random(i), 64, 64, SceneMix(), scale=1.0) for i in range(40)]
    for language in ("en", "zh"):
        assert any(ask(random.Random(2), scene, topic, language) for scene in drawn)
