"""The pictures the built-in model learns from are what their scene says."""

import random

import pytest

from vlm.bundled.scenes import (
    COLOURS,
    POSITIONS,
    SHAPES,
    SceneMix,
    draw_scene,
    draw_word,
    is_held_out,
)


def scenes(count, mix=None, size=(192, 160)):
    return [draw_scene(random.Random(i), *size, mix or SceneMix()) for i in range(count)]


def test_the_same_random_numbers_draw_the_same_picture():
    first, again = (draw_scene(random.Random(7), 96, 96, SceneMix()) for _ in range(2))
    assert first.picture.tobytes() == again.picture.tobytes()
    assert first.things == again.things


def test_the_picture_is_scaled_from_the_size_the_model_sees():
    assert draw_scene(random.Random(1), 128, 96, SceneMix(), scale=1.5).picture.size == (192, 144)


def distance(pixel, colour):
    return max(abs(a - b) for a, b in zip(pixel, COLOURS[colour], strict=True))


@pytest.mark.parametrize("number", range(40))
def test_the_middle_of_a_shape_has_its_colour_and_a_corner_the_backgrounds(number):
    scene = draw_scene(random.Random(number), 192, 192, SceneMix(text=0, both=0, one_big=0))
    width, height = scene.picture.size
    for thing in scene.shapes:
        x, y = thing.centre
        assert (
            distance(scene.picture.getpixel((int(x * width), int(y * height))), thing.colour) < 45
        )
    edge = [scene.picture.getpixel((x, 0)) for x in range(width)]
    assert sum(distance(pixel, scene.background) < 45 for pixel in edge) > width / 2


def test_every_shape_colour_and_position_is_drawn():
    things = [thing for scene in scenes(400) for thing in scene.shapes]
    assert {thing.kind for thing in things} == set(SHAPES)
    assert {thing.colour for thing in things} == set(COLOURS)
    assert {thing.position for thing in things} == set(POSITIONS)


def test_boxes_lie_inside_the_picture_and_hold_all_of_the_shape():
    for scene in scenes(60, SceneMix(shapes=0, text=0, both=0)):
        (thing,) = scene.things
        x0, y0, x1, y1 = thing.box
        assert 0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1
        width, height = scene.picture.size
        inside = (x0 * width - 2, y0 * height - 2, x1 * width + 2, y1 * height + 2)
        for x in range(0, width, 7):
            for y in range(0, height, 7):
                if not (inside[0] <= x <= inside[2] and inside[1] <= y <= inside[3]):
                    assert distance(scene.picture.getpixel((x, y)), scene.background) < 45


def test_a_shape_stands_in_the_ninth_that_its_position_names():
    for scene in scenes(60, SceneMix(text=0, both=0, one_big=0, max_shapes=9)):
        positions = [thing.position for thing in scene.shapes]
        assert len(set(positions)) == len(positions)


def test_training_and_test_never_share_a_word():
    rng = random.Random(3)
    trained = {draw_word(rng, SceneMix()) for _ in range(3000)}
    tested = {draw_word(rng, SceneMix(held_out=True)) for _ in range(1000)}
    assert not trained & tested
    assert all(is_held_out(word) for word in tested)


def test_characters_stand_from_left_to_right_inside_the_box_of_their_word():
    for scene in scenes(40, SceneMix(shapes=0, both=0, one_big=0)):
        text = scene.text
        assert len(text.text) == len(text.character_x)
        assert list(text.character_x) == sorted(text.character_x)
        assert text.box[0] <= text.character_x[0] and text.character_x[-1] <= text.box[2]
