"""What the command lines without Hydra share: help from the script's first lines, and errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def parser_of(about: str | None, script: str) -> argparse.ArgumentParser:
    """A parser whose help begins with the script's documentation, in which the command goes by its own name.

    Args:
        about: the script's ``__doc__``.
        script: its file name, which examples in ``about`` call as ``python examples/SCRIPT``.

    Examples:
        >>> parser_of("python examples/look.py RUN", "look.py").description
        '%(prog)s RUN'
    """
    about = (about or "").replace(f"python examples/{script}", "%(prog)s")
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def short(value: float) -> str:
    """A return in few digits, whatever its unit.

    Examples:
        >>> short(-1234.567), short(0.012345)
        ('-1234.6', '0.0123')
    """
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def run_command(main: Callable[[], Any]) -> None:
    """Calls ``main``, and ends with one line for an error that a user can cause.

    Examples:
        >>> run_command(lambda: int("five"))
        Traceback (most recent call last):
        SystemExit: ...: invalid literal for int() with base 10: 'five'
    """
    try:
        main()
    except (ValueError, ImportError, RuntimeError, OSError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
