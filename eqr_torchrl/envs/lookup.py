"""Finds what a configuration or a command line names as ``"module:name"``."""

from __future__ import annotations

import importlib
from typing import Any


def import_by_name(name: str) -> Any:
    """Imports a function or class of the user's own.

    Args:
        name: ``"package.module:name"``; a dot may stand for the colon.

    Returns:
        What the module calls ``name``.

    Raises:
        ValueError: if ``name`` has another form, or there is no such module or name in it.

    Examples:
        >>> import_by_name("eqr_torchrl.envs:never_terminates").__name__
        'never_terminates'
    """
    module, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    if not module or not attribute:
        raise ValueError(f"names must be of the form module:name: got {name!r}.")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        hint = " (a module of your own must be on PYTHONPATH)" if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(f"{name!r} must name something that can be imported: {error}{hint}.") from error
    except AttributeError as error:
        raise ValueError(f"{name!r} must name something in {module}: {error}.") from error
