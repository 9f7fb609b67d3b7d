"""Directive ``public-names``: a folder's summary table and one entry for each name of its ``__all__``.

References to the file that defines a name (``eqr_torchrl.world_models.base.WorldModel``) lead to its public place.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
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


def data_docstring(folder: str, name: str) -> list[str]:
    """The text below an assignment such as ``PAPER_DMC_TASKS = ...``, in whichever file of the folder makes it."""
    for module in sorted(m for m in sys.modules if m.startswith(folder)):
        if hasattr(sys.modules[module], "__file__"):
            analyzer = ModuleAnalyzer.for_module(module)
            analyzer.analyze()
            if ("", name) in analyzer.attr_docs:
                return analyzer.attr_docs["", name]
    return []


def first_sentence(docstring: str) -> str:
    paragraph = " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split())
    return re.split(r"(?<!al\.)(?<=[.:])\s", paragraph + " ")[0].rstrip(":")


class PublicNames(SphinxDirective):
    """``.. public-names:: eqr_torchrl.functional`` with ``:first: NameA NameB`` for what the page should open with."""

    required_arguments = 1
    option_spec: ClassVar = {"first": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        module_name = self.arguments[0]
        module = importlib.import_module(module_name)
        first = self.options.get("first", "").split()
        names = sorted(
            public_names(module_name), key=lambda n: (first.index(n) if n in first else len(first), n.lower())
        )
        lines = [f".. currentmodule:: {module_name}", "", ".. list-table::", "   :widths: auto", ""]
        entries: list[str] = []
        for name in names:
            value = getattr(module, name)
            is_code = inspect.isclass(value) or inspect.isroutine(value)
            docstring = value.__doc__ or "" if is_code else "\n".join(data_docstring(module_name, name))
            lines += [f"   * - :py:obj:`~{module_name}.{name}`", f"     - {first_sentence(docstring)}"]
            if inspect.isclass(value):
                members = ", ".join(own_members(value))
                entries += [f".. autoclass:: {name}", *([f"   :members: {members}"] if members else []), ""]
            elif is_code:
                entries += [f".. autofunction:: {name}", ""]
            else:
                entries += [f".. py:data:: {name}", "", *(f"   {line}" for line in docstring.splitlines()), ""]
            gallery = Path(self.env.srcdir) / "gen_backreferences" / f"{module_name}.{name}.examples"
            if gallery.exists() and gallery.read_text().strip():
                entries += [".. rubric:: Used in", "", f".. minigallery:: {module_name}.{name}", ""]
        return self.parse_text_to_nodes("\n".join([*lines, "", *entries]), allow_section_headings=True)


def resolve_defining_file(app: Sphinx, env: Any, node: nodes.Element, content: nodes.Node) -> nodes.Node | None:
    target = node.get("reftarget", "")
    parts = target.split(".")
    if node.get("refdomain") != "py" or len(parts) < 2:
        return None
    depth = 3 if parts[1] == "lab" else 2  # eqr_torchrl.world_models, eqr_torchrl.lab.envs
    if parts[0] == PACKAGE and len(parts) > depth + 1:
        public = ".".join([*parts[:depth], *parts[depth + 1 :]])
    elif parts[0] == PACKAGE and len(parts) == 2:  # eqr_torchrl.Name, exported at the top
        value = getattr(importlib.import_module(PACKAGE), parts[1], None)
        public = f"{'.'.join(getattr(value, '__module__', '').split('.')[:depth])}.{parts[1]}"
    else:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], public, node, content)


def true_signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:
    """The signature of ``__init__`` where a metaclass hides it, as TorchRL's does; types stand in the list below it."""
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare)), returns


def whole_property(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keeps the docstring of a property whole: Napoleon takes what a colon follows in its first line for a type."""
    if what == "property":
        lines.insert(0, "")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-docstring", whole_property, priority=400)  # before Napoleon
    app.connect("missing-reference", resolve_defining_file)
    app.connect("autodoc-process-signature", true_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
