"""doctor: what it tells is what the machine, the precision and the model folder really are."""

import argparse
import json
import shutil
from pathlib import Path

import pytest
import torch

from vlm.checkpoint import working_bytes
from vlm.commands import doctor
from vlm.commands.bench_random import GEOMETRY_2B
from vlm.config import load_settings
from vlm.decoder_config import DecoderConfig
from vlm.hardware import this_machine
from vlm.memory_plan import WeightUnit
from vlm.model_source import DEFAULT_MODEL
from vlm.packing import weight_units
from vlm.skeleton import build_skeleton
from vlm.vision import VisionConfig

# The published config.json of Qwen3-VL-2B-Instruct, as far as it sets shapes.
PUBLISHED = json.loads(GEOMETRY_2B.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def keep_threads():
    """Give torch back the threads it had before the command set its own."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.run(parser.parse_args(flags))


def test_json_tells_the_machine_the_precision_and_the_model(
    bundled_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--model", "bundled", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    machine = this_machine()
    assert told["machine"]["usable_cores"] == machine.usable_cores
    assert told["machine"]["instruction_sets"] == list(machine.instruction_sets)
    assert told["memory"]["total_bytes"] <= machine.memory_bytes
    assert told["precision"]["measurements"].keys() >= {"fp32_1_row_s", "fp32_256_rows_s"}
    assert told["model"]["is_present"] is True
    assert told["model"]["folder"] == str(bundled_folder)
    weights = (bundled_folder / "model.safetensors").stat().st_size
    assert weights < told["model"]["disk_bytes"] < 2 * weights
    assert told["model"]["needs"]["fp32"] > 2 * weights  # stored in 16 bits, held in 32


def test_people_read_the_same(bundled_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", str(bundled_folder), "--precision", "fp32") == 0
    text = capsys.readouterr().out
    machine = this_machine()
    assert machine.cpu_name in text
    assert f"{machine.usable_cores} (of {machine.logical_cores} hardware threads" in text
    assert "fp32 (vision fp32, language fp32)" in text
    assert "Here              yes" in text
    assert "(fits)" in text


def test_without_the_real_model_it_says_what_that_would_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "mine.toml"
    settings.write_text(f"[model]\ncache_folder = '{tmp_path}/not/yet/made'\n")
    assert run("--precision", "fp32", "--config", str(settings), "--json") == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert (model["model"], model["is_present"]) == (DEFAULT_MODEL, False)
    assert model["folder"] == f"{tmp_path}/not/yet/made"
    assert model["free_disk_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert "small built-in model answers" in model["note"]
    assert not (tmp_path / "not").exists()
    assert run("--precision", "fp32", "--config", str(settings)) == 0
    assert "Disk needed       3.97 GiB" in capsys.readouterr().out


def test_what_the_real_model_would_need_follows_from_its_published_shapes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    skeleton = build_skeleton(tmp_path)
    units = weight_units(skeleton)
    for summed in doctor.DEFAULT_UNITS:
        mine = [unit for unit in units if unit.part == summed.part]
        expected = WeightUnit(
            summed.part,
            summed.part,
            sum(unit.matrix_elements for unit in mine),
            sum(unit.other_elements for unit in mine),
            0,
            can_offload=False,
        )
        assert summed == expected
    weights_bytes = 2 * skeleton.parameters
    assert weights_bytes < doctor.DEFAULT_DISK_BYTES < 1.01 * weights_bytes
    working = working_bytes(
        DecoderConfig.from_config(PUBLISHED), VisionConfig.from_config(PUBLISHED), 1
    )
    assert doctor.DEFAULT_WORKING_BYTES == pytest.approx(working, rel=0.02)


def test_a_smaller_precision_needs_less(bundled_folder: Path) -> None:
    settings = load_settings(None, {"model.model": "bundled", "model.precision": "fp32"})
    needs = doctor.diagnose(settings).model.needs
    assert list(needs.values()) == sorted(needs.values(), reverse=True)
    assert len(set(needs.values())) == len(needs)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("Some/Other-Model", "fetched at the first start"),
        ("no such thing", "neither a folder nor a model's name"),
    ],
)
def test_a_model_that_is_not_here_is_explained(
    model: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--model", model, "--precision", "fp32") == 0
    text = capsys.readouterr().out
    assert "Here              no" in text
    assert words in text
    assert "Memory needed" not in text  # unknown, so nothing is claimed


def test_a_folder_without_a_model_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--model", str(tmp_path), "--precision", "fp32", "--json") == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert not model["is_present"]
    assert "holds no config.json" in model["note"]


def test_a_wrong_flag_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--precision", "int9") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert 'did you mean "int8"?' in told.err


def test_a_precision_this_machine_lacks_does_not_hide_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vlm.precision.available_kinds", lambda: ("fp32",))
    assert run("--precision", "int8", "--model", "bundled") == 0
    text = capsys.readouterr().out
    assert "needs PyTorch's FBGEMM kernels" in text
    assert this_machine().cpu_name in text
