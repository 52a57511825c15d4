"""The benchmark on a tiny geometry: random weights, stock and ours, the table and the JSON."""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from PIL import Image
from tiny_checkpoint import tiny_config

from vlm.architecture import read_json
from vlm.checkpoint import load_model
from vlm.commands import bench, bench_run, bench_worker
from vlm.commands.bench_questions import ask, noise_picture
from vlm.commands.bench_random import GEOMETRY_2B, write_random_checkpoint
from vlm.commands.bench_row import BenchJob, BenchRow, PeakAnon
from vlm.commands.bench_table import BenchResult, render
from vlm.errors import CheckpointError, ConfigError
from vlm.linear import available_kinds
from vlm.patches import patch_picture
from vlm.precision import PrecisionPlan
from vlm.prompt import ChatTokenizer
from vlm.skeleton import build_skeleton

FP32 = PrecisionPlan("fp32", "fp32", "fp32", "", {})
ROW_KEYS = {
    "engine", "precision", "load_s", "vision_s", "prefill_s", "ttft_s", "decode_tps",
    "decode_limit_ratio", "followup_ttft_s", "readahead_ttft_s", "chats_tps",
    "speculation_ratio", "peak_rss_bytes", "peak_anon_bytes",
}  # fmt: skip


@pytest.fixture
def geometry(tmp_path: Path, bundled_folder: Path) -> Path:
    """A config.json of a tiny model, without the token ids of the built-in tokenizer."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(tiny_config(bundled_folder, is_tied=True)))
    return path


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[BenchJob]:
    """Run the workers' jobs in this process, with small limits; returns them as they come."""
    jobs: list[BenchJob] = []

    def run_here(job: BenchJob) -> dict[str, object]:
        jobs.append(job)
        return bench_worker.measure(job)

    monkeypatch.setattr(bench_run, "run_worker", run_here)
    monkeypatch.setattr(bench_worker, "BANDWIDTH_BYTES", 2**22)
    monkeypatch.setattr(bench_worker, "MATMUL_SIDE", 64)
    return jobs


def parse(*flags: str) -> argparse.Namespace:
    """Read flags as the command does."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(flags)


def test_built_in_geometry_is_that_of_the_2b_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(GEOMETRY_2B.read_bytes())
    skeleton = build_skeleton(tmp_path)
    assert skeleton.parameters == 2_127_532_032
    assert skeleton.is_tied


def test_random_checkpoint_loads_like_any_other_and_is_kept(tmp_path: Path, geometry: Path) -> None:
    folder = tmp_path / "random"
    seen: list[tuple[int, int]] = []
    write_random_checkpoint(
        folder, geometry, lambda done, total: seen.append((done, total)), 100_000
    )
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 3 and seen[-1][0] == seen[-1][1]
    assert load_model(folder, FP32, available_bytes=10**12).info.parameters > 100_000
    first = [path.stat().st_mtime_ns for path in shards]
    write_random_checkpoint(folder, geometry)
    assert [path.stat().st_mtime_ns for path in shards] == first
    shards[0].write_bytes(b"damaged")
    write_random_checkpoint(folder, geometry, shard_bytes=100_000)
    load_model(folder, FP32, available_bytes=10**12)


def test_geometry_that_cannot_run_is_refused(tmp_path: Path, geometry: Path) -> None:
    config = read_json(geometry)
    geometry.write_text(json.dumps({**config, "model_type": "qwen3_vl_moe"}))
    with pytest.raises(CheckpointError, match="Supported are the dense"):
        write_random_checkpoint(tmp_path / "random", geometry)
    config["text_config"]["vocab_size"] = 100
    geometry.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="vocab_size of at least"):
        write_random_checkpoint(tmp_path / "random", geometry)


def test_random_weights_measure_stock_and_every_precision(
    tmp_path: Path,
    geometry: Path,
    in_process: list[BenchJob],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows: list[BenchRow] = []
    monkeypatch.setattr(BenchResult, "notes", lambda self: rows.extend(self.rows) or [])
    flags = ["--random-weights", "--geometry", str(geometry), "--scratch", str(tmp_path / "s")]
    flags += ["--picture", "256x320", "--new-tokens", "4", "--rounds", "1", "--turns", "2"]
    plot = tmp_path / "figures"
    assert bench.run(parse(*flags, "--stock", "--json", "--plot", str(plot))) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == {"machine", "bandwidth_gbps", "matmul_gflops", "rows"}
    assert result["bandwidth_gbps"] > 0 and result["matmul_gflops"] > 0
    kinds = 3 if "int8" in available_kinds() else 2
    assert len(result["rows"]) == 1 + kinds == len(in_process) - 1
    assert [row["engine"] for row in result["rows"]] == ["stock"] + ["ours"] * kinds
    for row in result["rows"]:
        assert row.keys() == ROW_KEYS
        for figure in ("load_s", "vision_s", "prefill_s", "ttft_s", "decode_tps"):
            assert row[figure] > 0, (row["engine"], figure)
        assert row["followup_ttft_s"] > 0 and row["decode_limit_ratio"] > 0
        assert row["chats_tps"].keys() == {"1", "4"}
        assert row["chats_tps"]["1"] > 0
        assert (row["readahead_ttft_s"] is None) == (row["engine"] == "stock")
        assert row["speculation_ratio"] is None  # random weights write nothing to guess
        assert (row["chats_tps"]["4"] is None) == (row["engine"] == "stock")
        assert row["peak_rss_bytes"] > 10**8
        assert row["ttft_s"] >= row["vision_s"] + row["prefill_s"] - 1e-6
    stock, *ours = rows
    assert all(row.visual_tokens == 80 and row.prompt_tokens >= 110 for row in rows)
    assert stock.followup_new_tokens > 110  # it reads everything again
    assert all(row.followup_new_tokens < 40 for row in ours)
    assert (tmp_path / "s" / "config.json").exists()
    with Image.open(plot) as picture:
        assert picture.format == "PNG"


def test_a_model_without_stock(
    bundled_folder: Path, in_process: list[BenchJob], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(bundled_folder), "--precision", "fp32", "--rounds", "1"]
    flags += ["--new-tokens", "3", "--turns", "0", "--picture", "256x256", "--chats", "1"]
    assert bench.run(parse(*flags)) == 0
    table = capsys.readouterr().out
    assert [job.engine for job in in_process] == ["limits", "ours"]
    assert "ours    fp32" in table and "stock" not in table
    assert re.search(r"of them visual; answer: [123] tokens", table)


def test_worker_process_speaks_json(bundled_folder: Path) -> None:
    job = BenchJob("ours", str(bundled_folder), "no such", 64, 64, 2, 0, 1, 1)
    done = subprocess.run(
        [sys.executable, "-m", "vlm.commands.bench_worker"],
        input=json.dumps(dataclasses.asdict(job)),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "precision" in json.loads(done.stdout.splitlines()[-1])["error"]


def test_a_killed_worker_is_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess([], -9, stdout="")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: killed)
    row = bench_run.measure_engine(BenchJob("stock", "x", "fp32", 64, 64, 2, 0, 1, 1))
    assert row.ttft_s is None and "want of memory" in row.note


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--precision", "int4"], "int4 is unknown"),
        (["--random-weights", "--model", "auto"], "exclude each other"),
        (["--new-tokens", "1"], "at least 2"),
        (["--chats", "0"], "from 1 to 64"),
        (["--plot", "no/such/folder/x.png"], "there is no folder no/such/folder"),
        (["--url", "http://127.0.0.1:1/v1", "--stock"], "leave out"),
        (["--api-key-env", "KEY"], "belongs to --url"),
    ],
)
def test_wrong_flags(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run(parse(*flags)) == 1
    assert words in capsys.readouterr().err


def test_wrong_picture_size(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--picture", "448")
    assert "not a size such as 448x448" in capsys.readouterr().err


def test_questions_have_the_length_that_is_wanted(bundled_folder: Path) -> None:
    tokenizer = ChatTokenizer.from_folder(bundled_folder)
    geometry = bench_geometry(bundled_folder)
    picture = noise_picture(256, 256, seed=1)
    patched = patch_picture(picture, geometry, 16384)
    message, prompt = ask(tokenizer, [], (patched,), picture, 64 + 30)
    assert 94 <= len(prompt.token_ids) < 94 + 12
    assert message.pictures == (picture,)
    assert noise_picture(256, 256, seed=2).content_hash != picture.content_hash


def bench_geometry(folder: Path) -> object:
    """The picture geometry of a folder."""
    from vlm.picture_size import PictureGeometry

    return PictureGeometry.from_folder(folder)


def test_peak_anon_sees_what_was_freed() -> None:
    with PeakAnon() as anon:
        before = anon.peak_bytes
        block = bytearray(80_000_000)
        anon.look()
        del block
    if before is None:
        pytest.skip("only Linux tells anonymous memory")
    assert anon.peak_bytes is not None and anon.peak_bytes >= before + 70_000_000


def test_table_shows_ratios_to_stock() -> None:
    stock = BenchRow("stock", "fp32", ttft_s=10.0, vision_s=4.0, decode_tps=2.0)
    ours = BenchRow("ours", "int8", ttft_s=5.0, vision_s=4.0, decode_tps=10.0, note="a note")
    ours.followup_ttft_s, ours.decode_limit_ratio = 0.5, 0.85
    ours.peak_rss_bytes = 3 * 2**30
    lines = render(BenchResult({"cpu_name": "X", "threads": 2}, 29.0, 100.0, (stock, ours)), "M")
    assert "29.0 GB/s" in lines[1]
    row = next(line for line in lines if line.startswith("ours  "))
    for cell in ("5.00 s (0.50x)", "10.0 tok/s (5.0x)", "85%", "0.50 s (0.05x)", "3.00 GiB"):
        assert cell in row
    assert lines[-1] == "ours int8: a note"
    assert "read ahead" not in lines[3] and "together" not in lines[3]  # nobody measured them


def test_table_shows_what_several_conversations_get_together() -> None:
    row = BenchRow("ours", "int8", chats_tps={"1": 12.0, "4": None, "8": 42.0})
    row.speculation_ratio = 1.5
    lines = render(BenchResult({"cpu_name": "X", "threads": 2}, 29.0, 100.0, (row,)), "M")
    assert "8: 42.0 tok/s (3.5x)" in lines[-1] and "1.50x" in lines[-1]


def test_json_is_the_same_object_whatever_was_measured() -> None:
    result = BenchResult({"url": "http://x/v1"}, None, None, (BenchRow("server", None),))
    told = json.loads(json.dumps(result.figures()))
    assert told.keys() == {"machine", "bandwidth_gbps", "matmul_gflops", "rows"}
    assert told["rows"][0].keys() == ROW_KEYS
    assert told["rows"][0]["chats_tps"] == {"1": None, "4": None}


def test_share_of_the_limit_counts_the_bytes_of_every_weight_a_token_reads(
    bundled_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"bandwidth_gbps": 20.0, "matmul_gflops": 90.0}
    measured = {"engine": "ours", "precision": "mixed", "decode_tps": 100.0, "ttft_s": 1.0}
    monkeypatch.setattr(
        bench_run, "run_worker", lambda job: rates if job.engine == "limits" else measured
    )
    job = BenchJob("ours", str(bundled_folder), "mixed", 64, 64, 2, 0, 1, 1)
    (row,) = bench_run.measure([job]).rows
    config = read_json(bundled_folder / "config.json")["text_config"]
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv, width = config["num_key_value_heads"], config["head_dim"]
    layer = hidden * (2 * heads + 2 * kv) * width + 3 * hidden * config["intermediate_size"]
    weights = config["num_hidden_layers"] * layer + config["vocab_size"] * hidden
    assert row.decode_limit_ratio == pytest.approx(100.0 * 2 * weights / 20e9)
