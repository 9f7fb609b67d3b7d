"""Directive ``public-names``: a folder's summary table and one entry for each name of its ``__all__``.

References to the file that defines a name (``eqr_torchrl.world_models.base.WorldModel``) lead to its public place.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PACKAGE = "eqr_torchrl"


def public_names(module_name: str) -> list[str]:
    """Names of ``__all__`` that are not a name of a deeper folder shown on its own page."""
    return list(importlib.import_module(module_name).__all__)


def own_members(cls: type) -> list[str]:
    """Documented public methods and properties that this package wrote, not those of ``nn.Module`` and the like."""
    found = []
    for base in cls.__mro__:
        if not base.__module__.startswith(PACKAGE):
            continue
        for name, value in vars(base).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            function = inspect.unwrap(function) if callable(function) else function
            documented = bool(getattr(function, "__doc__", None)) and (
                inspect.isfunction(function) or isinstance(value, (property, classmethod, staticmethod))
            )
            if documented and not name.startswith("_") and name not in found:
                found.append(name)
    return found


class PublicNames(SphinxDirective):
    """``.. public-names:: eqr_torchrl.functional`` with ``:first: NameA NameB`` for what the page should open with."""

    required_arguments = 1
    option_spec = {"first": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        module_name = self.arguments[0]
        module = importlib.import_module(module_name)
        first = self.options.get("first", "").split()
        names = sorted(public_names(module_name), key=lambda n: (first.index(n) if n in first else len(first), n.lower()))
        lines = [f".. currentmodule:: {module_name}", "", ".. autosummary::", ""]
        lines += [f"   {name}" for name in names] + [""]
        for name in names:
            value = getattr(module, name)
            if inspect.isclass(value):
                members = ", ".join(own_members(value))
                lines += [f".. autoclass:: {name}", *([f"   :members: {members}"] if members else []), ""]
            elif callable(value) and hasattr(value, "__qualname__"):
                lines += [f".. autofunction:: {name}", ""]
            else:
                lines += [f".. autodata:: {name}", "   :no-value:", ""]
            gallery = Path(self.env.srcdir) / "gen_backreferences" / f"{module_name}.{name}.examples"
            if gallery.exists() and gallery.read_text().strip():
                lines += [f".. minigallery:: {module_name}.{name}", "   :add-heading: Used in", "   :heading-level: *", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def resolve_defining_file(app: Sphinx, env: Any, node: nodes.Element, content: nodes.Node) -> nodes.Node | None:
    target = node.get("reftarget", "")
    parts = target.split(".")
    if node.get("refdomain") != "py" or len(parts) < 2:
        return None
    if parts[0] == PACKAGE and len(parts) > 3:
        public = ".".join([parts[0], parts[1], *parts[3:]])
    elif parts[0] == PACKAGE and len(parts) == 2:  # eqr_torchrl.Name, exported at the top
        value = getattr(importlib.import_module(PACKAGE), parts[1], None)
        public = f"{'.'.join(getattr(value, '__module__', '').split('.')[:2])}.{parts[1]}"
    else:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], public, node, content)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("public-names", PublicNames)
    app.connect("missing-reference", resolve_defining_file)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
