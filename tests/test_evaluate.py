"""How right answers are counted."""

from vlm.bundled.evaluate import Score, held_out, mean_iou, table


def test_the_share_is_right_answers_per_question():
    score = Score()
    for right in (1, 0, 1, 1):
        score.add(right)
    assert score.share == 0.75


def test_overlap_of_boxes():
    truth = '[{"bbox_2d": [0, 0, 100, 100], "label": "red circle"}]'
    half = '[{"bbox_2d": [0, 0, 100, 50], "label": "red circle"}]'
    assert mean_iou(truth, truth) == 1.0
    assert mean_iou(half, truth) == 0.5
    assert mean_iou(truth.replace("red", "blue"), truth) == 0.0
    assert mean_iou('[{"bbox_2d": [0, 0', truth) == 0.0
    assert mean_iou("no boxes", truth) == 0.0


def test_a_box_too_many_costs():
    truth = '[{"bbox_2d": [0, 0, 100, 100], "label": "a"}]'
    more = truth[:-1] + ', {"bbox_2d": [5, 5, 9, 9], "label": "b"}]'
    assert mean_iou(more, truth) == 0.5


def test_held_out_pictures_are_the_same_each_time():
    first, again = ([p.content_hash for p, _ in held_out(3)] for _ in range(2))
    assert first == again and len(set(first)) == 3


def test_the_table_has_a_row_per_topic():
    scores = {("colour", "en"): Score(1, 2), ("colour", "zh"): Score(2, 2)}
    assert "| colour | 50.0 % of 2 | 100.0 % of 2 |" in table(scores, Score(9, 10))
