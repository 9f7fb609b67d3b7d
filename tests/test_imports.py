"""Imports point down, and importing the package needs no simulator, logger or plotting library."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "eqr_torchrl"

# What each folder may import of ours:
# `functional` < `utility`, `modules`, `world_models` < `envs` < `data`, `diagnostics`; `functional` < `runs`.
# Nothing imports `comparison`.
BELOW = {
    "_versions": set(),
    "functional": set(),
    "utility": {"functional"},
    "modules": {"functional", "utility"},
    "world_models": {"functional", "utility", "modules"},
    "objectives": {"functional", "utility"},
    "tabular": {"functional", "utility"},
    "runs": {"functional"},
    "recipes": set(),
    "evaluation": set(),
    "figures": set(),
    "comparison": {"figures"},
}
BELOW["envs"] = {"functional", "utility", "modules", "world_models"}
BELOW["data"] = BELOW["envs"] | {"envs"}
BELOW["diagnostics"] = BELOW["data"] | {"evaluation", "figures"}
BELOW["testing"] = BELOW["data"] | {"data", "evaluation", "objectives", "runs"}
BELOW["__init__"] = set(BELOW) - {"comparison"}

LAZY = (
    *("dm_control", "mujoco", "wandb", "hydra", "omegaconf", "matplotlib", "gymnasium", "tensorboard", "scipy", "ray"),
    "pandas",
)

# Where a heavy library may be imported at the top of a file.
PLOTTING = {"figures.py"}


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported_modules(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Absolute names of the modules that a file imports, relative imports resolved, type-checking blocks left out."""
    tree = ast.parse(path.read_text())
    checking = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    nodes = tree.body if top_level_only else ast.walk(tree)
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    found = set()
    for node in nodes:
        if id(node) in checking:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_folder_imports_only_what_lies_below_it(path):
    folder = path.relative_to(PACKAGE).with_suffix("").parts[0]
    ours = {name.split(".")[1] for name in imported_modules(path) if name.startswith("eqr_torchrl.")}
    assert ours - {folder, "__version__"} <= BELOW[folder], (
        f"{path.name} must not import {ours - BELOW[folder] - {folder}}"
    )


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_where_they_are_used(path):
    if str(path.relative_to(PACKAGE)) in PLOTTING:
        return
    heavy = {name for name in imported_modules(path, top_level_only=True) if name.split(".")[0] in LAZY}
    if path.parent.name == "comparison":  # the folder that is built on pandas
        heavy.discard("pandas")
    if path.name == "overrides.py":  # itself imported where a command line is read
        heavy = {name for name in heavy if name.split(".")[0] not in ("hydra", "omegaconf")}
    assert not heavy, f"import {', '.join(sorted(heavy))} inside the function that needs it"


def test_matplotlib_is_imported_only_for_plotting():
    users = {
        str(path.relative_to(PACKAGE))
        for path in files()
        if any(name.split(".")[0] == "matplotlib" for name in imported_modules(path))
    }
    assert users <= PLOTTING


def test_functional_imports_only_torch_and_numpy():
    allowed = {"torch", "numpy", "math", "typing", "collections", "contextlib", "functools", "itertools"} | {
        "__future__",
        "eqr_torchrl",
    }
    for path in (PACKAGE / "functional").rglob("*.py"):
        assert {name.split(".")[0] for name in imported_modules(path)} <= allowed, path.name


def test_importing_the_package_loads_no_heavy_library():
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); import torchrl.envs; before = set(sys.modules)\n"
        "import eqr_torchrl; from eqr_torchrl import EpistemicQuantileLoss, ModelBasedEnv, EnsembleSuccessors\n"
        "import eqr_torchrl.tabular, eqr_torchrl.lab.runs\n"
        f"print(*[name for name in {LAZY!r} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("folder", sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file()))
def test_every_folder_lists_its_public_names(folder):
    __import__(f"eqr_torchrl.{folder}")
    module = sys.modules[f"eqr_torchrl.{folder}"]
    assert sorted(module.__all__) == sorted(set(module.__all__))
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
    entries = {name: getattr(module, name) for name in module.__all__}
    # a type alias carries no docstring at run time: its own stands below it in the source
    undocumented = [n for n, entry in entries.items() if not (entry.__doc__ or isinstance(entry, types.GenericAlias))]
    assert not undocumented
