"""Directive ``two-houses``: the folders of the package as a picture, which follows the imports of its files."""

from __future__ import annotations

import ast
import html
import importlib
from pathlib import Path

from docutils import nodes
from public_names import PACKAGE, first_sentence
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2] / PACKAGE
METHOD = ("functional", "utility", "networks", "world_models", "imagination", "objectives")
LAB = ("envs", "acting", "runs", "logs", "evaluation", "judging", "diagnostics", "comparison", "figures", "memory")
GREEN, BLUE, GREY = "#009e73", "#0072b2", "#777777"
WIDTH, HEIGHT, GAP = 152, 46, 12  # of a box
ABOUT = "Folders of the method and of the laboratory; only the laboratory imports the method."
MARKER = (
    '<defs><marker id="to" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L10 5 L0 10 z" fill="currentColor"/></marker></defs>'
)


def imported(name: str) -> set[str]:
    """Other folders of the method that the files of one import."""
    files = (ROOT / name).rglob("*.py") if (ROOT / name).is_dir() else [ROOT / f"{name}.py"]
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
                parts = (node.module or "").split(".")
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found & set(METHOD) - {name}


def floor(name: str) -> int:
    """0 for a folder that imports none of the method's, otherwise one above the highest that it imports."""
    return 1 + max((floor(other) for other in imported(name)), default=-1)


def box(name: str, x: int, y: int, page: str, colour: str, width: int = WIDTH) -> str:
    return (
        f'<a href="../api/{page}.html"><rect x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="6" fill="{colour}" '
        f'fill-opacity="0.18" stroke="{colour}" stroke-width="1.6"/><text x="{x + width // 2}" y="{y + 29}" '
        f'text-anchor="middle" font-weight="600">{name}</text></a>'
    )


def frame(x: int, y: int, width: int, height: int, title: str, needs: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="none" stroke="currentColor" '
        f'stroke-opacity="0.5"/><text x="{x + 14}" y="{y + 24}" font-weight="700">{title}</text>'
        f'<text x="{x + 14}" y="{y + 43}" font-size="13" class="soft">{needs}</text>'
    )


def picture() -> str:
    """The picture as SVG, in the colours of the page, and the same as a list for a phone."""
    floors: dict[int, list[str]] = {}
    for name in METHOD:
        floors.setdefault(floor(name), []).append(name)
    step, left, top = HEIGHT + GAP, 8, 8
    inner, head = 2 * WIDTH + GAP, 56
    tall = head + len(floors) * step + GAP
    parts = [frame(left, top, inner + 28, tall, "The method", "torch, tensordict, torchrl, numpy alone")]
    for level, names in floors.items():
        y = top + head + (len(floors) - 1 - level) * step
        width = (inner - (len(names) - 1) * GAP) // len(names)
        parts += [box(name, left + 14 + i * (width + GAP), y, name, GREEN, width) for i, name in enumerate(names)]
    right = left + inner + 28 + 110
    rows = -(-len(LAB) // 2)
    parts.append(
        frame(
            right,
            top,
            inner + 28,
            head + rows * step + GAP,
            "The laboratory: eqr_torchrl.lab",
            "simulators, Hydra, pandas, matplotlib",
        )
    )
    for i, name in enumerate(LAB):
        last = i == len(LAB) - 1 and len(LAB) % 2
        x, y = right + 14 + (i % 2) * (WIDTH + GAP), top + head + (i // 2) * step
        parts.append(box(name, x, y, f"lab_{name}", BLUE, inner if last else WIDTH))
    under = top + max(tall, head + rows * step + GAP) + 30
    parts.append(
        frame(left, under, inner + 28, head + step, "The exact counterpart", "imports functional and utility alone")
    )
    parts.append(box("tabular", left + 14, under + head, "tabular", GREY, inner))
    parts.append(
        frame(
            right,
            under,
            inner + 28,
            head + step,
            "Scripts and configurations",
            "examples/ and configs/, or as commands",
        )
    )
    parts.append(box("eqr_sac, sac, offline, diagnose ...", right + 14, under + head, "commands", BLUE, inner))
    edge, middle = left + inner + 28, top + head + 2 * step
    arrows = (
        (right - 4, middle, edge + 6, middle, "imports"),
        (right + inner // 2, under - 4, right + inner // 2, top + head + rows * step + GAP + 6, ""),
        (left + inner // 2, under - 4, left + inner // 2, top + tall + 6, ""),
    )
    for x0, y0, x1, y1, label in arrows:
        parts.append(f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" class="arrow" marker-end="url(#to)"/>')
        parts.append(f'<text x="{(x0 + x1) // 2}" y="{y0 - 8}" text-anchor="middle" font-size="13">{label}</text>')
    size = f"0 0 {right + inner + 28 + 8} {under + head + step + 8}"
    svg = f'<svg viewBox="{size}" font-size="15" fill="currentColor">{MARKER}{"".join(parts)}</svg>'
    rooms = [(name, name, f"{PACKAGE}.{name}") for name in (*METHOD, "tabular")]
    rooms += [(f"lab.{name}", f"lab_{name}", f"{PACKAGE}.lab.{name}") for name in LAB]
    items = []
    for name, page, path in rooms:
        about = html.escape(first_sentence(importlib.import_module(path).__doc__ or ""))
        items.append(f'<li><a href="../api/{page}.html">{name}</a>: {about}</li>')
    return f'<div class="loop" role="img" aria-label="{ABOUT}">{svg}<ol>{"".join(items)}</ol></div>'


class TwoHouses(SphinxDirective):
    """``two-houses``, without arguments."""

    def run(self) -> list[nodes.Node]:
        for path in ROOT.rglob("*.py"):
            self.env.note_dependency(str(path))
        return [nodes.raw("", picture(), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("two-houses", TwoHouses)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
