from __future__ import annotations

import ctypes
import math
import os
import sys
from pathlib import Path

import pytest
import torch

from eqr_torchrl.imagination import make_model_buffer
from eqr_torchrl.lab import memory
from eqr_torchrl.lab.memory import BufferMemory, buffer_memory, check_memory, memory_limit, release_memory
from eqr_torchrl.testing import toy_batch

GIB = 2**30


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of 16 GiB without containers or jobs; returns the folder of the container's files."""
    monkeypatch.setattr(memory, "_of_machine", lambda: [(16 * GIB, "the memory of the machine")])
    groups, read = tmp_path / "groups", memory._of_containers
    monkeypatch.setattr(memory, "_of_containers", lambda: read(tmp_path / "fs", groups))
    monkeypatch.setattr(memory, "_of_job", list)
    return tmp_path


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("keys", [("observation", "action"), None])
@pytest.mark.parametrize("rows", [None, 1, 5])
def test_the_reported_memory_is_that_of_the_storage(dtype, keys, rows):
    transitions = toy_batch(B=rows or 1) if keys is None else toy_batch(B=rows or 1).select(*keys)
    buffer = make_model_buffer(2**17, dtype=dtype)
    buffer.extend(transitions)
    stored = buffer._storage._storage
    expected = sum(value.numel() * value.element_size() for value in stored.values(True, True))
    assert buffer_memory("D", 2**17, transitions if rows else transitions[0], dtype).num_bytes == expected


def test_memory_of_the_papers_protocol_on_quadruped_run(machine):
    # 25 million rows of 78 observations and 12 actions: 90 x 4 bytes each, 9 GB or 8.38 GiB
    transition = toy_batch(B=1, observation_dim=78, action_dim=12)[0].select("observation", "action")
    model = buffer_memory("D_model", 25_000_000, transition)
    assert str(model) == "D_model (25,000,000 transitions) will use up to 8.38 GiB of cpu memory."
    assert "4.19 GiB" in str(buffer_memory("D_model", 25_000_000, transition, torch.float16))
    check_memory(model)
    with pytest.raises(ValueError, match=r"^D must fit into 16.00 GiB, the memory of the machine: 50,000,000 .* 16.76"):
        check_memory(buffer_memory("D", 50_000_000, transition))


def test_buffers_of_one_device_must_fit_together(machine):
    ten = [BufferMemory(name, 1, 10 * GIB) for name in ("D", "D_model")]
    check_memory(*ten[:1])
    with pytest.raises(ValueError, match="^D and D_model must fit into 16.00 GiB"):
        check_memory(*ten)


@pytest.mark.parametrize(
    ("groups", "files", "gib"),
    [
        ("0::/", {}, 16),
        ("0::/job/step\n", {"job/step/memory.max": "max", "job/memory.max": str(3 * GIB)}, 3),  # that of the job above
        ("0::/job/step\n", {"job/step/memory.max": str(2 * GIB), "job/memory.max": str(3 * GIB)}, 2),
        ("0::/\n", {"memory.max": str(4 * GIB)}, 4),  # inside a container that sees itself as the root
        ("5:cpu:/x\n4:memory:/box\n", {"memory/box/memory.limit_in_bytes": str(5 * GIB)}, 5),
        ("4:memory:/box\n", {"memory/memory.limit_in_bytes": str(6 * GIB)}, 6),
        ("4:memory:/box\n", {"memory/box/memory.limit_in_bytes": str(2**63 - 4096)}, 16),  # no limit, in version 1
        ("0::/job\n", {"job/memory.max": "unreadable"}, 16),
    ],
)
def test_limit_of_a_container_is_respected(machine, groups, files, gib):
    (machine / "groups").write_text(groups)
    for name, text in files.items():
        path = machine / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    limit, source = memory_limit()
    assert limit == gib * GIB
    assert source == ("the memory of the machine" if gib == 16 else "the limit of the container or job")


def test_limit_of_a_job_is_respected(monkeypatch):
    resource = pytest.importorskip("resource")
    limits = {resource.RLIMIT_AS: (GIB // 2, GIB), resource.RLIMIT_DATA: (resource.RLIM_INFINITY,) * 2}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert memory_limit() == (GIB // 2, "the limit of the job (ulimit)")


def test_a_system_that_tells_nothing_sets_no_limit(monkeypatch):
    monkeypatch.delattr(os, "sysconf")  # as on Windows
    monkeypatch.setattr(memory, "_of_containers", list)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert memory_limit()[0] == math.inf
    check_memory(BufferMemory("D", 1, 2**60))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library keeps no freed memory")
def test_freed_memory_between_blocks_that_are_in_use_is_returned():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    release_memory()
    blocks = [torch.ones(25_000) for _ in range(800)]  # 100 kB, below the size of which each has pages of its own
    in_use = blocks[::2]
    del blocks
    before = resident()
    release_memory()
    assert before - resident() > 0.8 * 400 * 100_000
    assert all(bool((block == 1).all()) for block in in_use)
