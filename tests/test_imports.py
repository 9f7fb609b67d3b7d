"""The method stands alone, imports point down, and importing the package loads no simulator and no application."""

from __future__ import annotations

import ast
import importlib
import runpy
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

import eqr_torchrl

PACKAGE = Path(__file__).parent.parent / "eqr_torchrl"

# The method, and what each of its folders may import of ours
METHOD = {
    "functional": set(),
    "utility": {"functional"},
    "networks": {"functional"},
    "world_models": {"functional", "networks"},
    "imagination": {"functional", "networks", "world_models"},
    "objectives": {"functional", "utility", "networks"},
    "testing": {"functional", "utility", "networks", "world_models", "imagination", "objectives"},
}
OURS = {**METHOD, "tabular": {"functional", "utility"}, "lab": {*METHOD, "lab", "tabular"}, "_versions": set()}
OLD = ("comparison", "data", "diagnostics", "envs", "evaluation", "figures", "modules", "recipes", "runs")
OURS |= {name: {"_moved", "lab"} for name in OLD} | {"_moved": set(), "__init__": {*METHOD, "_versions", "_moved"}}
THEIRS = {"torch", "tensordict", "torchrl", "numpy", "typing_extensions"} | set(sys.stdlib_module_names)
HEAVY = {
    *("dm_control", "mujoco", "gymnasium", "hydra", "omegaconf", "matplotlib", "pandas", "scipy"),
    *("wandb", "tensorboard", "ray", "onnx"),
    "eqr_torchrl.lab.envs.check",  # run by python -m, which warns of a module that is loaded already
}


def imported_modules(path: Path) -> set[str]:
    """Absolute names of what a file imports, type-checking blocks left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checking = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in checking:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and id(node) not in checking:
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_imports_point_down_and_the_method_needs_torch_tensordict_torchrl_and_numpy_alone():
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for name in imported_modules(path):
            first, _, rest = name.partition(".")
            below = rest.split(".")[0]
            if first == "eqr_torchrl" and below != folder and below in OURS and below not in OURS[folder]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
            if folder in (*METHOD, "tabular") and first not in (*THEIRS, "eqr_torchrl"):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


def test_importing_the_package_loads_no_simulator_and_no_application():
    # every folder but the one that is built on pandas: what is heavy is imported where it is used
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); import torchrl.envs; before = set(sys.modules)\n"
        "import eqr_torchrl; assert not any(name.startswith('eqr_torchrl.lab') for name in sys.modules)\n"
        "import eqr_torchrl.tabular, eqr_torchrl.lab.runs, eqr_torchrl.lab.envs, eqr_torchrl.lab.diagnostics\n"
        f"print(*{HEAVY!r} & set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == []


def test_the_method_has_at_most_sixty_public_names_all_of_them_at_the_top():
    names = {
        name: getattr(sys.modules[f"eqr_torchrl.{m}"], name) for m in METHOD for name in public(f"eqr_torchrl.{m}")
    }
    assert len(names) <= 60
    assert sorted(names) == sorted(eqr_torchrl.__all__)
    assert all(getattr(eqr_torchrl, name) is entry for name, entry in names.items())


def public(module: str) -> list[str]:
    return importlib.import_module(module).__all__


FOLDERS = [path for path in PACKAGE.rglob("__init__.py") if path.parent.name not in ("lab", *OLD)]


@pytest.mark.parametrize("path", sorted(FOLDERS), ids=lambda p: str(p.parent.relative_to(PACKAGE.parent)))
def test_every_folder_lists_its_public_names_and_documents_them(path):
    name = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    entries = {name: getattr(module, name) for name in module.__all__}
    # a type alias or a constant carries no docstring at run time: its own stands below it in the source
    plain = (types.GenericAlias, tuple, str, int, float, list)
    assert not [name for name, entry in entries.items() if not (entry.__doc__ or isinstance(entry, plain))]


# The paths that the documentation of 0.2.0 shows
SHOWN = {
    "eqr_torchrl": ["make_env"],
    "eqr_torchrl.comparison": ["plot_learning_curve", "read_runs", "learning_curves", "aggregate_table"],
    "eqr_torchrl.data": ["EnsembleSuccessors", "branched_rollout", "make_replay_buffer"],
    "eqr_torchrl.diagnostics": ["value_spread", "trusted_horizon", "plot_value_distribution"],
    "eqr_torchrl.envs": ["make_env", "check_env", "reward_bounds", "ModelBasedEnv", "never_terminates"],
    "eqr_torchrl.evaluation": ["evaluate"],
    "eqr_torchrl.figures": ["saved_figure"],
    "eqr_torchrl.modules": ["make_actor", "make_critic"],
    "eqr_torchrl.runs": ["load_agent", "LoopSettings", "Run", "RunLogger", "run_hydra"],
}


@pytest.mark.parametrize("old", SHOWN)
def test_import_paths_of_version_0_2_give_the_same_objects_and_a_warning(old):
    module = importlib.import_module(old)
    for name in SHOWN[old]:
        with pytest.warns(DeprecationWarning, match=rf"{old}\.{name} has moved to eqr_torchrl\.\w+") as caught:
            found = getattr(module, name)
        [warning] = caught
        assert warning.filename == __file__  # the line that has to change
        place = str(warning.message).split(" has moved to ")[1].rpartition(".")[0]
        assert found is getattr(importlib.import_module(place), name)
    with pytest.raises(AttributeError, match=f"module '{old}' has no attribute 'nothing'"), warnings.catch_warnings():
        _ = module.nothing


def test_the_folder_of_the_old_scripts_says_where_they_are():
    with pytest.raises(SystemExit, match="has moved to commands: eqr-sac, "):
        runpy.run_module("eqr_torchrl.recipes", run_name="__main__")
