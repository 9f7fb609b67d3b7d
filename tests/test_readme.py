"""What the README shows is true: its script runs and learns, its commands and links name things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_script_takes_one_optimiser_step(capsys):
    (script,) = code_blocks("python")
    assert len(script.strip().splitlines()) <= 16  # 15 lines and a blank one
    names: dict[str, object] = {}
    exec(compile(script, "README.md", "exec"), names)
    moved = [p.grad is not None and bool(p.grad.any()) for p in names["loss"].parameters()]
    assert sum(moved) >= len(moved) - 1  # every network and the temperature got a gradient
    assert "epistemic std" in capsys.readouterr().out


def test_commands_name_extras_and_scripts_that_exist():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {name for group in re.findall(r'-e "?\.\[([a-z,-]+)\]', TEXT) for name in group.split(",")}
    assert named
    assert named <= extras
    scripts = set(re.findall(r"examples/\w+\.py", TEXT))
    assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)", TEXT))))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()


def test_algorithms_of_the_table_are_those_of_the_configs():
    table = TEXT.split("`algorithm=` | what it is")[1].split("\n\n")[0]
    named = set(
        re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if line.count("|") > 2))
    )
    assert named - {"algorithm"} == {path.stem for path in (ROOT / "configs" / "algorithm").glob("*.yaml")}
