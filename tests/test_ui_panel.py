"""The panel's readings, lines and buttons: bounded, shared by all tabs, cheap, told in words."""

from __future__ import annotations

import html
import re
import time
from dataclasses import replace
from typing import cast

import gradio as gr
import pytest
from fake_engine import READY, FakeEngine, Script

from vlm.config import Settings
from vlm.ui.panel import memory_parts, panel_html
from vlm.ui.readings import KEPT_S, Point, Readings
from vlm.ui.sessions import Session
from vlm.ui.sparkline import sparkline
from vlm.ui.texts import EN, ZH, Texts
from vlm.ui.upkeep import Upkeep, effect_html
from vlm.units import GIB

NOBODY = cast(gr.Request, None)


class Clock:
    """A clock that a test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_readings_of_many_tabs_are_one_and_never_more_than_two_minutes_of_them() -> None:
    engine, clock = FakeEngine(), Clock()
    readings = Readings(engine.memory, clock)
    for _ in range(7):
        readings.latest()
    assert engine.memory_calls == 1
    for _ in range(2000):
        clock.now_s += 0.7
        readings.latest()
    assert len(readings.points()) <= KEPT_S + 1
    assert all(0 <= point.age_s <= KEPT_S for point in readings.points())
    clock.now_s += KEPT_S + 1
    assert readings.points() == []


def test_a_reading_after_a_change_is_new() -> None:
    engine = FakeEngine()
    readings = Readings(engine.memory, Clock())
    readings.latest()
    engine.rss_bytes = 2 * GIB
    assert readings.latest().rss_bytes == 3 * GIB
    assert readings.latest(is_new=True).rss_bytes == 2 * GIB
    assert [point.rss_bytes for point in readings.points()] == [2 * GIB]


def test_a_line_ends_now_stays_inside_and_breaks_where_nobody_looked() -> None:
    line = sparkline([(120, 0), (118, 50), (60, 400), (0, 100)], 100, "<CPU>")
    assert re.findall(r'd="(.*?)"', line) == ["M0.0 30.0h0L2.0 15.0M60.0 0.0h0M120.0 0.0h0"]
    assert 'role="img" aria-label="&lt;CPU&gt;"' in line
    assert 'd=""' in sparkline([], 0, "nothing yet")


@pytest.mark.parametrize("texts", [EN, ZH])
def test_bar_and_lines_are_told_to_screen_readers(texts: Texts) -> None:
    points = [Point(4, 2 * GIB, 10), Point(2, 4 * GIB, 20), Point(0, 3 * GIB, 93)]
    shown = panel_html(FakeEngine().memory(), READY, texts, points)
    labels = [html.unescape(label) for label in re.findall(r'role="img" aria-label="(.*?)"', shown)]
    assert labels == [
        texts.process.format(size="3.00 GiB"),
        texts.memory_line.format(now="3.00 GiB", most="4.00 GiB"),
        texts.cpu_line.format(percent="93"),
    ]


def test_segments_are_as_wide_as_the_parts() -> None:
    reading = FakeEngine().memory()
    shown = panel_html(reading, READY, EN)
    widths = {n: float(w) for n, w in re.findall(r'<i class="(\w+)" style="width:(.*?)%"', shown)}
    for name, _, size in memory_parts(reading, EN):
        assert widths[name] == pytest.approx(100 * size / reading.total_bytes, abs=0.01)
    assert sum(widths.values()) == pytest.approx(100 * 3 / 8, abs=0.05)


def test_the_size_of_the_model_is_told_once_it_is_known() -> None:
    reading = FakeEngine().memory()
    assert "parameters" not in panel_html(reading, READY, EN)
    large = panel_html(reading, replace(READY, parameters=2_127_532_032), EN)
    assert "2.1B parameters, 2.00 GiB" in large
    assert "12M 参数" in panel_html(reading, replace(READY, parameters=12_000_000), ZH)


def test_the_panel_costs_less_than_a_hundredth_of_a_core() -> None:
    engine, clock = FakeEngine(), Clock()
    readings = Readings(engine.memory, clock)
    began_s, looks = time.thread_time(), 200
    for _ in range(looks):
        clock.now_s += 2
        panel_html(readings.latest(), READY, EN, readings.points())
    assert (time.thread_time() - began_s) / looks < 0.01 * 2


def upkeep(engine: FakeEngine, session: Session) -> Upkeep:
    return Upkeep(engine, Settings(), lambda request: session)


@pytest.mark.parametrize("texts", [EN, ZH])
def test_freeing_says_how_much_it_was(texts: Texts) -> None:
    buttons = upkeep(FakeEngine(), Session(language=texts.language))
    assert buttons.free(NOBODY) == effect_html(texts.freed.format(size="128 MiB"))
    assert buttons.free(NOBODY) == effect_html(texts.nothing_to_free)


def test_a_warm_up_says_how_long_the_first_token_took_and_runs_once_at_a_time() -> None:
    engine = FakeEngine()
    buttons = upkeep(engine, Session())
    running = buttons.warm_up(NOBODY)
    button, said = next(running)
    assert not button["interactive"] and EN.warming_up in said
    assert [said for _, said in buttons.warm_up(NOBODY)] == [effect_html(EN.warming_up)]
    button, said = next(running)
    assert button["interactive"] and said == effect_html("Ready: first token after 1.2 s.")
    assert len(engine.requests) == 1
    assert len(list(buttons.warm_up(NOBODY))) == 2


def test_a_warm_up_that_fails_says_why_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    full = list(upkeep(FakeEngine(is_full=True), Session()).warm_up(NOBODY))
    assert "the limit is &lt;16&gt;" in full[-1][1]
    broken = FakeEngine(script=Script(error=ZeroDivisionError("secret path")))
    button, said = list(upkeep(broken, Session()).warm_up(NOBODY))[-1]
    assert button["interactive"] and EN.broke in said and "secret" not in said
    assert "secret path" in caplog.text
