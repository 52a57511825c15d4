"""doctor --compare-precision: the figures, their bounds on the built-in model, and its refusals."""

import argparse
import gc
import json
import math
import weakref
from pathlib import Path

import pytest
import torch

from vlm.checkpoint import load_model
from vlm.commands import doctor, doctor_compare
from vlm.commands.doctor_compare import (
    ANSWER_TOKENS,
    FP32,
    Answer,
    compare_precisions,
    cost_of,
    plans_to_compare,
)
from vlm.commands.doctor_pictures import QUESTIONS, draw_pictures
from vlm.errors import ConfigError, MemoryLimitError
from vlm.linear import available_kinds
from vlm.model import QwenVL
from vlm.precision import PrecisionPlan, choose_precision

NEEDS_INT8 = pytest.mark.skipif("int8" not in available_kinds(), reason="no int8 kernels here")


@pytest.fixture(autouse=True)
def keep_threads():
    """Give torch back the threads it had before the command set its own."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare on one picture and one question, to be quick."""
    monkeypatch.setattr(doctor_compare, "draw_pictures", lambda: draw_pictures()[:1])
    monkeypatch.setattr(doctor_compare, "QUESTIONS", QUESTIONS[:1])


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.run(parser.parse_args(flags))


def answer(*rows: list[float]) -> Answer:
    """An answer with these probabilities."""
    return Answer([0] * len(rows), torch.tensor(rows).log())


def test_figures_follow_from_the_distributions() -> None:
    fp32 = [answer([0.5, 0.25, 0.25], [0.75, 0.125, 0.125]), answer([0.25, 0.25, 0.5])]
    other = [answer([0.25, 0.5, 0.25], [0.75, 0.125, 0.125]), answer([0.25, 0.25, 0.5])]
    cost = cost_of(PrecisionPlan("int8", "fp16", "int8", "", {}), fp32, other)
    assert (cost.precision, cost.vision, cost.language) == ("int8", "fp16", "int8")
    assert (cost.answers, cost.tokens) == (2, 3)
    assert cost.top1_agreement == pytest.approx(2 / 3)
    assert cost.mean_kl == pytest.approx(0.25 * math.log(2) / 3)  # of the first row alone


@NEEDS_INT8
def test_precisions_cost_little_on_the_built_in_model(
    bundled_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--compare-precision", "--model", str(bundled_folder), "--precision", "mixed"]
    assert run(*flags, "--json") == 0
    told = json.loads(capsys.readouterr().out)["comparison"]
    by_name = {cost["precision"]: cost for cost in told}
    # Where nothing is faster than fp32, "mixed" is fp32 and only int8 is compared.
    assert by_name.keys() - {"mixed"} == {"int8"}
    answers = len(QUESTIONS) * len(draw_pictures())
    for cost in told:
        assert cost["answers"] == answers
        assert answers < cost["tokens"] <= answers * ANSWER_TOKENS
    assert by_name["int8"]["top1_agreement"] >= 0.9
    assert 0 < by_name["int8"]["mean_kl"] < 0.01
    if "mixed" in by_name:
        assert by_name["mixed"]["top1_agreement"] >= 0.98
        assert by_name["mixed"]["mean_kl"] < min(0.001, by_name["int8"]["mean_kl"])


def test_fp32_costs_nothing_against_itself(bundled_folder: Path, one_question: None) -> None:
    (cost,) = compare_precisions(bundled_folder, [FP32], {}, 10**12)
    assert cost.tokens >= 2
    assert (cost.top1_agreement, cost.mean_kl) == (1.0, pytest.approx(0.0, abs=1e-9))


def test_a_damaged_model_is_seen(
    bundled_folder: Path, one_question: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []

    def load(folder: Path, plan: PrecisionPlan, available_bytes: int) -> QwenVL:
        model = load_model(folder, plan, available_bytes=available_bytes)
        if loaded:
            model.decoder._norm[::2] = 0.0
        loaded.append(plan)
        return model

    monkeypatch.setattr(doctor_compare, "load_model", load)
    (cost,) = compare_precisions(bundled_folder, [FP32], {}, 10**12)
    assert cost.mean_kl > 0.1


def test_there_is_never_more_than_one_model_in_memory(
    bundled_folder: Path, one_question: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[weakref.ref[QwenVL]] = []
    alive: list[int] = []

    def load(folder: Path, plan: PrecisionPlan, available_bytes: int) -> QwenVL:
        alive.append(sum(reference() is not None for reference in models))
        model = load_model(folder, plan, available_bytes=available_bytes)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(doctor_compare, "load_model", load)
    compare_precisions(bundled_folder, [FP32, FP32], {}, 10**12)
    gc.collect()
    assert alive == [0, 0, 0]


def test_a_model_that_does_not_fit_in_fp32_is_refused_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "spare_bytes", lambda settings: 61 * 2**20)
    monkeypatch.setattr(doctor_compare, "load_model", lambda *_, **__: pytest.fail("loaded"))
    assert run("--compare-precision", "--model", "bundled", "--precision", "int8") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "whole model in fp32 precision" in told.err and "61.0 MiB may be taken" in told.err


def test_a_model_that_had_to_shrink_is_no_reference(
    bundled_folder: Path, one_question: None
) -> None:
    with pytest.raises(MemoryLimitError, match="whole model in fp32"):
        compare_precisions(bundled_folder, [FP32], {}, spare_bytes=60 * 2**20)


@NEEDS_INT8
def test_int8_is_compared_beside_the_chosen_precision() -> None:
    mixed = PrecisionPlan("mixed", "fp16", "fp16", "", {})
    assert [plan.name for plan in plans_to_compare(mixed)] == ["mixed", "int8"]
    assert [plan.name for plan in plans_to_compare(FP32)] == ["int8"]
    int8 = choose_precision("int8", None)
    assert plans_to_compare(int8) == [int8]


def test_fp32_alone_leaves_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_compare, "available_kinds", lambda: ("fp32", "bf16"))
    with pytest.raises(ConfigError, match="nothing to compare with fp32: fp32 was asked for"):
        plans_to_compare(FP32)


def test_a_precision_that_is_not_here_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vlm.precision.available_kinds", lambda: ("fp32",))
    assert run("--compare-precision", "--precision", "int8", "--model", "bundled") == 1
    assert "FBGEMM" in capsys.readouterr().err


@NEEDS_INT8
def test_people_read_the_comparison_below_the_report(
    bundled_folder: Path, one_question: None, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--compare-precision", "--model", str(bundled_folder), "--precision", "int8"]
    assert run(*flags) == 0
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0] == "Compared with fp32"
    assert "int8" in last[1] and "tokens in 1 answers, mean KL" in last[1]
