"""Random numbers from a generator, or from torch's global one."""

from __future__ import annotations

import torch


def drawn_from(generator: torch.Generator | None) -> dict[str, torch.Generator]:
    """Keyword arguments of ``torch.rand`` and its kind: a compiler refuses ``generator=None`` at a varying batch size."""
    return {} if generator is None else {"generator": generator}
