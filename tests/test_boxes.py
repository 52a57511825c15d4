"""Boxes are found in whatever form the model writes them, and nothing else is taken for one."""

from __future__ import annotations

import json
import time

import pytest

from vlm.boxes import LONGEST_LABEL, MOST_BOXES, Box, boxes_json, read_boxes

ONE = '{"bbox_2d": [100, 200, 300, 400], "label": "red circle"}'
BOX = Box("red circle", 100, 200, 300, 400)


@pytest.mark.parametrize(
    "answer",
    [
        f"[{ONE}]",
        ONE,
        f"```json\n[\n\t{ONE}\n]\n```",
        f'Here it is, a 5" circle {{see below}}:\n[{ONE}] I hope that helps.',
        f'Set {{x: "5}} then [{ONE}]',
        f"[{ONE}, {ONE}]",
        '{"objects": [' + ONE + '], "count": 1}',
        '{"label": "red circle", "bbox_2d": [100, 200, 300, 400]}',
        '{"bbox_2d": ["100", "200", "300.0", "4e2"], "label": "red circle"}',
        '{"bbox_2d": "[100, 200, 300, 400]", "label": "red circle"}',
        '{"bbox_2d": "(100,200),(300,400)", "label": "red circle"}',
        '{"bbox_2d": [[100, 200], [300, 400]], "label": "red circle"}',
        '{"bbox_2d": [[100, 200, 300, 400]], "label": "red circle"}',
        '{"bbox_2d": [100, 200, 300, 400, "label": "red circle"}',
        '{"bbox_2d": [100, 200, 300, 400]; "x": 1, "label": "red circle"}',
        '{"bbox_2d": [300, 400, 100, 200], "label": "red circle"}',
        "{'bbox_2d': [100, 200, 300, 400], 'label': 'red circle'}",
        '{"bbox_2d": [100, 200, 300, 400], "tags": ["a", {"b": "}"}], "label": "red\\ncircle"}',
        '{"bbox_2d": [100, 200, 300, 400], "text": "STOP", "label": "red circle", "class": "c"}',
        '{"bbox_2d": [100, 200, 300, 400], "label": "red \\u0063ircle"}',
        ONE + ', {"bbox_2d": [500, 600, 700, 8',
        ONE + ', {"bbox_2d": [500, 600, 700, 800',
        ONE + ', {"bbox_2d": [500, 600',
        ONE + ', {"bb',
    ],
)
def test_one_box_is_read_from(answer: str) -> None:
    assert read_boxes(answer) == [BOX]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "A red circle.",
        "The price is [100, 200, 300, 400] dollars.",
        '{"menu": [{"name": "Soup", "price": [1, 2, 3, 4]}], "label": "x"}',
        '{"bbox_2d": [100, 200, 300], "label": "three"}',
        '{"bbox_2d": [], "label": "empty"}',
        '{"bbox_2d": null}',
        '{"bbox_2d": {"x1": 1, "y1": 2, "x2": 3, "y2": 4}}',
        '{"bbox_2d": [1e999, 0, 10, 10]}',
        '{"bbox_2d": [1200, 0, 1300, 10]}',
        '{"bbox_2d": [0, -20, 10, -10]}',
        'Write it as "bbox_2d": [100, 200, 300, 400] please',
        r"\frac{a}{b} and `{x}` and {{{",
    ],
)
def test_no_box_is_read_from(answer: str) -> None:
    assert read_boxes(answer) == []


def test_points_are_read() -> None:
    answer = '[{"point_2d": [500, 20], "label": "eye"}, {"point_2d": [[1, 2], [3, 4]]}]'
    assert read_boxes(answer) == [
        Box("eye", 500, 20, 500, 20, is_point=True),
        Box("", 1, 2, 1, 2, is_point=True),
        Box("", 3, 4, 3, 4, is_point=True),
    ]


def test_several_boxes_keep_their_order_and_may_share_a_label() -> None:
    answer = '[{"bbox_2d": [1, 2, 3, 4], "label": "car"}, {"bbox_2d": [5, 6, 7, 8], "label": "car"}'
    assert read_boxes(answer) == [Box("car", 1, 2, 3, 4), Box("car", 5, 6, 7, 8)]


def test_one_label_may_have_several_boxes() -> None:
    answer = '{"bbox_2d": [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 1'
    assert read_boxes(answer) == [Box("", 1, 2, 3, 4), Box("", 5, 6, 7, 8)]


def test_corners_beyond_the_picture_are_brought_to_its_edge() -> None:
    (box,) = read_boxes('{"bbox_2d": [-30, 500, 400, 1024]}')
    assert (box.x1, box.y1, box.x2, box.y2) == (0, 500, 400, 1000)


def test_a_label_that_was_cut_off_says_so() -> None:
    (box,) = read_boxes('{"bbox_2d": [1, 2, 3, 4], "label": "red cir')
    assert box.label == "red cir…"
    (escaped,) = read_boxes('{"bbox_2d": [1, 2, 3, 4], "label": "the \\"')
    assert escaped.label == 'the "…'


def test_quotes_within_a_label_lose_no_box() -> None:
    (box,) = read_boxes('[{"label": "the "STOP" sign", "bbox_2d": [1, 2, 3, 4]}]')
    assert (box.x1, box.label) == (1, "the")


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ('"  two\\n lines  "', "two lines"),
        ('"\\u202ereversed\\u0000"', "reversed"),
        ('"\\ud83d"', ""),
        ('"红色圆形"', "红色圆形"),
        ("null", ""),
        ("7", "7"),
        ('"' + "long " * 100 + '"', ("long " * 100)[: LONGEST_LABEL - 1] + "…"),
    ],
)
def test_a_label_is_one_harmless_line(label: str, shown: str) -> None:
    (box,) = read_boxes('{"bbox_2d": [1, 2, 3, 4], "label": ' + label + "}")
    assert box.label == shown


@pytest.mark.parametrize(
    "piece",
    ["{", '{"', '"\\', "[", '{"bbox_2d":[', '{"a":{', '{"label":"', "{ ", '\\"', "{'", "9",
     '{"bbox_2d":9', '{"bbox_2d":[1', '{"bbox_2d":[[', '{"bbox_2d":"', "{'a'", '{"a" ', " "],
)  # fmt: skip
def test_hostile_text_takes_no_more_than_linear_time(piece: str) -> None:
    times_s = []
    for length in (50_000, 1_000_000):
        started_s = time.process_time()
        assert len(read_boxes(piece * (length // len(piece)))) <= MOST_BOXES
        times_s.append(time.process_time() - started_s)
    # Twenty times the text; quadratic work would take four hundred times as long.
    assert times_s[1] < 100 * max(times_s[0], 0.005)


def test_more_boxes_than_any_honest_answer_has_are_left_out() -> None:
    answer = ",".join(f'{{"point_2d": [{n % 1000}, {n // 1000}]}}' for n in range(5000))
    assert len(read_boxes(answer)) == MOST_BOXES


def test_places_become_pixels_of_the_picture() -> None:
    assert BOX.in_pixels(640, 480) == (64, 96, 192, 192)
    assert Box("", 0, 0, 1000, 1000).in_pixels(4000, 3) == (0, 0, 4000, 3)


@pytest.mark.parametrize("side_px", [1, 3, 640])
def test_even_the_thinnest_box_has_an_area_inside_the_picture(side_px: int) -> None:
    for edge in (0.0, 499.9, 1000.0):
        left, top, right, bottom = Box("", edge, edge, edge, edge).in_pixels(side_px, side_px)
        assert 0 <= left < right <= side_px and 0 <= top < bottom <= side_px


def test_a_point_stays_a_place_inside_the_picture() -> None:
    assert Box("", 1000, 0, 1000, 0, is_point=True).in_pixels(640, 480) == (639, 0, 639, 0)


def test_the_json_tells_pixels_labels_and_the_pictures_size() -> None:
    boxes = [BOX, Box('"红" \\', 500, 500, 500, 500, is_point=True)]
    text = boxes_json(boxes, "a.png", 4000, 3000)
    assert json.loads(text) == {
        "picture": "a.png",
        "width_px": 4000,
        "height_px": 3000,
        "boxes": [
            {"bbox_2d": [400, 600, 1200, 1200], "label": "red circle"},
            {"point_2d": [2000, 1500], "label": '"红" \\'},
        ],
    }
    assert "红" in text
    assert json.loads(boxes_json([], "", 1, 1))["boxes"] == []
