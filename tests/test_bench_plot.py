"""The plot: bars as long as their figures, the limit as a mark, what is missing said."""

from pathlib import Path

import pytest
from PIL import Image

from vlm.commands.bench_plot import BARS, LIMIT, length_px, panels_of, write_plot
from vlm.commands.bench_row import BenchRow
from vlm.commands.bench_table import BenchResult
from vlm.errors import ConfigError


def rows() -> tuple[BenchRow, ...]:
    """Stock, ours, and a precision that could not be measured."""
    stock = BenchRow("stock", "fp32", ttft_s=10.0, followup_ttft_s=12.0, decode_tps=2.0)
    ours = BenchRow("ours", "int8", ttft_s=5.0, followup_ttft_s=0.5, decode_tps=12.0)
    stock.decode_limit_ratio, ours.decode_limit_ratio = 0.5, 0.75
    return stock, ours, BenchRow("ours", "mixed", note="out of memory")


def test_figures_stand_beside_their_bars() -> None:
    first, followup, decode = panels_of(rows())
    assert [bar.text for bar in first.bars] == [
        "10.00 s  (1.00x stock's first)",
        "5.00 s  (0.50x stock's first)",
        "not measured",
    ]
    assert followup.bars[1].text == "0.50 s  (0.05x stock's first)"
    assert decode.bars[1].text == "12.0 of 16.0 tok/s  (75%)"
    assert decode.bars[1].limit == pytest.approx(16.0)
    assert decode.bars[2].value is None and decode.bars[2].text == "not measured"


def test_without_stock_or_limit_there_are_no_ratios() -> None:
    row = BenchRow("server", None, ttft_s=3.0, decode_tps=7.0)
    first, _, decode = panels_of([row])
    assert first.bars[0].text == "3.00 s"
    assert decode.bars[0].text == "7.0 tok/s" and decode.bars[0].limit is None


def test_bars_share_one_scale() -> None:
    assert length_px(5.0, 10.0, 600) == 300
    assert length_px(None, 10.0, 600) == 0 and length_px(1.0, 0.0, 600) == 0


def coloured_px(picture: Image.Image, colour: tuple[int, int, int]) -> int:
    """Count the pixels of exactly one colour."""
    return next((n for n, found in picture.getcolors(100_000) or () if found == colour), 0)


def test_picture_shows_the_bars_in_proportion(tmp_path: Path) -> None:
    path = tmp_path / "plot"  # a PNG whatever it is called
    result = BenchResult({"cpu_name": "X" * 300, "threads": 2}, 29.0, 100.0, rows())
    write_plot(result, "A model", path)
    with Image.open(path) as opened:
        assert opened.format == "PNG"
        picture = opened.convert("RGB")
    ours, stock = (coloured_px(picture, BARS[engine]) for engine in ("ours", "stock"))
    # The longest is 10 s, 12 s, and 16 tok/s of the limit.
    assert ours / stock == pytest.approx((5 / 10 + 0.5 / 12 + 12 / 16) / (1 + 1 + 2 / 16), rel=0.03)
    assert coloured_px(picture, LIMIT) > 200


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    result = BenchResult({"cpu_name": "X", "threads": 2}, 29.0, 100.0, rows())
    with pytest.raises(ConfigError, match="--plot FILE"):
        write_plot(result, "A model", tmp_path / "no" / "plot.png")
