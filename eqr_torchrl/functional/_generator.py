"""Random numbers from a generator, or from torch's global one."""

from __future__ import annotations

from typing import Any

import torch


def drawn_from(generator: torch.Generator | None) -> dict[str, Any]:
    """Keyword arguments of ``torch.rand`` and its kind, whose ``generator=None`` does not compile for varying sizes."""
    return {} if generator is None else {"generator": generator}
