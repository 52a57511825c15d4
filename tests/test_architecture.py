"""What a reader may rely on: imports point one way, files are small, everything has a test."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest
from conftest import REPOSITORY

VLM = REPOSITORY / "vlm"

# Lowest first. A module imports from its own layer and those before it, never from later ones.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "units", "ending"),
    ("config", "presets", "cgroup", "hardware", "memory"),
    (
        "picture_files",
        "to_rgb",
        "images",
        "picture_size",
        "chat",
        "boxes",
        "box_drawing",
        "warm_up",
    ),
    ("patches", "chat_template", "prompt", "positions", "detokenize", "sampling", "stats"),
    ("linear", "rotary", "precision", "memory_plan", "architecture", "numa"),
    ("hub_cache", "hub_listing", "hub_file", "download", "model_source"),
    ("vision_grid", "vision", "kv_cache", "decoder_config", "fused_layer", "decoder", "model"),
    ("skeleton", "tensor_files", "packing", "checkpoint"),
    ("guesses", "request_checks", "memory_floor", "prompt_pass", "answer_run", "generate"),
    ("answer_stream", "job_queue", "turns", "loading", "engine", "remote", "choose_engine"),
    ("bundled",),
    ("server",),
    ("ui", "commands"),
    ("demo",),
)
LONGER_FILES = {
    "vlm/ui/texts.py": 700,  # a table: every sentence of the page, in two languages
    "vlm/ui/chinese.py": 650,  # a table: every sentence of the engine, in Chinese
    "vlm/bundled/questions.py": 450,  # a table: every way to ask and answer, in two languages
    "vlm/bundled/scenes.py": 450,  # how each shape is drawn
}
"""Files that may be longer than the limit, and how long, each with its reason."""
LINE_LIMIT = 300
TESTED_THROUGH = {
    "demo": "test_ui_browser.py",
    "vlm.bundled": "test_bundled.py",
    "vlm.bundled.easy_vqa_split": "test_batches.py",
    "vlm.bundled.fresh_weights": "test_network.py",
    "vlm.bundled.heads": "test_train.py",
    "vlm.bundled.labels": "test_batches.py",
    "vlm.bundled.losses": "test_train.py",
    "vlm.bundled.packs": "test_batches.py",
    "vlm.bundled.stages": "test_train.py",
    "vlm.chat": "test_engine.py",
    "vlm.choose_engine": "test_remote_start.py",
    "vlm.chat_template": "test_prompt.py",
    "vlm.commands": "test_bench.py",
    "vlm.commands.asking": "test_ask.py",
    "vlm.commands.batch_blank": "test_batch.py",
    "vlm.commands.batch_files": "test_batch.py",
    "vlm.commands.batch_results": "test_batch.py",
    "vlm.commands.batch_work": "test_batch.py",
    "vlm.commands.status_line": "test_ask.py",
    "vlm.decoder_config": "test_decoder.py",
    "vlm.answer_run": "test_generate.py",
    "vlm.generate": "test_equality.py",
    "vlm.hub_cache": "test_model_source.py",
    "vlm.hub_file": "test_download.py",
    "vlm.hub_listing": "test_download.py",
    "vlm.loading": "test_engine.py",
    "vlm.memory_floor": "test_bad_days.py",
    "vlm.packing": "test_checkpoint.py",
    "vlm.picture_files": "test_images.py",
    "vlm.picture_size": "test_patches.py",
    "vlm.prompt_pass": "test_generate.py",
    "vlm.remote": "test_remote_engine.py",
    "vlm.rotary": "test_vision.py",
    "vlm.server": "test_server_operating.py",
    "vlm.skeleton": "test_checkpoint.py",
    "vlm.tensor_files": "test_checkpoint.py",
    "vlm.to_rgb": "test_images.py",
    "vlm.ui": "test_ui_browser.py",
    "vlm.vision_grid": "test_vision.py",
}
"""Modules and packages without a test file of their own: what they are for is tested there."""


@cache
def sources() -> list[Path]:
    """All of the app's own code."""
    return [REPOSITORY / "demo.py", *sorted(VLM.rglob("*.py"))]


@cache
def module_of(path: Path) -> str:
    """Name a file as it is imported: "vlm.ui.panel"."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports_of(path: Path) -> set[str]:
    """Full names of all modules a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; write the full name"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@cache
def own_modules() -> frozenset[str]:
    return frozenset(module_of(path) for path in sources())


@cache
def own_imports(path: Path) -> set[str]:
    return {name for name in imports_of(path) if name in own_modules() and name != "vlm"}


def part_of(module: str) -> str:
    """The name a module has in LAYERS: its first part below vlm, or "demo"."""
    return module.removeprefix("vlm.").split(".")[0]


def layer_of(module: str) -> int:
    part = part_of(module)
    found = [i for i, layer in enumerate(LAYERS) if part in layer]
    assert len(found) == 1, f"{module} must stand once in LAYERS, in {__name__}"
    return found[0]


def test_every_part_has_its_one_layer_and_the_list_names_no_other() -> None:
    here = {part_of(module_of(path)) for path in sources()} - {"vlm"}
    assert here == {part for layer in LAYERS for part in layer}


def test_imports_point_down() -> None:
    upward = [
        f"{module_of(path)} imports {name} from a layer above it"
        for path in sources()
        if module_of(path) != "vlm"
        for name in own_imports(path)
        if layer_of(name) > layer_of(module_of(path))
    ]
    assert not upward
    assert not imports_of(VLM / "__init__.py")


def test_no_two_modules_import_each_other() -> None:
    graph = {module_of(path): own_imports(path) for path in sources()}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above[above.index(module) :], module))
        if module not in done:
            for name in graph[module] - {module}:
                visit(name, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_only_the_page_and_demo_know_gradio() -> None:
    knowing = {
        module_of(p) for p in sources() if any(n.startswith("gradio") for n in imports_of(p))
    }
    assert knowing, "the page is made with Gradio"
    assert all(name == "demo" or name.startswith("vlm.ui") for name in knowing)


def test_what_a_start_checks_first_does_not_wait_for_torch() -> None:
    code = (
        "import sys, vlm.config, vlm.errors, vlm.hardware, vlm.memory;"
        "print({'torch', 'gradio', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_files_are_short() -> None:
    lengths = {
        str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8").count("\n")
        for path in sources()
    }
    limits = {name: LONGER_FILES.get(name, LINE_LIMIT) for name in lengths}
    assert not {name: lines for name, lines in lengths.items() if lines > limits[name]}
    needless = {name for name in LONGER_FILES if lengths.get(name, 0) <= LINE_LIMIT}
    assert not needless, "these need no exception"


def test_a_file_opens_with_its_one_job() -> None:
    firsts = {
        module_of(path): (ast.get_docstring(tree_of(path)) or "").split("\n")[0]
        for path in sources()
    }
    good = re.compile(r"\S+ \S+ .*[^ ]")
    assert not {module: first for module, first in firsts.items() if not good.fullmatch(first)}


def public_definitions(
    node: ast.Module | ast.ClassDef,
) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield the public functions, classes and methods, those inside functions left out."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child)


def test_what_is_public_says_what_it_does() -> None:
    silent = [
        f"{module_of(path)}.{node.name}, line {node.lineno}"
        for path in sources()
        for node in public_definitions(tree_of(path))
        if not ast.get_docstring(node)
    ]
    assert not silent


def reached_from(test_file: str) -> set[str]:
    """Names of our own modules that a test file imports, directly or through others."""
    files = {module_of(path): path for path in sources()}
    files |= {path.stem: path for path in (REPOSITORY / "tests").glob("*.py")}
    reached, waiting = set(), [test_file.removesuffix(".py")]
    while waiting:
        module = waiting.pop()
        if module in files and module not in reached:
            reached.add(module)
            # demo.py names its commands, and tests their fixtures' files, as strings.
            strings = {n.value for n in ast.walk(tree_of(files[module])) if is_text(n)}
            # Importing vlm.ui.page runs vlm.ui first.
            waiting += imports_of(files[module]) | strings | {module.rpartition(".")[0]}
    return reached


def is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_every_module_has_a_test_file() -> None:
    tests = {path.name for path in (REPOSITORY / "tests").glob("test_*.py")}
    reached = {file: reached_from(file) for file in TESTED_THROUGH.values() if file in tests}
    missing = []
    for path in sources():
        module = module_of(path)
        own = {f"test_{path.stem}.py", f"test_{module.removeprefix('vlm.').replace('.', '_')}.py"}
        package = module.rpartition(".")[0]
        through = TESTED_THROUGH.get(module) or TESTED_THROUGH.get(package, "")
        if (
            path.name != "__init__.py"
            and not own & tests
            and module not in reached.get(through, ())
        ):
            missing.append(module)
    assert not missing


def pinned(path: Path) -> set[str]:
    """Read the names of a requirements file; every line must be an exact pin with its reason."""
    names = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9_.-]+)==\S+ +# .{10,}", line)
            assert match, f"{path.name}: {line}"
            names.add(match[1].lower().replace("-", "_"))
    return names


@cache
def owners_of_modules() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def outside_packages(paths: list[Path]) -> set[str]:
    """Names of the distributions that these files import."""
    owners = owners_of_modules()
    found = set()
    for path in paths:
        for name in imports_of(path):
            top = name.split(".")[0]
            if top in owners and top not in sys.stdlib_module_names:
                found.add(owners[top][0].lower().replace("-", "_"))
    return found


def test_requirements_are_exactly_what_the_code_imports() -> None:
    only_to_train = {"easy_vqa"}  # pictures for vlm/bundled/; no user of the app needs them
    assert outside_packages(sources()) - only_to_train == pinned(REPOSITORY / "requirements.txt")


def test_the_tests_own_requirements_hold_what_only_they_use() -> None:
    app = pinned(REPOSITORY / "requirements.txt")
    own = pinned(REPOSITORY / "tests" / "requirements.txt")
    assert not app & own
    used = outside_packages(sorted((REPOSITORY / "tests").glob("*.py")))
    assert used - app <= own


def test_the_top_level_holds_only_what_belongs_there() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is no git checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    allowed = {
        "demo.py", "vlm", "configs", "tests", "requirements.txt", "launch.sh", "README.md",
        "pyproject.toml", ".ci", ".gitignore", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md",
    }  # fmt: skip
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} <= allowed


def test_shared_fixtures_have_names_of_their_own() -> None:
    """Shared fixtures are known to all tests: of two with one name, the last read would win."""
    found = [
        node.name
        for path in [
            *(REPOSITORY / "tests").glob("*_fixtures.py"),
            REPOSITORY / "tests/conftest.py",
        ]
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef)
        and any("fixture" in ast.dump(d) for d in node.decorator_list)
    ]
    assert len(found) > 10
    assert sorted(found) == sorted(set(found))


def test_no_test_leaves_its_mark_on_the_environment() -> None:
    """What one test file puts there, all later ones run with; monkeypatch takes it back."""
    left = [
        f"{path.name}:{node.lineno}"
        for path in (REPOSITORY / "tests").glob("*.py")
        if path.name != "conftest.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Assign)
        and any(
            isinstance(target, ast.Subscript) and ast.unparse(target.value) == "os.environ"
            for target in node.targets
        )
    ]
    assert left == []
