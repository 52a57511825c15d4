"""Say what this machine is and how the model would run on it: `python demo.py doctor`.

Covers CPU, usable cores, memory and limits, the chosen precision with its measurements, and
whether the model is here and how much it needs. Nothing is downloaded, and no weight is loaded
unless --compare-precision asks what a precision costs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vlm.architecture import CONFIG_FILE, read_json
from vlm.checkpoint import working_bytes
from vlm.commands.doctor_compare import (
    FP32,
    PrecisionCost,
    compare_precisions,
    plans_to_compare,
)
from vlm.config import Settings, load_settings
from vlm.decoder_config import DecoderConfig
from vlm.errors import ConfigError, ModelError, VLMError
from vlm.hardware import Hardware, this_machine
from vlm.hub_cache import hub_cache_folder
from vlm.linear import available_kinds
from vlm.loading import spare_bytes, use_threads, verdict_file
from vlm.memory import FreeMemory, free_memory
from vlm.memory_plan import WeightUnit, smaller_plans
from vlm.model_source import DEFAULT_MODEL, HUB_ID, find_model
from vlm.packing import weight_units
from vlm.precision import PrecisionPlan, choose_precision
from vlm.skeleton import build_skeleton
from vlm.units import MIB, format_bytes
from vlm.vision import VisionConfig

EXIT_ERROR = 1

# The default model's published shapes, to say what it needs before it is here.
DEFAULT_UNITS = (
    WeightUnit("vision", "vision", 404_226_048, 2_731_008, 0, can_offload=False),
    WeightUnit("language", "language", 1_720_451_072, 123_904, 0, can_offload=False),
)
DEFAULT_WORKING_BYTES = 590 * MIB
DEFAULT_DISK_BYTES = 4_255_140_312 + 11_500_000
"""Its safetensors file in bf16, and the tokenizer beside it."""


@dataclass(frozen=True)
class ModelReport:
    """What the settings' model is, whether it is here, and what it needs."""

    model: str
    is_present: bool
    folder: str
    """Where it lies or will be kept; empty when that is nowhere."""
    note: str
    """Why it cannot be used yet and what to do, or empty."""
    disk_bytes: int
    """Size of its files; 0 when unknown."""
    free_disk_bytes: int
    """Free on the disk of that folder; 0 when there is none."""
    needs: dict[str, int]
    """Bytes of memory for weights and one answer, by precision; empty when unknown."""


@dataclass(frozen=True)
class Report:
    """Everything the command tells."""

    machine: Hardware
    threads: int
    memory: FreeMemory
    precision: PrecisionPlan | None
    precision_note: str
    """Why no precision could be chosen, or empty."""
    spare_bytes: int
    """Memory a model may take: what is free, less what the settings keep free."""
    model: ModelReport
    comparison: tuple[PrecisionCost, ...] | None = None
    """What precisions cost against fp32; None when that was not asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--model", help="auto, bundled, a name on the Hugging Face Hub, or a folder")
    add("--precision", help="auto, fp32, mixed or int8")
    add("--config", metavar="NAME|FILE", help="settings: a name in configs/, or a TOML file")
    add("--compare-precision", action="store_true",
        help="also load the model that is here and compare its answers with fp32's")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print the report; returns 0, or 1 with a sentence on stderr."""
    try:
        overrides = {"model.model": args.model, "model.precision": args.precision}
        settings = load_settings(args.config, overrides)
        report = diagnose(settings)
        if args.compare_precision:
            report = dataclasses.replace(report, comparison=_compare(settings, report))
    except VLMError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_ERROR
    if args.json:
        text = json.dumps(dataclasses.asdict(report), ensure_ascii=False, indent=2)
    else:
        text = "\n".join(render(report))
    sys.stdout.write(f"{text}\n")
    return 0


def diagnose(settings: Settings) -> Report:
    """Look at the machine, measure precisions if none is remembered, and look for the model."""
    use_threads(settings.model.threads)
    plan, note = None, ""
    try:
        plan = choose_precision(settings.model.precision, verdict_file())
    except ConfigError as error:
        note = str(error)
    return Report(
        machine=this_machine(),
        threads=torch.get_num_threads(),
        memory=free_memory(),
        precision=plan,
        precision_note=note,
        spare_bytes=spare_bytes(settings),
        model=_look_for_model(settings),
    )


def _compare(settings: Settings, report: Report) -> tuple[PrecisionCost, ...]:
    """Compare the precisions of the model that is here, the built-in one where no other is."""
    if report.precision is None:
        raise ConfigError(report.precision_note)
    plans = plans_to_compare(report.precision)
    cache = Path(settings.model.cache_folder or hub_cache_folder()).expanduser()
    found = find_model(settings.model.model, lambda _: None, cache_folder=cache, download=False)
    sys.stderr.write(f"Comparing the precisions of {found.name}.\n")
    needs = _needs_of_folder(found.path)
    return tuple(compare_precisions(found.path, plans, needs, report.spare_bytes))


def _look_for_model(settings: Settings) -> ModelReport:
    wanted = settings.model.model
    cache = Path(settings.model.cache_folder or hub_cache_folder()).expanduser()
    # "auto" means the real model: the built-in one is what it falls to, not what was asked for.
    name = DEFAULT_MODEL if wanted == "auto" else wanted
    try:
        found = find_model(name, lambda _: None, cache_folder=cache, download=False)
    except ModelError as error:
        is_folder = Path(name).expanduser().is_dir()
        if HUB_ID.fullmatch(name) and not is_folder:
            return _report_absent(name, wanted, cache)
        # A folder, a name that is none, or a damaged built-in model.
        return ModelReport(name, False, name if is_folder else "", str(error), 0, 0, {})
    return ModelReport(
        model=found.name,
        is_present=True,
        folder=str(found.path),
        note="",
        disk_bytes=sum(path.stat().st_size for path in found.path.iterdir() if path.is_file()),
        free_disk_bytes=_free_disk_bytes(found.path),
        needs=_needs_of_folder(found.path),
    )


def _report_absent(name: str, wanted: str, cache: Path) -> ModelReport:
    """Report a model of the hub that is not here, and how it comes."""
    note = "It is fetched at the first start with a network; or give its folder: --model FOLDER."
    if wanted == "auto":
        note += " Until then the small built-in model answers."
    is_default = name == DEFAULT_MODEL
    return ModelReport(
        model=name,
        is_present=False,
        folder=str(cache),
        note=note,
        disk_bytes=DEFAULT_DISK_BYTES if is_default else 0,
        free_disk_bytes=_free_disk_bytes(cache),
        needs=_needs(DEFAULT_UNITS, DEFAULT_WORKING_BYTES) if is_default else {},
    )


def _needs_of_folder(folder: Path) -> dict[str, int]:
    config = read_json(folder / CONFIG_FILE)
    working = working_bytes(DecoderConfig.from_config(config), VisionConfig.from_config(config), 1)
    return _needs(weight_units(build_skeleton(folder)), working)


def _needs(units: Sequence[WeightUnit], working: int) -> dict[str, int]:
    """Bytes of memory by precision, for those that this machine can compute in."""
    needs: dict[str, int] = {}
    for plan in (FP32, *smaller_plans(FP32, available_kinds())):
        # Two plans of one name differ in the vision part; the first is what the name means.
        needs.setdefault(plan.name, sum(unit.nbytes(plan) for unit in units) + working)
    return needs


def _free_disk_bytes(folder: Path) -> int:
    """Free bytes on the disk a folder is on, or will be on once it is made."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def render(report: Report) -> list[str]:
    """Write the report for people, one fact a line."""
    return [
        *_section("This machine", _machine_rows(report)),
        "",
        *_section("Precision", _precision_rows(report)),
        "",
        *_section("Model", _model_rows(report)),
        *_comparison_lines(report),
    ]


def _section(title: str, rows: list[tuple[str, str]]) -> list[str]:
    return [title, *(f"  {name:<18}{value}".rstrip() for name, value in rows)]


def _machine_rows(report: Report) -> list[tuple[str, str]]:
    machine, memory = report.machine, report.memory
    quota = "no quota" if machine.quota_cores is None else f"a quota of {machine.quota_cores:g}"
    nodes = ", ".join(
        f"node {node.index}: {len(node.cpus)} CPUs, {format_bytes(node.memory_bytes)}"
        for node in machine.numa_nodes
    )
    limit = machine.memory_limit_bytes
    return [
        ("CPU", f"{machine.cpu_name} ({machine.system}, {machine.architecture})"),
        ("Instruction sets", " ".join(machine.instruction_sets) or "none that matter here"),
        (
            "Usable cores",
            f"{machine.usable_cores} (of {machine.logical_cores} hardware threads; affinity "
            f"{machine.affinity_cores}, physical {machine.physical_cores}, {quota})",
        ),
        ("Threads", str(report.threads)),
        ("NUMA nodes", nodes or "not told by this system"),
        ("Memory", format_bytes(machine.memory_bytes)),
        ("Container limit", format_bytes(limit) if limit else "none"),
        ("Free memory", format_bytes(memory.available_bytes)),
        ("For the model", format_bytes(report.spare_bytes)),
    ]


def _precision_rows(report: Report) -> list[tuple[str, str]]:
    plan = report.precision
    if plan is None:
        return [("None", report.precision_note)]
    rows = [
        ("Chosen", f"{plan.name} (vision {plan.vision}, language {plan.language})"),
        ("Why", plan.reason),
    ]
    # "fp16_256_rows_s" -> "fp16, 256 rows"
    for name, seconds in plan.measurements.items():
        kind, _, shape = name.removesuffix("_s").partition("_")
        rows.append(("Measured", f"{kind}, {shape.replace('_', ' ')}: {1000 * seconds:.2f} ms"))
    return rows


def _model_rows(report: Report) -> list[tuple[str, str]]:
    model = report.model
    rows = [("Name", model.model), ("Here", "yes" if model.is_present else "no")]
    rows += [("Note", model.note)] if model.note else []
    rows += [("Folder", model.folder)] if model.folder else []
    rows += [("Disk needed", format_bytes(model.disk_bytes))] if model.disk_bytes else []
    rows += [("Free disk", format_bytes(model.free_disk_bytes))] if model.free_disk_bytes else []
    for name, need in model.needs.items():
        fits = "fits" if need <= report.spare_bytes else "more than may be taken"
        rows += [("Memory needed", f"{name}: {format_bytes(need)} ({fits})")]
    return rows


def _comparison_lines(report: Report) -> list[str]:
    if report.comparison is None:
        return []
    rows = [
        (
            cost.precision,
            f"the same most likely token at {cost.top1_agreement:.2%} of {cost.tokens} tokens in "
            f"{cost.answers} answers, mean KL {cost.mean_kl:.2g} nats "
            f"(vision {cost.vision}, language {cost.language})",
        )
        for cost in report.comparison
    ]
    return ["", *_section("Compared with fp32", rows)]
