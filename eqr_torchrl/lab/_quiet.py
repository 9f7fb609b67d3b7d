"""Messages of other libraries about what no user of this package can change."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_alone(logger: str) -> Iterator[None]:
    """Context in which a logger of that name passes errors alone; its level is restored after it."""
    found = logging.getLogger(logger)
    level = found.level
    found.setLevel(logging.ERROR)
    try:
        yield
    finally:
        found.setLevel(level)
