"""Keyword arguments that choose the source of random numbers."""

from __future__ import annotations

from typing import Any

import torch


def generator_kwargs(generator: torch.Generator | None) -> dict[str, Any]:
    """Keyword arguments of ``torch.rand`` and its kind, whose ``generator=None`` does not compile for varying sizes."""
    return {} if generator is None else {"generator": generator}


drawn_from = generator_kwargs
