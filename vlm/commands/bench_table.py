"""The benchmark's result as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlm.commands.bench_row import BenchRow
from vlm.units import format_bytes

HEADINGS = (
    "engine",
    "precision",
    "load",
    "vision",
    "prefill",
    "first token",
    "decode",
    "of limit",
    "follow-up",
    "peak memory",
    "without files",
)


@dataclass(frozen=True)
class BenchResult:
    """All that one run measured."""

    machine: dict[str, object]
    bandwidth_gbps: float
    matmul_gflops: float
    rows: tuple[BenchRow, ...]


def render(result: BenchResult, model: str) -> list[str]:
    """Return the lines of the table, with the ratios to stock where it was measured."""
    lines = [
        f"Model: {model}",
        f"Machine: {result.machine.get('cpu_name', 'unknown CPU')}, "
        f"{result.machine.get('threads')} threads, reads {result.bandwidth_gbps:.1f} GB/s, "
        f"multiplies {result.matmul_gflops:.0f} GFLOP/s",
    ]
    measured = next((row for row in result.rows if row.prompt_tokens), None)
    if measured is not None:
        lines.append(
            f"Question: {measured.prompt_tokens} tokens, {measured.visual_tokens} of them visual; "
            f"answer: {measured.new_tokens} tokens"
        )
    stock = next((row for row in result.rows if row.engine == "stock"), None)
    table = [HEADINGS, *(_cells(row, stock) for row in result.rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
    lines.append("")
    for line in table:
        lines.append(
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        )
    lines += [f"{row.engine} {row.precision}: {row.note}" for row in result.rows if row.note]
    return lines


def _cells(row: BenchRow, stock: BenchRow | None) -> Sequence[str]:
    # Ratios are to stock; without it, and in its own row, there are none.
    base = BenchRow("stock", "") if stock is None or row is stock else stock
    return (
        row.engine,
        row.precision,
        _time(row.load_s, None),
        _time(row.vision_s, base.vision_s),
        _time(row.prefill_s, base.prefill_s),
        _time(row.ttft_s, base.ttft_s),
        "-" if row.decode_tps is None else f"{row.decode_tps:.1f} tok/s{_ratio(row, base)}",
        "-" if row.decode_limit_ratio is None else f"{row.decode_limit_ratio:.0%}",
        _time(row.followup_ttft_s, base.ttft_s),
        "-" if row.peak_rss_bytes is None else format_bytes(row.peak_rss_bytes),
        "-" if row.peak_anon_bytes is None else format_bytes(row.peak_anon_bytes),
    )


def _time(seconds: float | None, stock_s: float | None) -> str:
    if seconds is None:
        return "-"
    ratio = f" ({seconds / stock_s:.2f}x)" if stock_s else ""
    return f"{seconds:.2f} s{ratio}"


def _ratio(row: BenchRow, stock: BenchRow) -> str:
    if not stock.decode_tps or row.decode_tps is None:
        return ""
    return f" ({row.decode_tps / stock.decode_tps:.1f}x)"
