"""Counts right answers of the built-in model: `python -m vlm.bundled.evaluate`.

Held-out pictures: other random numbers than in training, and words that training never
shows. The answers come from the product's own engine code, greedy.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from vlm.bundled import BUNDLED_FOLDER
from vlm.bundled.batches import LARGE_GRIDS
from vlm.bundled.easy_vqa_split import load_easy_vqa
from vlm.bundled.questions import TOPICS, Question, ask, follow_ups
from vlm.bundled.scenes import PIXELS_PER_CELL, SceneMix, draw_scene
from vlm.bundled.small_talk import Language
from vlm.chat import AskRequest, Message, Piece, Sampling
from vlm.checkpoint import load_model
from vlm.generate import Generator
from vlm.images import Picture, open_picture
from vlm.kv_cache import ConversationCaches, FeatureCache
from vlm.precision import choose_precision
from vlm.request_checks import AnswerLimits
from vlm.stats import AnswerClock

SEED = 20_000_003
GREEDY = Sampling(temperature=0.0, presence_penalty=0.0, max_new_tokens=300)


@dataclass
class Score:
    """Right answers, as a sum of shares, and questions."""

    right: float = 0.0
    asked: int = 0

    def add(self, right: float) -> None:
        """Count one question."""
        self.right += right
        self.asked += 1

    @property
    def share(self) -> float:
        """Right answers per question, 0..1."""
        return self.right / max(1, self.asked)


Scores = dict[tuple[str, str], Score]
"""By topic and language; language "" where there is only one."""


class _TextListener:
    """Joins the text of an answer."""

    def __init__(self) -> None:
        self.text = ""

    def emit(self, piece: Piece) -> None:
        self.text += piece.text

    def check(self) -> None:
        pass


def open_generator(folder: Path, precision: str) -> Generator:
    """Load a checkpoint folder as the engine does."""
    plan = choose_precision(precision, None)  # type: ignore[arg-type]
    model = load_model(folder, plan, lambda done, total: None, name=folder.name, is_bundled=True)
    limits = AnswerLimits(model.info.context_tokens, max_pictures=8)
    caches = ConversationCaches(64 * 2**20, model.decoder.new_cache)
    return Generator(model, caches, FeatureCache(2**24), limits)


def answer(generator: Generator, conversation: str, messages: list[Message]) -> str:
    """Answer the last message greedily."""
    listener = _TextListener()
    request = AskRequest(conversation, tuple(messages), GREEDY)
    generator.answer(request, listener, AnswerClock())
    return listener.text


def held_out(pictures: int, seed: int = SEED) -> Iterator[tuple[Picture, list[list[Question]]]]:
    """Draw held-out pictures, each with chats of one or more questions."""
    mix = SceneMix(held_out=True)
    for number in range(pictures):
        rng = random.Random(seed + number)
        rows, columns = rng.choice(LARGE_GRIDS)
        scene = draw_scene(rng, columns * PIXELS_PER_CELL, rows * PIXELS_PER_CELL, mix)
        languages: tuple[Language, ...] = ("en", "zh")
        chats = []
        for language in languages:
            for topic in TOPICS:
                question = ask(rng, scene, topic, language)
                if question is not None:
                    chats.append([question])
            chat = follow_ups(rng, scene, language)
            if chat:
                chats.append(chat)
        yield open_picture(scene.picture), chats


def ask_held_out(generator: Generator, pictures: int) -> Scores:
    """Ask everything about held-out pictures and count by topic and language."""
    scores: Scores = defaultdict(Score)
    for number, (picture, chats) in enumerate(held_out(pictures)):
        for chat in chats:
            messages: list[Message] = []
            for turn, question in enumerate(chat):
                shown = (picture,) if turn == 0 else ()
                messages.append(Message("user", question.text, shown))
                text = answer(generator, str(number), messages)
                messages.append(Message("assistant", text))
                topic = question.topic if turn == 0 else "follow-up"
                if len(chat) == 1 or turn > 0:
                    _count(scores, topic, question, text)
        generator.caches.drop(str(number))
    return scores


def _count(scores: Scores, topic: str, question: Question, text: str) -> None:
    language = question.language
    if question.topic == "boxes":
        scores[topic if topic == "follow-up" else "boxes (mean IoU)", language].add(
            mean_iou(text, question.answer)
        )
        return
    scores[topic, language].add(text.strip() == question.answer)
    if topic == "read":
        blocks = SequenceMatcher(None, text, question.answer, False).get_matching_blocks()
        for i in range(len(question.answer)):
            right = any(block.b <= i < block.b + block.size for block in blocks)
            scores["read (characters)", language].add(right)


def mean_iou(text: str, truth: str) -> float:
    """Return the mean overlap of the wanted boxes with the given ones of the same label."""
    wanted = json.loads(truth)
    try:
        given = [(item["label"], item["bbox_2d"]) for item in json.loads(text)]
    except (ValueError, TypeError, KeyError):
        return 0.0
    total = 0.0
    for item in wanted:
        same = [box for label, box in given if label == item["label"] and len(box) == 4]
        total += max((_iou(box, item["bbox_2d"]) for box in same), default=0.0)
    return total / max(len(wanted), len(given))


def _iou(a: list[float], b: list[float]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return width * height / (areas - width * height)


def ask_easy_vqa(generator: Generator, most: int) -> Score:
    """Answer the official test split of easy-vqa, the first `most` pictures of it."""
    known = load_easy_vqa("test")
    score = Score()
    if known is None:
        return score
    for number, (image, turns) in enumerate(zip(known.pictures, known.questions, strict=True)):
        if number >= most:
            break
        picture = open_picture(image)
        for question, right in turns:
            text = answer(generator, "easy", [Message("user", question, (picture,))])
            score.add(text.strip() == right)
        generator.caches.drop("easy")
    return score


def table(scores: Scores, easy_vqa: Score) -> str:
    """Write the scores as a Markdown table."""
    rows = ["| topic | English | Chinese |", "|---|---|---|"]
    topics = list(dict.fromkeys(topic for topic, _ in scores))
    for topic in topics:
        cells = []
        for language in ("en", "zh"):
            score = scores[topic, language]
            cells.append(f"{100 * score.share:.1f} % of {score.asked}")
        rows.append(f"| {topic} | {' | '.join(cells)} |")
    if easy_vqa.asked:
        rows.append(f"| easy-vqa test split | {100 * easy_vqa.share:.2f} % of {easy_vqa.asked} | |")
    return "\n".join(rows)


def main() -> None:
    """Print the table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=300)
    parser.add_argument("--easy-vqa", type=int, default=1000, help="pictures of its test split")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "mixed", "int8"])
    parser.add_argument("--folder", type=Path, default=BUNDLED_FOLDER)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    generator = open_generator(args.folder, args.precision)
    scores = ask_held_out(generator, args.pictures)
    easy_vqa = ask_easy_vqa(generator, args.easy_vqa)
    if args.json:
        shares = {f"{topic} {language}": s.share for (topic, language), s in scores.items()}
        text = json.dumps({**shares, "easy-vqa": easy_vqa.share}, indent=2)
    else:
        text = table(scores, easy_vqa)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
