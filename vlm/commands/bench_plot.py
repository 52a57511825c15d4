"""Draw the benchmark's figures as bars into a PNG: first token, follow-up, decode and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vlm.commands.bench_row import BenchRow
from vlm.commands.bench_table import BenchResult, describe_machine, row_title
from vlm.errors import ConfigError

WIDTH_PX = 1200
MARGIN_PX = 40
TITLE_PX, TEXT_PX = 30, 20
BAR_PX, GAP_PX = 30, 12
HEAD_PX = 116
PANEL_HEAD_PX = 52
NAME_PX = 170
VALUE_PX = 270
"""Room beside the longest bar for its value."""

INK, FAINT, GRID = (34, 38, 46), (110, 116, 128), (222, 226, 232)
BARS = {"stock": (150, 156, 168), "ours": (0, 132, 132), "server": (40, 72, 214)}
LIMIT = (205, 96, 20)


@dataclass(frozen=True)
class Bar:
    """One bar: whose it is, how long it is and what stands beside it; None was not measured."""

    row: BenchRow
    value: float | None
    text: str
    limit: float | None = None


@dataclass(frozen=True)
class Panel:
    """Bars that share one scale."""

    title: str
    bars: tuple[Bar, ...]


def write_plot(result: BenchResult, model: str, path: Path) -> None:
    """Write the figures as a PNG. Raises ConfigError when the file cannot be written."""
    picture = draw_plot(panels_of(result.rows), model, describe_machine(result))
    try:
        picture.save(path, format="PNG")
    except OSError as error:
        raise ConfigError(
            f"The plot could not be written to {path} ({error.strerror or error}). Give another "
            "file with --plot FILE."
        ) from error


def panels_of(rows: Sequence[BenchRow]) -> list[Panel]:
    """Return what is drawn of the rows, the times with their ratio to stock's first token."""
    stock = next((row for row in rows if row.engine == "stock"), None)
    stock_s = stock.ttft_s if stock else None
    return [
        Panel(
            "First token about a new picture, seconds (less is better)",
            tuple(_time_bar(row, row.ttft_s, stock_s) for row in rows),
        ),
        Panel(
            "First token of a follow-up, seconds (less is better)",
            tuple(_time_bar(row, row.followup_ttft_s, stock_s) for row in rows),
        ),
        Panel(
            "Decode, tokens per second (more is better); the mark is what memory bandwidth allows",
            tuple(_decode_bar(row) for row in rows),
        ),
    ]


def _time_bar(row: BenchRow, seconds: float | None, stock_s: float | None) -> Bar:
    if seconds is None:
        return Bar(row, None, "not measured")
    ratio = f"  ({seconds / stock_s:.2f}x stock's first)" if stock_s else ""
    return Bar(row, seconds, f"{seconds:.2f} s{ratio}")


def _decode_bar(row: BenchRow) -> Bar:
    if row.decode_tps is None:
        return Bar(row, None, "not measured")
    if not row.decode_limit_ratio:
        return Bar(row, row.decode_tps, f"{row.decode_tps:.1f} tok/s")
    limit = row.decode_tps / row.decode_limit_ratio
    text = f"{row.decode_tps:.1f} of {limit:.1f} tok/s  ({row.decode_limit_ratio:.0%})"
    return Bar(row, row.decode_tps, text, limit)


def draw_plot(panels: Sequence[Panel], model: str, machine: str) -> Image.Image:
    """Draw panels one below the other, under the names of model and machine."""
    heights = [PANEL_HEAD_PX + len(p.bars) * (BAR_PX + GAP_PX) + MARGIN_PX for p in panels]
    picture = Image.new("RGB", (WIDTH_PX, HEAD_PX + sum(heights)), "white")
    pen = ImageDraw.Draw(picture)
    most_px = WIDTH_PX - 2 * MARGIN_PX
    pen.text((MARGIN_PX, 28), _fitted(model, TITLE_PX, most_px), INK, _font(TITLE_PX))
    pen.text((MARGIN_PX, 72), _fitted(machine, TEXT_PX, most_px), FAINT, _font(TEXT_PX))
    top = HEAD_PX
    for panel, height in zip(panels, heights, strict=True):
        _draw_panel(pen, panel, top)
        top += height
    return picture


def _draw_panel(pen: ImageDraw.ImageDraw, panel: Panel, top: int) -> None:
    pen.line((MARGIN_PX, top, WIDTH_PX - MARGIN_PX, top), GRID, 2)
    pen.text((MARGIN_PX, top + 14), panel.title, INK, _font(TEXT_PX))
    longest = max((max(bar.limit or 0.0, bar.value or 0.0) for bar in panel.bars), default=0.0)
    left = MARGIN_PX + NAME_PX
    room_px = WIDTH_PX - MARGIN_PX - VALUE_PX - left
    for i, bar in enumerate(panel.bars):
        y = top + PANEL_HEAD_PX + i * (BAR_PX + GAP_PX)
        name = _fitted(row_title(bar.row), TEXT_PX, NAME_PX - 12)
        pen.text((MARGIN_PX, y + BAR_PX // 2), name, INK, _font(TEXT_PX), anchor="lm")
        end = left + length_px(bar.value, longest, room_px)
        mark = left + length_px(bar.limit, longest, room_px)
        if bar.value is not None:
            colour = BARS.get(bar.row.engine, BARS["ours"])
            pen.rectangle((left, y, max(end, left + 1), y + BAR_PX), colour)
        if bar.limit is not None:
            pen.line((end, y + BAR_PX // 2, mark, y + BAR_PX // 2), GRID, 2)
            pen.line((mark, y - 3, mark, y + BAR_PX + 3), LIMIT, 4)
        ink = FAINT if bar.value is None else INK
        at = (max(end, mark) + 14, y + BAR_PX // 2)
        pen.text(at, bar.text, ink, _font(TEXT_PX), anchor="lm")


def length_px(value: float | None, longest: float, room_px: int) -> int:
    """Return the length of a bar, when the longest one takes the whole room."""
    return round(room_px * value / longest) if value is not None and longest > 0 else 0


def _fitted(text: str, size_px: int, most_px: int) -> str:
    """Cut a text to what fits into a line."""
    font = _font(size_px)
    if font.getlength(text) <= most_px:
        return text
    while text and font.getlength(f"{text}...") > most_px:
        text = text[:-1]
    return f"{text}..."


def _font(size_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size_px)
