"""The repository works on any machine: no file names a place that only one machine has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ABSOLUTE = re.compile(r"(?<![\w.~}/:-])/(home|Users|root|work|mnt|scratch|data|tmp|opt|var)/\w")
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".csv", ".json", ".cfg", ".rst", ".bib", ".html", ".css", ""}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_file_names_the_path_of_one_machine():
    named = []
    for path in tracked_files():
        if path.suffix in TEXT and path != Path(__file__):
            text = path.read_text(errors="ignore")
            named += [f"{path.relative_to(ROOT)}: {match.group()}" for match in ABSOLUTE.finditer(text)]
    assert not named


def test_no_file_is_large():
    assert not [path.name for path in tracked_files() if path.stat().st_size > 3_000_000]
