"""The benchmark's result as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    "read ahead",
    "together",
    "guesses",
    "peak memory",
    "without files",
)


@dataclass(frozen=True)
class BenchResult:
    """All that one run measured; the rates are None for a server of another program."""

    machine: dict[str, Any]
    bandwidth_gbps: float | None
    matmul_gflops: float | None
    rows: tuple[BenchRow, ...]

    def figures(self) -> dict[str, object]:
        """Return what --json prints: always the same keys, None where not measured."""
        return {
            "machine": self.machine,
            "bandwidth_gbps": self.bandwidth_gbps,
            "matmul_gflops": self.matmul_gflops,
            "rows": [row.figures() for row in self.rows],
        }

    def notes(self) -> list[str]:
        """Say what is missing or other than asked for, row by row."""
        return [f"{row_title(row)}: {row.note}" for row in self.rows if row.note]


def render(result: BenchResult, model: str) -> list[str]:
    """Return the lines of the table, with the ratios to stock where it was measured."""
    lines = [f"Model: {model}", describe_machine(result)]
    measured = next((row for row in result.rows if row.prompt_tokens), None)
    if measured is not None:
        visual = measured.visual_tokens
        shares = "" if visual is None else f", {visual} of them visual"
        lines.append(
            f"Question: {measured.prompt_tokens} tokens{shares}; "
            f"answer: {measured.new_tokens} tokens"
        )
    stock = next((row for row in result.rows if row.engine == "stock"), None)
    return [*lines, "", *_aligned([_cells(row, stock) for row in result.rows]), *result.notes()]


def describe_machine(result: BenchResult) -> str:
    """Return one line on what was measured, and the limits it has."""
    machine = result.machine
    if "url" in machine:
        return f"Server: {machine['url']}"
    line = f"Machine: {machine.get('cpu_name', 'unknown CPU')}, {machine.get('threads')} threads"
    if result.bandwidth_gbps is None or result.matmul_gflops is None:
        return line
    rates = f"{result.bandwidth_gbps:.1f} GB/s, multiplies {result.matmul_gflops:.0f} GFLOP/s"
    return f"{line}, reads {rates}"


def row_title(row: BenchRow) -> str:
    """Name a row by its engine and precision."""
    return f"{row.engine} {row.precision or ''}".strip()


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the rows under their headings; a column that no row measured is left out."""
    measured = [i for i in range(len(HEADINGS)) if any(row[i] != "-" for row in rows)]
    table = [[line[i] for i in measured] for line in (HEADINGS, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]


def _cells(row: BenchRow, stock: BenchRow | None) -> Sequence[str]:
    # Ratios are to stock; without it, and in its own row, there are none.
    base = BenchRow("stock", "") if stock is None or row is stock else stock
    return (
        row.engine,
        row.precision or "-",
        _time(row.load_s, None),
        _time(row.vision_s, base.vision_s),
        _time(row.prefill_s, base.prefill_s),
        _time(row.ttft_s, base.ttft_s),
        "-" if row.decode_tps is None else f"{row.decode_tps:.1f} tok/s{_ratio(row, base)}",
        "-" if row.decode_limit_ratio is None else f"{row.decode_limit_ratio:.0%}",
        _time(row.followup_ttft_s, base.ttft_s),
        _time(row.readahead_ttft_s, base.ttft_s),
        _together(row),
        "-" if row.speculation_ratio is None else f"{row.speculation_ratio:.2f}x",
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


def _together(row: BenchRow) -> str:
    """Tokens per second of several conversations at once, and how many times one alone."""
    alone = row.chats_tps["1"]
    cells = [
        f"{count}: {rate:.1f} tok/s" + (f" ({rate / alone:.1f}x)" if alone else "")
        for count, rate in row.chats_tps.items()
        if count != "1" and rate is not None
    ]
    return ", ".join(cells) or "-"
