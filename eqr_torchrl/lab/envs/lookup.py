"""Finds what a configuration or a command line names as ``"module:name"``."""

from __future__ import annotations

import importlib
import re
from typing import Any

_REQUIRED = object()


def import_by_name(name: str, default: Any = _REQUIRED) -> Any:
    """Imports a function or class of the user's own.

    Args:
        name: ``"package.module:name"``; a dot may stand for the colon.
        default: returned if the module has no such name, as by :func:`getattr`.

    Raises:
        ValueError: if ``name`` has another form, or there is no such module, or no such name in it and no default.

    Examples:
        >>> import_by_name("eqr_torchrl.imagination:never_terminates").__name__
        'never_terminates'
    """
    module, _, attribute = name.rpartition(":" if ":" in name else ".")
    file = re.fullmatch(r"(?:.*[/\\])?(\w+)(?:\.py)?", module)
    if not attribute or module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        hint = f"; for a file {module}, write {file[1]}:{attribute}" if file and attribute and file[1] != module else ""
        raise ValueError(f"names must be of the form module:name: got {name!r}{hint}.")
    try:
        found = getattr(importlib.import_module(module), attribute, default)
    except ImportError as error:
        hint = " (a module of your own must be on PYTHONPATH)" if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(f"{name!r} must name something that can be imported: {error}{hint}.") from error
    if found is _REQUIRED:
        raise ValueError(f"{name!r} must name something in {module}, which has no {attribute!r}.")
    return found
