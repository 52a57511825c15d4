"""Whatever bytes or JSON come in, what comes out is an answer or a sentence, and never more.

Short by default; FUZZ_S=120 .venv/bin/pytest -m fuzz gives each kind two minutes.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx2
import pillow_heif
import pytest
from conftest import REPOSITORY
from fake_engine import FakeAnswer, FakeEngine
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from odd_pictures import png_by_hand, saved, scene
from pictures_to_send import data_url, png
from served_api import serving

from vlm.chat import AskRequest
from vlm.config import Settings
from vlm.errors import PictureError
from vlm.images import PictureLimits, open_picture
from vlm.request_checks import AnswerLimits, check_request

pytestmark = pytest.mark.fuzz
T = TypeVar("T")
SECONDS = float(os.environ.get("FUZZ_S", "2"))
AT_ONCE = 30
KEY = "a-key-that-nobody-may-see"
SECRETS = ("Traceback", str(REPOSITORY), "site-packages", "/tmp/", KEY, '.py"')
LIMITS = PictureLimits(max_px=1_000_000, max_file_bytes=100_000, kept_px=10_000)
"""Small, so that many pictures are tried in little time."""


def fuzz(values: st.SearchStrategy[T], check: Callable[[T], None]) -> None:
    """Check values until the time is up, the same ones each time; a fault is made small."""
    end_s, number = time.monotonic() + SECONDS, 0
    while number == 0 or time.monotonic() < end_s:

        @seed(number)
        @settings(
            max_examples=AT_ONCE, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(values)
        def one(value: T) -> None:
            check(value)

        one()
        number += 1


def heic() -> bytes:
    file = io.BytesIO()
    pillow_heif.from_pillow(small()).save(file, format="HEIF")
    return file.getvalue()


def small() -> Any:
    return scene().resize((48, 40))


FILES = [
    saved(small()), saved(small().convert("P")), saved(small().convert("RGBA")), png(),
    saved(small(), "JPEG"), saved(small().convert("CMYK"), "JPEG"), saved(small(), "WEBP"),
    saved(small(), "GIF", save_all=True, append_images=[small().rotate(90)]), saved(small(), "BMP"),
    saved(small(), "TIFF"), saved(small(), "TIFF", compression="tiff_lzw"), saved(small(), "AVIF"),
    heic(), png_by_hand(90_000, 90_000), b"<svg/>", b"%PDF-1.7",
]  # fmt: skip


@st.composite
def pictures(draw: st.DrawFn) -> bytes:
    """A picture file with bytes written over, cut out, put in or joined to another."""
    content = bytearray(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(0, 6))):
        # Headers are where it hurts.
        most = draw(st.sampled_from((16, 64, 256, len(content))))
        at = draw(st.integers(0, max(0, min(most, len(content)) - 1)))
        piece = draw(st.binary(max_size=8) | st.sampled_from((b"\xff" * 4, b"\0" * 4)))
        content[at : at + draw(st.sampled_from((0, len(piece), 40)))] = piece
    if draw(st.booleans()):
        del content[draw(st.integers(0, len(content))) :]
    if draw(st.integers(0, 5)) == 0:
        content += draw(st.sampled_from(FILES))
    return bytes(content)


def test_every_file_becomes_a_picture_or_a_sentence() -> None:
    def check(content: bytes) -> None:
        try:
            picture = open_picture(content, name="x.png", limits=LIMITS)
        except PictureError as error:
            said = str(error)
            assert re.fullmatch(r"[A-Z].*\.", said) and len(said) < 300, said
            assert not any(secret in said for secret in SECRETS)
            return
        assert picture.image.mode == "RGB" and min(picture.image.size) > 0
        assert picture.width_px * picture.height_px <= LIMITS.max_px
        assert picture.image.width * picture.image.height <= LIMITS.max_px

    fuzz(pictures() | st.binary(max_size=200), check)


class CheckingEngine(FakeEngine):
    """A FakeEngine that refuses what the engine would refuse."""

    def ask(self, request: AskRequest) -> FakeAnswer:
        check_request(request, AnswerLimits(context_tokens=8192, max_pictures=8))
        answer = super().ask(request)
        self.answers.clear()  # they would fill the memory
        return answer


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[httpx2.Client]:
    """The API with a key, over an engine that only checks."""
    values = {"server": {"api_key": KEY, "max_upload_bytes": 10**6}}
    with serving(CheckingEngine(), Settings.model_validate(values)) as url:
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        with httpx2.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
            yield client


NUMBERS = st.integers() | st.floats() | st.sampled_from((0, -1, 1e9, 10**400, -0.0))
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
URLS = st.sampled_from(
    ("file:///etc/passwd", "http://127.0.0.1/", "data:,", "data:image/png;base64,!", "", "\0")
) | st.sampled_from([data_url(file) for file in FILES])
PARTS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=30)}),
    st.fixed_dictionaries(
        {
            "type": st.just("image_url"),
            "image_url": URLS | st.fixed_dictionaries({"url": URLS}),
        }
    ),
    ANYTHING,
)
MESSAGES = st.fixed_dictionaries(
    {
        "role": st.sampled_from(("user", "user", "assistant", "system", "developer", "tool")),
        "content": st.text(max_size=60) | st.lists(PARTS, max_size=3) | ANYTHING,
    }
)
GOOD_PARTS = st.lists(
    st.sampled_from(
        (
            {"type": "text", "text": "What is it? \u56fe"},
            {"type": "image_url", "image_url": {"url": data_url(png()), "detail": "low"}},
            {"type": "image_url", "image_url": data_url(png("blue"))},
        )
    ),
    min_size=1,
    max_size=3,
)
GOOD_BODIES = st.fixed_dictionaries(
    {
        "messages": GOOD_PARTS.map(lambda parts: [{"role": "user", "content": parts}])
        | st.just([{"role": "system", "content": "x"}, {"role": "user", "content": "Hi"}])
    },
    optional={
        "stream": st.booleans(),
        "temperature": st.floats(0, 2),
        "top_k": st.integers(0, 1000),
        "max_tokens": st.integers(1),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "stop": st.sampled_from(("circle", ["A", "."], None)),
        "user": st.text(max_size=10),
        "stream_options": st.sampled_from(({"include_usage": True}, None)),
    },
)
ODD_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGES, max_size=4) | ANYTHING,
        **dict.fromkeys(
            ("temperature", "top_p", "top_k", "presence_penalty", "max_tokens", "seed", "n"),
            NUMBERS | ANYTHING,
        ),
        "stream": ANYTHING,
        "stop": st.lists(st.text(max_size=5), max_size=3) | ANYTHING,
        "model": st.sampled_from(("default", "", "x")) | ANYTHING,
        "user": ANYTHING,
        "stream_options": ANYTHING,
        "tools": ANYTHING,
    },
)
BODIES = GOOD_BODIES | st.tuples(GOOD_BODIES, ODD_FIELDS).map(lambda two: two[0] | two[1])


def test_every_body_gets_an_answer_or_a_sentence(fuzzed: httpx2.Client) -> None:
    outcomes: set[int] = set()

    def check(body: str | bytes) -> None:
        answer = fuzzed.post("/v1/chat/completions", content=body)
        outcomes.add(answer.status_code)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
        assert not any(secret in answer.text for secret in SECRETS), answer.text
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert re.fullmatch(r"[A-Z].*\.", error["message"], re.DOTALL), error
            assert len(error["message"]) < 1000

    fuzz(BODIES.map(json.dumps) | ANYTHING.map(json.dumps) | st.binary(max_size=60), check)
    assert {200, 400} <= outcomes, "the bodies are all of one kind"
