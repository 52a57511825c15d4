"""Memory stays flat over many turns with pictures of many sizes."""

import gc
import random

import psutil
import pytest
from PIL import Image

from vlm.chat import AskRequest, Message, Sampling
from vlm.checkpoint import load_model
from vlm.generate import Generator
from vlm.images import open_picture
from vlm.kv_cache import ConversationCaches, FeatureCache
from vlm.precision import PrecisionPlan
from vlm.request_checks import AnswerLimits
from vlm.stats import AnswerClock
from vlm.units import MIB

SIZES = 60
TURNS = 200
SHORT = Sampling(temperature=0.0, presence_penalty=0.0, max_new_tokens=2)


class Heard:
    def emit(self, piece):
        pass

    def check(self):
        pass


@pytest.fixture
def generator(bundled_folder):
    model = load_model(bundled_folder, PrecisionPlan("fp32", "fp32", "fp32", "for a test", {}))
    caches = ConversationCaches(8 * MIB, model.decoder.new_cache)
    limits = AnswerLimits(model.info.context_tokens, 8)
    return Generator(model, caches, FeatureCache(2 * MIB), limits)


def turn(generator, number):
    rng = random.Random(number % SIZES)
    size = rng.randrange(40, 900), rng.randrange(40, 900)
    colour = tuple(rng.randrange(256) for _ in range(3))
    picture = open_picture(Image.new("RGB", size, colour))
    request = AskRequest(str(number), (Message("user", "What is it?", (picture,)),), SHORT)
    generator.answer(request, Heard(), AnswerClock())


def resident_bytes():
    gc.collect()
    return psutil.Process().memory_info().rss


def test_two_hundred_turns_with_sixty_sizes_leave_nothing_behind(generator):
    for number in range(SIZES):  # until every size has been seen and the caches are full
        turn(generator, number)
    before = resident_bytes()
    for number in range(SIZES, SIZES + TURNS):
        turn(generator, number)
    assert resident_bytes() - before < 32 * MIB
    assert generator.caches.nbytes <= 8 * MIB
    assert generator.features.nbytes <= 2 * MIB
