"""What a reader may rely on: imports point one way, files are small, everything has a test."""

import ast
import importlib.metadata
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import REPOSITORY

VLM = REPOSITORY / "vlm"

# Lowest first. A module imports from its own layer and those before it, never from later ones.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "units"),
    ("config", "cgroup", "hardware"),
    ("memory", "stats", "architecture", "rotary", "linear", "kv_cache", "sampling"),
    ("picture_files", "to_rgb", "images", "patches"),
    ("chat", "chat_template", "prompt", "positions", "detokenize"),
    ("hub_file", "hub_cache", "hub_listing", "download", "model_source", "precision"),
    ("vision", "decoder", "checkpoint", "model"),
    ("answer_stream", "generate", "loading", "engine"),
    ("bundled",),
    ("ui", "commands"),
    ("demo",),
)
LONGER_FILES: dict[str, int] = {}
"""Files that may be longer than the limit, and how long; each needs a reason beside it."""
LINE_LIMIT = 300
TESTED_ELSEWHERE: dict[str, str] = {}
"""Modules whose promise is tested through another one: module to test file."""


def sources() -> list[Path]:
    """All of the app's own code."""
    return [REPOSITORY / "demo.py", *sorted(VLM.rglob("*.py"))]


def module_of(path: Path) -> str:
    """Name a file as it is imported: "vlm.ui.panel"."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


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


def own_imports(path: Path) -> set[str]:
    modules = {module_of(source) for source in sources()}
    return {name for name in imports_of(path) if name in modules and name != "vlm"}


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


@pytest.mark.parametrize("path", sources(), ids=module_of)
def test_imports_point_down(path: Path) -> None:
    module = module_of(path)
    if module == "vlm":
        assert not imports_of(path)
        return
    upward = {name for name in own_imports(path) if layer_of(name) > layer_of(module)}
    assert not upward, f"{module} imports {upward} from a layer above it"


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


@pytest.mark.parametrize("name", ["vlm.config", "vlm.errors", "vlm.hardware", "vlm.memory"])
def test_what_a_start_checks_first_does_not_wait_for_torch(name: str) -> None:
    import subprocess

    code = f"import {name}, sys; print({{'torch', 'gradio', 'transformers'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("path", sources(), ids=module_of)
def test_a_file_is_short_and_opens_with_its_one_job(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    name = str(path.relative_to(REPOSITORY))
    assert lines <= LONGER_FILES.get(name, LINE_LIMIT), f"{name} has {lines} lines; split it"
    first = (ast.get_docstring(tree_of(path)) or "").split("\n")[0]
    assert len(first.split()) >= 3, f"{name} must open with a sentence that states its one job"
    assert first[-1] in ".:?!", f"{name}: its first line must be a whole sentence"


@pytest.mark.parametrize("path", sources(), ids=module_of)
def test_what_is_public_says_what_it_does(path: Path) -> None:
    silent = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            outer = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.FunctionDef)]
            is_inner = any(node in function.body for function in outer)
            if not is_inner and not ast.get_docstring(node):
                silent.append(f"{node.name}, line {node.lineno}")
    assert not silent


def test_every_module_has_its_test_file() -> None:
    names = {path.name for path in (REPOSITORY / "tests").glob("test_*.py")}
    missing = []
    for path in sources():
        module = module_of(path)
        if path.name == "__init__.py":
            continue
        own = {f"test_{path.stem}.py", f"test_{module.removeprefix('vlm.').replace('.', '_')}.py"}
        if not own & names and TESTED_ELSEWHERE.get(module) not in names:
            missing.append(module)
    assert not missing


def test_what_is_tested_elsewhere_is_named_there() -> None:
    for module, file in TESTED_ELSEWHERE.items():
        assert module in imports_of(REPOSITORY / "tests" / file), f"{file} does not use {module}"


def pinned(path: Path) -> set[str]:
    """Read the names of a requirements file; every line must be an exact pin with its reason."""
    names = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9_.-]+)==\S+ +# .{10,}", line)
            assert match, f"{path.name}: {line}"
            names.add(match[1].lower().replace("-", "_"))
    return names


def outside_packages(paths: list[Path]) -> set[str]:
    """Names of the distributions that these files import."""
    owners = importlib.metadata.packages_distributions()
    found = set()
    for path in paths:
        for name in imports_of(path):
            top = name.split(".")[0]
            if top in owners and top not in sys.stdlib_module_names:
                found.add(owners[top][0].lower().replace("-", "_"))
    return found


def test_requirements_are_exactly_what_the_code_imports() -> None:
    assert outside_packages(sources()) == pinned(REPOSITORY / "requirements.txt")


def test_the_tests_own_requirements_hold_what_only_they_use() -> None:
    app = pinned(REPOSITORY / "requirements.txt")
    own = pinned(REPOSITORY / "tests" / "requirements.txt")
    assert not app & own
    used = outside_packages(sorted((REPOSITORY / "tests").glob("*.py")))
    assert used - app <= own


def test_the_top_level_holds_only_what_belongs_there() -> None:
    import subprocess

    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    allowed = {
        "demo.py", "vlm", "configs", "tests", "requirements.txt", "launch.sh", "README.md",
        "pyproject.toml", ".ci", ".gitignore", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md",
    }  # fmt: skip
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} <= allowed
