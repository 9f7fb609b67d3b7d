"""Import paths of version 0.2, which lead to the present ones for one version.

Each old module holds ``__getattr__ = moved(__name__, ...)``.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any


def moved(old: str, default: str | None = None, **places: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose names have moved: each is found in its new place, with a warning.

    Args:
        old: name of the old module.
        default: new module of all names without an entry in ``places``; ``None`` if there are none.
        **places: name to new module.
    """

    def find(name: str) -> Any:
        place = places.get(name, default)
        if name.startswith("__") or place is None or not hasattr(importlib.import_module(place), name):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        warnings.warn(f"{old}.{name} has moved to {place}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(place), name)

    return find
