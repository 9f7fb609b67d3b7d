"""The documentation names every public name, and the command lines that it shows can be composed.

The first test reads the built site (`python -m sphinx -W -b html docs docs/_build/html`) and is skipped without it.
"""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "eqr_torchrl"
INVENTORY = ROOT / "docs" / "_build" / "html" / "objects.inv"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]


def public_names() -> set[str]:
    """Full names of everything in an ``__all__``; what the top re-exports counts under its folder."""
    folders = [*PACKAGE.iterdir(), *(PACKAGE / "lab").iterdir()]
    found = [".".join(p.relative_to(ROOT).parts) for p in folders if (p / "__init__.py").is_file()]
    files = ("lab.acting", "lab.evaluation", "lab.figures", "lab.memory", "testing", "utility")
    modules = [importlib.import_module(name) for name in [*found, *(f"eqr_torchrl.{name}" for name in files)]]
    # the modules of old import paths, and the folder that only holds others, list no names
    names = {f"{module.__name__}.{name}" for module in modules for name in getattr(module, "__all__", ())}
    top = importlib.import_module("eqr_torchrl")
    for name in top.__all__:
        module = getattr(getattr(top, name), "__module__", "")
        if module.startswith("eqr_torchrl."):  # constants and aliases count under their folder alone
            names.add(f"eqr_torchrl.{module.split('.')[1]}.{name}")
    return names


def commands() -> list[tuple[str, str]]:
    """Page and command line of each call of an example script in a code block."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.search(r"python3?\S* (examples/\w+\.py[^&|]*)", line)
                if match:
                    found.append((str(page.relative_to(ROOT)), match[1].strip()))
    return sorted(set(found))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchRL's collectors, when they are first imported
def test_every_public_name_has_an_entry():
    if not INVENTORY.is_file():
        pytest.skip("the documentation has not been built")
    inventory_file = pytest.importorskip("sphinx.util.inventory").InventoryFile
    with INVENTORY.open("rb") as stream:
        inventory = inventory_file.load(stream, "", lambda base, uri: uri)
    if hasattr(inventory, "data"):  # Sphinx 8.2 and newer
        inventory = inventory.data
    documented = {name for kind, entries in inventory.items() if kind.startswith("py:") for name in entries}
    assert not sorted(public_names() - documented)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_configs_that_exist(page):
    groups = {path.name for path in (ROOT / "configs").iterdir() if path.is_dir()}
    for named in re.findall(r"configs/(\w+)/", page.read_text()):
        assert named in groups


def rows(page: str, header: str) -> list[list[str]]:
    """Cells of the rows of the table of a page whose header starts so."""
    table = (ROOT / "docs" / "how_to" / page).read_text(encoding="utf-8").split(header)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[2:]]


def test_defaults_on_the_page_about_tuning_are_those_of_the_configuration():
    hydra = pytest.importorskip("hydra")
    omegaconf = pytest.importorskip("omegaconf")
    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        cfg = hydra.compose("eqr_sac", ["budget=quick"])
    numbers = {}
    for names, default, *_ in rows("tune.md", "| setting | default with `budget=quick` |"):
        for name in re.findall(r"`([\w.]+)`", names):
            assert omegaconf.OmegaConf.select(cfg, name) is not None, name
            if re.fullmatch(r"[\d,.e-]+", default):
                numbers[name] = float(default.replace(",", ""))
    assert len(numbers) >= 11
    assert {name: float(omegaconf.OmegaConf.select(cfg, name)) for name in numbers} == numbers


def test_the_page_about_composition_names_every_choice_of_every_group():
    for group, _, choices in rows("compose_an_algorithm.md", "| group | decides | choices |"):
        named = set(re.findall(r"`([\w/.]+)`", choices)) - {"dmc/..."}
        folder = ROOT / "configs" / group.strip("| `")
        assert named == {path.stem for path in folder.glob("*.yaml")}, group


def test_options_of_the_check_exist():
    found = {option for page in PAGES for option in _check_options(page.read_text(encoding="utf-8"))}
    source = (PACKAGE / "lab" / "envs" / "check.py").read_text(encoding="utf-8")
    assert "--max-episode-steps" in found
    assert all(f'"{option}"' in source for option in found)


def _check_options(text: str) -> list[str]:
    calls = re.findall(r"eqr_torchrl\.lab\.envs\.check ([^\n]*)", text.replace("\\\n", " "))
    return [option for call in calls for option in re.findall(r"--[\w-]+", call)]


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda value: value.replace(" ", "_")[:80])
def test_command_lines_compose(page, command):
    """Each override that a page shows is one that Hydra accepts, one combination of a sweep at a time."""
    hydra = pytest.importorskip("hydra")
    script, *arguments = shlex.split(command, comments=True)
    assert (ROOT / script).is_file()
    flags = {"--multirun", "--help", "--cfg", "job"}
    overrides = [a for a in arguments if a not in flags and not re.match(r"\+?\+?hydra[/.]", a)]
    if not list((ROOT / "configs").rglob(f"{Path(script).stem}.yaml")):  # a script with options instead
        options = [argument for argument in arguments if argument.startswith("-")]
        assert all(f'"{option}"' in (ROOT / script).read_text() for option in options)
        return
    overrides = [re.sub(r"=(?:tag\(log, )?\w+\(([^,]+),.*", r"=\1", override) for override in overrides]  # of a search
    overrides = [re.sub(r"=([^,\[\]]+),[^\[\]]*$", r"=\1", override) for override in overrides]  # first of a sweep
    config = Path(script).stem
    folder = next(path.parent for path in (ROOT / "configs").rglob(f"{config}.yaml"))
    with hydra.initialize_config_dir(str(folder), version_base="1.3"):
        hydra.compose(config, overrides)
