"""CPU matmul backend and precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch

#: Format of matmuls without gradient and those of model fits: ``"auto"`` is ``"bf16"`` on a CPU that has it.
Precision = Literal["auto", "fp32", "bf16"]


def uses_bf16(precision: Precision) -> bool:
    """Whether ``precision`` means matmuls in bfloat16 between hidden layers on the CPU."""
    if precision not in ("auto", "fp32", "bf16"):
        raise ValueError(f'precision must be "auto", "fp32" or "bf16", got {precision!r}.')
    capabilities = torch.cpu.get_capabilities()
    fast = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return precision == "bf16" or (precision == "auto" and fast)


@cache
def _onednn_keeps_float32() -> bool:
    # With AMX, the setting below would round the inputs of matmuls to bfloat16; without AVX-512, PyTorch ignores it.
    capabilities = torch.cpu.get_capabilities()
    return bool(
        torch.backends.mkldnn.is_available() and capabilities.get("avx512_bw") and not capabilities.get("amx_bf16")
    )


@cache
def mkl_uses_avx512() -> bool:
    """Whether MKL, by which PyTorch computes ``tanh`` on CPUs, uses AVX-512: on processors of Intel alone."""
    capabilities = torch.cpu.get_capabilities()
    of_intel = str(capabilities.get("cpu_name")).startswith("Intel")
    return bool(of_intel and capabilities.get("avx512_bw") and torch.backends.mkl.is_available())


@contextmanager
def onednn_matmul() -> Iterator[None]:
    """Context in which oneDNN, instead of MKL, computes float32 matmuls on CPUs with AVX-512.

    On AMD processors oneDNN takes half the time, because MKL uses narrower instructions there; results agree to float32
    rounding. Elsewhere, with AMX (where oneDNN would round to bfloat16), and under ``torch.compile`` nothing changes.
    :func:`torch.get_float32_matmul_precision` is an error meanwhile: enter it around matmuls alone, not code of a user.
    """
    if torch.compiler.is_compiling() or not _onednn_keeps_float32():
        yield
        return
    matmul = torch.backends.mkldnn.matmul
    previous = matmul.fp32_precision
    matmul.fp32_precision = "bf16"  # what PyTorch calls oneDNN with; the kernels for it round only with AMX
    try:
        yield
    finally:
        matmul.fp32_precision = previous
