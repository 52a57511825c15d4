"""Header, panel and answer line: numbers in words, and everything foreign escaped."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from fake_engine import READY, FakeEngine

from vlm.chat import Message, ModelState
from vlm.model_source import BUNDLED_NOTICE
from vlm.stats import AnswerClock
from vlm.ui.answer_line import answer_line, format_seconds, format_speed
from vlm.ui.conversation import Turn
from vlm.ui.header import header_html
from vlm.ui.panel import memory_parts, panel_html
from vlm.ui.texts import EN, ZH, Texts
from vlm.units import GIB, MIB


def words(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_the_parts_of_memory_add_up_to_this_process() -> None:
    reading = FakeEngine().memory()
    parts = {name: size for name, _, size in memory_parts(reading, EN)}
    assert parts == {
        "weights": 2 * GIB,
        "kv": 128 * MIB,
        "pictures": 64 * MIB,
        "rest": GIB - 192 * MIB,
    }


def test_weights_that_are_mapped_but_not_resident_never_overfill_the_bar() -> None:
    reading = replace(FakeEngine().memory(), rss_bytes=GIB)
    parts = {name: size for name, _, size in memory_parts(reading, EN)}
    assert sum(parts.values()) == GIB
    assert parts["kv"] == 128 * MIB and parts["rest"] == 0


@pytest.mark.parametrize("texts", [EN, ZH])
def test_the_panel_says_machine_or_container(texts: Texts) -> None:
    reading = FakeEngine().memory()
    assert EN.container in words(panel_html(reading, READY, EN))
    machine = replace(reading, is_container_limit=False)
    assert EN.machine in words(panel_html(machine, READY, EN))
    assert "mixed" in words(panel_html(reading, READY, texts))


def test_names_and_errors_are_escaped() -> None:
    bad = "<script>x</script>"
    state = ModelState("failed", bad, model=bad, precision=bad, precision_reason=bad, notice=bad)
    for page in (header_html(state, EN), panel_html(FakeEngine().memory(), state, EN)):
        assert "<script" not in page and bad in words(page)
    ready = replace(state, stage="ready")
    assert "<script" not in header_html(ready, EN)


def test_a_notice_shows_while_its_model_runs() -> None:
    state = ModelState("ready", model="a", notice="Slow: half of it is on disk.")
    assert "Slow: half of it is on disk." in words(header_html(state, EN))


def test_what_the_engine_says_is_chinese_on_the_chinese_page() -> None:
    failed = ModelState("failed", "Qwen/a was not fetched: offline mode is on (HF_HUB_OFFLINE).")
    assert "没有下载 Qwen/a" in words(header_html(failed, ZH))
    notice = "Memory is short: mixed precision needs 5.00 GiB, 3.00 GiB is free."
    ready = ModelState("ready", precision="fp32", precision_reason="fp32 was asked for.")
    assert "内存不足：mixed" in words(header_html(replace(ready, notice=notice), ZH))
    assert "按要求使用 fp32。" in words(panel_html(FakeEngine().memory(), ready, ZH))
    bundled = replace(
        ready, is_bundled=True, notice=f"{BUNDLED_NOTICE} The real model, a, is not used: b"
    )
    assert "未使用真正的模型 a：b" in words(header_html(bundled, ZH))


@pytest.mark.parametrize("texts", [EN, ZH])
def test_the_built_in_model_is_named_and_how_to_get_the_real_one(texts: Texts) -> None:
    state = ModelState("ready", model="Shapes", is_bundled=True, notice=BUNDLED_NOTICE)
    said = words(header_html(state, texts))
    assert said.count(texts.bundled) == 1 and texts.how_to_get_real in said


def test_the_reason_for_the_built_in_model_is_shown() -> None:
    notice = f"{BUNDLED_NOTICE} No network: connect and start again."
    said = words(header_html(ModelState("ready", is_bundled=True, notice=notice), EN))
    assert "No network: connect and start again." in said
    assert said.count("small built-in model") == 1


def test_the_line_names_the_last_answer_and_lists_all() -> None:
    turns = []
    for number in (1, 2):
        clock = AnswerClock(visual_tokens=60 * number, cached_tokens=7)
        stats = replace(clock.stats("length", (1, 2)), ttft_s=1.25, vision_s=0.5, decode_tps=8.25)
        turns.append(Turn(Message("user", "a"), stats=stats, end="length"))
    line = words(answer_line(turns, EN))
    assert "1.2 s to the first word (picture 0.5 s, prompt 0 ms) · 8.2 tokens/s" in line
    assert "120 visual, 2 new, 7 reused tokens · token limit" in line
    assert line.count("token limit") == 3
    assert answer_line([Turn(Message("user", "a"))], EN) == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "40 ms"), (1.25, "1.2 s"), (12.4, "12 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s")],
)
def test_durations(seconds: float, said: str) -> None:
    assert format_seconds(seconds) == said


def test_speeds() -> None:
    assert (format_speed(8.25), format_speed(120.4)) == ("8.2", "120")
