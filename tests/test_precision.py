"""The plan follows the measurement, is remembered per machine, and says why."""

from __future__ import annotations

import json
import time

import pytest

from vlm import precision
from vlm.errors import ConfigError
from vlm.linear import available_kinds
from vlm.precision import choose_precision, fastest_plan, measure

FBGEMM_WINS = {
    "fp32_1_row_s": 2.4e-3,
    "fp32_256_rows_s": 40e-3,
    "fp16_1_row_s": 1.0e-3,
    "fp16_256_rows_s": 30e-3,
    "bf16_1_row_s": 1.2e-3,
    "bf16_256_rows_s": 280e-3,
}


@pytest.fixture
def fake_measure(monkeypatch):
    """Replace the measurement by fixed numbers and count how often it is asked for."""
    calls: list[int] = []

    def use(measurements):
        def fake():
            calls.append(1)
            return dict(measurements)

        monkeypatch.setattr(precision, "measure", fake)
        monkeypatch.setattr(precision, "available_kinds", lambda: ("fp32", "bf16", "fp16", "int8"))
        return calls

    return use


def test_fbgemm_wins_without_native_bf16():
    plan = fastest_plan(FBGEMM_WINS)
    assert (plan.name, plan.vision, plan.language) == ("mixed", "fp16", "fp16")
    assert "2.4x" in plan.reason
    assert "1.3x" in plan.reason


def test_native_bf16_wins_where_it_is_fast():
    plan = fastest_plan(FBGEMM_WINS | {"bf16_1_row_s": 0.9e-3, "bf16_256_rows_s": 5e-3})
    assert (plan.name, plan.vision, plan.language) == ("mixed", "fp32", "bf16")
    assert "bf16" in plan.reason


def test_fp32_where_nothing_else_wins(monkeypatch):
    monkeypatch.setattr(precision, "available_kinds", lambda: ("fp32", "bf16"))
    slow = {key: value for key, value in FBGEMM_WINS.items() if not key.startswith("fp16")}
    plan = fastest_plan(slow | {"bf16_1_row_s": 2.4e-3})
    assert (plan.name, plan.vision, plan.language) == ("fp32", "fp32", "fp32")
    assert "fp32 is fastest" in plan.reason


def test_busy_x86_machine_gets_16_bit_weights_unmeasured(monkeypatch):
    monkeypatch.setattr(precision, "available_kinds", lambda: ("fp32", "bf16", "fp16", "int8"))
    fp32 = {key: value for key, value in FBGEMM_WINS.items() if key.startswith("fp32")}
    plan = fastest_plan(fp32)
    assert (plan.name, plan.language) == ("mixed", "fp16")
    assert "too busy" in plan.reason


def test_slow_prompts_outweigh_slightly_faster_tokens(monkeypatch):
    monkeypatch.setattr(precision, "available_kinds", lambda: ("fp32", "bf16"))
    plan = fastest_plan(
        {
            "fp32_1_row_s": 2.4e-3,
            "fp32_256_rows_s": 40e-3,
            "bf16_1_row_s": 2.3e-3,
            "bf16_256_rows_s": 280e-3,
        }
    )
    assert plan.language == "fp32"


def test_fixed_plans_measure_nothing(fake_measure, tmp_path):
    calls = fake_measure(FBGEMM_WINS)
    assert choose_precision("fp32", tmp_path / "v.json").language == "fp32"
    int8 = choose_precision("int8", tmp_path / "v.json")
    assert (int8.name, int8.vision, int8.language) == ("int8", "fp16", "int8")
    assert calls == []


def test_auto_never_chooses_int8(fake_measure):
    fake_measure(FBGEMM_WINS | {"int8_1_row_s": 1e-4, "int8_256_rows_s": 1e-3})
    assert choose_precision("auto", None).language == "fp16"


def test_int8_without_kernels_says_what_to_do(monkeypatch):
    monkeypatch.setattr(precision, "available_kinds", lambda: ("fp32", "bf16"))
    with pytest.raises(ConfigError, match="--precision mixed"):
        choose_precision("int8", None)


def test_verdict_is_remembered(fake_measure, tmp_path):
    calls = fake_measure(FBGEMM_WINS)
    file = tmp_path / "deep" / "verdict.json"
    first = choose_precision("auto", file)
    assert choose_precision("auto", file) == first
    assert choose_precision("mixed", file) == first
    assert len(calls) == 1


@pytest.mark.parametrize("what", ["threads", "torch", "cpu"])
def test_another_machine_is_measured_anew(fake_measure, monkeypatch, tmp_path, what):
    calls = fake_measure(FBGEMM_WINS)
    file = tmp_path / "verdict.json"
    choose_precision("auto", file)
    if what == "threads":
        monkeypatch.setattr(precision.torch, "get_num_threads", lambda: 97)
    elif what == "torch":
        monkeypatch.setattr(precision.torch, "__version__", "9.9")
    else:
        other = precision.this_machine().__class__(
            **{**vars(precision.this_machine()), "cpu_name": "another CPU"}
        )
        monkeypatch.setattr(precision, "this_machine", lambda: other)
    choose_precision("auto", file)
    assert len(calls) == 2
    assert len(json.loads(file.read_text())) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": 1}', "nan"])
def test_damaged_file_is_measured_anew_and_replaced(fake_measure, tmp_path, content):
    calls = fake_measure(FBGEMM_WINS)
    file = tmp_path / "verdict.json"
    file.write_text(content)
    choose_precision("auto", file)
    choose_precision("auto", file)
    assert len(calls) == 1


def test_damaged_numbers_are_measured_anew(fake_measure, tmp_path):
    calls = fake_measure(FBGEMM_WINS)
    file = tmp_path / "verdict.json"
    choose_precision("auto", file)
    verdicts = json.loads(file.read_text())
    next(iter(verdicts.values()))["fp16_1_row_s"] = -1.0
    file.write_text(json.dumps(verdicts))
    choose_precision("auto", file)
    assert len(calls) == 2


def test_incomplete_measurement_is_used_but_not_remembered(fake_measure, tmp_path):
    partial = {key: value for key, value in FBGEMM_WINS.items() if not key.startswith("bf16")}
    calls = fake_measure(partial)
    file = tmp_path / "verdict.json"
    assert choose_precision("auto", file).language == "fp16"
    assert choose_precision("auto", file).language == "fp16"
    assert len(calls) == 2


def test_unwritable_file_is_no_fault(fake_measure, tmp_path):
    fake_measure(FBGEMM_WINS)
    (tmp_path / "file").write_text("")
    assert choose_precision("auto", tmp_path / "file" / "verdict.json").language == "fp16"


def test_real_measurement_is_short_and_leads_to_a_plan():
    start = time.perf_counter()
    measurements = measure()
    assert time.perf_counter() - start < 10  # about 1 s on an idle machine
    assert {"fp32_1_row_s", "fp32_256_rows_s"} <= measurements.keys()
    assert all(0 < seconds < 10 for seconds in measurements.values())
    assert measurements["fp32_256_rows_s"] > measurements["fp32_1_row_s"]
    plan = fastest_plan(measurements)
    assert plan.language in available_kinds()
    assert plan.reason.endswith(".")


def test_measurement_out_of_time_still_has_fp32(monkeypatch):
    monkeypatch.setattr(precision, "MEASURE_S", 0.0)
    assert measure().keys() == {"fp32_1_row_s", "fp32_256_rows_s"}
