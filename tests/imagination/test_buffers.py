from __future__ import annotations

import pytest
import torch

from eqr_torchrl.imagination import make_model_buffer, make_replay_buffer
from eqr_torchrl.testing import toy_batch


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_a_matter_of_the_storage_alone(dtype):
    buffer, batch = make_model_buffer(100, batch_size=64, dtype=dtype), toy_batch(B=20)
    batch["next", "terminated"][::2] = True
    expected = batch.clone()
    buffer.extend(batch)
    assert (batch == expected).all()  # what was handed over stays as it was
    assert buffer._storage._storage["observation"].dtype == dtype
    sample, info = buffer.sample(return_info=True)
    for key in ("observation", "action", ("next", "observation"), ("next", "reward")):
        assert sample[key].dtype == torch.float32
        torch.testing.assert_close(sample[key], expected[key][info["index"]], rtol=1e-2, atol=1e-2)
    assert sample["next", "terminated"].dtype == torch.bool
    assert torch.equal(sample["next", "terminated"], expected["next", "terminated"][info["index"]])


def test_what_is_too_large_for_half_precision_stays_finite():
    buffer, batch = make_model_buffer(10, batch_size=1, dtype="float16"), toy_batch(B=1)
    batch["next", "reward"].fill_(-1e6)
    buffer.extend(batch)
    assert buffer.sample()["next", "reward"].item() == -65504


@pytest.mark.parametrize("make", [make_replay_buffer, make_model_buffer])
def test_the_oldest_transitions_leave_first_and_sampling_is_uniform_with_replacement(make):
    buffer = make(10, batch_size=6000)
    for begin in (0, 6, 12):
        batch = toy_batch(B=6)
        batch["observation"][:] = torch.arange(begin, begin + 6.0)[:, None]
        buffer.extend(batch)
    drawn = buffer.sample()["observation"][:, 0].long()
    counts = drawn.bincount(minlength=18)
    assert counts[:8].sum() == 0 and len(drawn) == 6000  # 18 rows came, 10 stay
    assert ((counts[8:] - 600).abs() < 5 * 600**0.5).all()


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_buffer_can_be_saved_and_loaded(dtype):
    buffer, fresh = (make_model_buffer(10, batch_size=8, dtype=dtype) for _ in range(2))
    buffer.extend(toy_batch(B=13))
    fresh.load_state_dict(buffer.state_dict())
    samples = []
    for one in (buffer, fresh):
        torch.manual_seed(1)
        samples.append(one.sample())
    assert (samples[0] == samples[1]).all()
    for one in (buffer, fresh):
        torch.manual_seed(2)
        one.extend(toy_batch(B=4))  # both go on at the same place
    assert torch.equal(buffer[:]["observation"], fresh[:]["observation"])


@pytest.mark.parametrize(
    ("make", "kwargs", "message"),
    [
        (make_replay_buffer, {"capacity": 0}, "capacity must be a positive integer, got 0"),
        (make_replay_buffer, {"batch_size": -1}, "batch_size must be a positive integer, got -1"),
        (make_model_buffer, {"capacity": 0}, "capacity must be a positive integer, got 0"),
        (
            make_model_buffer,
            {"capacity": 9, "dtype": torch.int8},
            "dtype must be a floating type such as float16, got torch.int8",
        ),
    ],
)
def test_arguments_out_of_range_are_named(make, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**kwargs)
