from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torchrl.data import RandomSampler, ReplayBuffer

from eqr_torchrl.imagination import CapturableSampler, CapturableStorage
from eqr_torchrl.testing import toy_batch


def make_buffer(sampler, capacity: int = 30) -> ReplayBuffer:
    return ReplayBuffer(storage=CapturableStorage(capacity), sampler=sampler, batch_size=3000)


def add_rows(buffer: ReplayBuffer, first: int, count: int) -> None:
    rows = toy_batch(B=count).select("observation")
    rows["observation"][:] = torch.arange(first, first + float(count))[:, None]
    buffer.extend(rows)


def drawn(buffer: ReplayBuffer) -> torch.Tensor:
    return buffer.sample()["observation"][:, 0].long()


def test_draws_are_uniform_and_follow_the_buffer():
    torch.manual_seed(0)
    buffer = make_buffer(CapturableSampler())
    for first in (0, 10, 20, 30):  # the last ten overwrite the first
        add_rows(buffer, first, 10)
        counts = drawn(buffer).bincount(minlength=40)
        alive = slice(max(first - 20, 0), first + 10)
        size = first + 10 - alive.start
        assert counts[alive].sum() == 3000
        assert ((counts[alive] - 3000 / size).abs() < 5 * (3000 / size) ** 0.5).all()
    buffer.empty()
    with pytest.raises(RuntimeError, match="must hold rows"):
        buffer.sample()
    add_rows(buffer, 0, 2)
    assert set(drawn(buffer).tolist()) == {0, 1}


@pytest.mark.parametrize(("sampler", "sees_new_rows"), [(CapturableSampler(), True), (RandomSampler(), False)])
def test_a_recorded_draw_sees_rows_that_came_later(sampler, sees_new_rows):
    # make_fx records tensor operations and nothing of the Python around them, as a CUDA graph does
    buffer = make_buffer(sampler)
    add_rows(buffer, 0, 10)
    drawn(buffer)
    recorded = make_fx(lambda: buffer.sample()["observation"])()
    add_rows(buffer, 10, 10)
    assert (recorded()[:, 0].long().unique().numel() == 20) is sees_new_rows
    buffer.add(toy_batch(B=1).select("observation")[0])
    assert (recorded()[:, 0].unique().numel() == 21) is sees_new_rows
