"""Training batches: dense labels, packed chats, and which tokens count."""

import json
import random

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

from vlm.bundled.batches import CHAT_TOKENS, BatchMaker
from vlm.bundled.easy_vqa_split import EasyVQA
from vlm.bundled.labels import IGNORED, label_scenes
from vlm.bundled.packs import EDGE_WEIGHT, Packer, coarse_boxes, tell
from vlm.bundled.questions import ask
from vlm.bundled.scenes import CHARACTERS, SHAPES, SceneMix, draw_scene


@pytest.fixture(scope="module")
def tokenizer(bundled_folder):
    return Tokenizer.from_file(str(bundled_folder / "tokenizer.json"))


def test_a_batch_depends_on_its_seed_and_number_only(tokenizer):
    makers = [BatchMaker(tokenizer, 3, 4, SceneMix(), ((4, 4),)) for _ in range(2)]
    first, again = (maker.make(5) for maker in makers)
    assert np.array_equal(first.pixels, again.pixels)
    assert np.array_equal(first.token_ids, again.token_ids)
    assert not np.array_equal(first.pixels[0], makers[0].make(6).pixels[0])


def test_only_answers_are_targets(tokenizer):
    batch = BatchMaker(tokenizer, 1, 4, SceneMix(), ((4, 4),)).make(0)
    end = tokenizer.token_to_id("<|im_end|>")
    for ids, targets in zip(batch.token_ids, batch.targets, strict=True):
        places = np.flatnonzero(targets != IGNORED)
        assert np.array_equal(targets[places], ids[places + 1])
        assert (targets == end).sum() > 1
    text = tokenizer.decode([t for t in batch.targets.ravel() if t != IGNORED])
    assert "What" not in text and "?" not in text


def test_each_picture_has_its_visual_tokens_at_its_own_rows_and_columns(tokenizer):
    batch = BatchMaker(tokenizer, 1, 4, SceneMix(), ((3, 5),)).make(0)
    pad = tokenizer.token_to_id("<|image_pad|>")
    assert (batch.token_ids == pad).sum() == len(batch.pixels) * 15
    first = np.flatnonzero(batch.token_ids[0] == pad)[:15]
    t, h, w = batch.position_ids[:, 0, first]
    assert set(h - t) == set(range(3)) and set(w - t) == set(range(5))


def test_questions_of_one_picture_start_at_the_same_place(tokenizer):
    maker = BatchMaker(tokenizer, 1, 12, SceneMix(), ((4, 4),))
    batch = maker.make(0)
    row = int(np.argmax(batch.segments.max(1)))
    starts = [
        batch.position_ids[0, row, np.flatnonzero(batch.segments[row] == s)[0]]
        for s in range(1, batch.segments[row].max() + 1)
    ]
    assert len(starts) > 2 and len(set(starts)) == 1


def test_packed_chats_have_nearly_one_length(tokenizer):
    batch = BatchMaker(tokenizer, 1, 16, SceneMix(), ((4, 4),)).make(1)
    used = (batch.segments >= 0).sum(1)
    assert np.median(used) > 0.7 * CHAT_TOKENS


def test_dense_labels_say_what_a_visual_token_shows(tokenizer):
    mix = SceneMix(shapes=0, text=0, both=0, one_big=0, crowd=1)
    batch = BatchMaker(tokenizer, 1, 6, mix, ((6, 6),), with_chats=False).make(0)
    labels = batch.labels
    assert set(np.unique(labels.kind)) == set(range(len(SHAPES) + 2))
    text = labels.kind == len(SHAPES) + 1
    assert (labels.characters[..., 0] > 0)[text].mean() > 0.3
    assert labels.characters.max() <= len(CHARACTERS)
    boxes = labels.box[labels.kind > 0]
    assert (boxes[:, 2] > boxes[:, 0]).all() and (boxes[:, 3] > boxes[:, 1]).all()


def test_foreign_pictures_have_questions_but_no_dense_labels(tokenizer):
    known = EasyVQA([Image.new("RGB", (64, 64))], [[("is there a circle?", "no")] * 3])
    maker = BatchMaker(tokenizer, 1, 40, SceneMix(), ((4, 4),), easy_vqa=known)
    batch = maker.make(0)
    foreign = (batch.labels.kind == IGNORED).all(1)
    assert foreign.any() and not foreign.all()


def test_silent_pictures_come_last(tokenizer):
    arguments = (tokenizer, 1, 6, SceneMix(), ((4, 4),))
    plain = BatchMaker(*arguments).make(0)
    more = BatchMaker(*arguments, silent_pictures=3).make(0)
    assert len(more.pixels) == len(plain.pixels) + 3
    assert np.array_equal(more.pixels[: len(plain.pixels)], plain.pixels)
    assert np.array_equal(more.token_ids, plain.token_ids)


def test_answers_point_at_the_visual_tokens_of_what_they_speak_of(tokenizer):
    batch = BatchMaker(tokenizer, 3, 8, SceneMix(), ((4, 4),)).make(0)
    pad = tokenizer.token_to_id("<|image_pad|>")
    places = [(row, token) for row, token in np.argwhere(batch.shown.any(-1))]
    assert len(places) > 20
    for row, token in places:
        assert batch.targets[row, token] != IGNORED
        visual = batch.shown[row, token]
        assert (batch.token_ids[row][visual] == pad).all()
        assert visual.sum() < 16, "no thing covers the whole picture"


def test_the_digits_that_say_where_a_box_lies_count_more(tokenizer):
    packer = Packer(tokenizer)
    answer = '[{"bbox_2d": [50, 250, 500, 1000], "label": "red"}]'
    ids, _, _, weights, *_ = packer.pack([("answer", answer)], (4, 4))
    least = 1 / len(ids)
    heavy = [tokenizer.decode([i]) for i, w in zip(ids, weights, strict=True) if w > least * 1.01]
    assert heavy == list("5" + "25" + "50" + "100")
    assert set(weights.round(6)) == {round(least, 6), round(EDGE_WEIGHT * least, 6)}


def test_boxes_are_taught_in_fifties_and_asked_for_in_tens(tokenizer):
    answer = '[{"bbox_2d": [50, 230, 520, 980], "label": "red 7"}]'
    assert coarse_boxes(answer) == '[{"bbox_2d": [50, 250, 500, 1000], "label": "red 7"}]'
    scene = draw_scene(random.Random(4), 192, 192, SceneMix(text=0, both=0, one_big=0))
    asked = ask(random.Random(1), scene, "boxes", "en")
    told = tell(asked, label_scenes([scene], (6, 6)), (6, 6))
    taught = [n for box in json.loads(told.text) for n in box["bbox_2d"]]
    exact = [n for box in json.loads(asked.answer) for n in box["bbox_2d"]]
    assert all(n % 50 == 0 for n in taught) and any(n % 50 for n in exact)
    assert max(abs(a - b) for a, b in zip(taught, exact, strict=True)) <= 25
