from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from eqr_torchrl.tabular import count_transitions


def trajectories() -> TensorDict:
    """Two trajectories of three steps; the first one ends after two."""
    state = torch.tensor([[0, 1, 0], [1, 1, 0]])
    return TensorDict(
        {
            "observation": state,
            "action": torch.tensor([[1, 0, 1], [0, 0, 1]]),
            "next": {
                "observation": torch.tensor([[1, 2, 1], [1, 0, 2]]),
                "reward": torch.tensor([[[1.0], [2.0], [50.0]], [[3.0], [4.0], [5.0]]]),
                "done": torch.tensor([[[False], [True], [False]], [[False], [False], [False]]]),
            },
        },
        [2, 3],
    )


def test_counts_and_sums_of_a_batch():
    seen = count_transitions(trajectories(), 3, 2)
    assert seen.counts.shape == (2, 3, 2, 3)
    assert seen.counts[0].nonzero().tolist() == [[0, 1, 1], [1, 0, 2]]  # the step after the end is left out
    assert seen.counts[1, 1, 0].tolist() == [1.0, 1.0, 0.0]
    assert seen.reward_sums[0, 0, 1] == 1.0
    assert seen.reward_sums[1, 1, 0] == 3.0 + 4.0
    assert seen.visits[1].tolist() == [[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]


def test_a_single_trajectory():
    seen = count_transitions(trajectories()[1], 3, 2)
    assert seen.counts.shape == (3, 2, 3)
    assert seen.counts.sum() == 3


@pytest.mark.parametrize(("states", "actions", "message"), [(1, 2, "observation"), (3, 1, "action")])
def test_out_of_range_indices_are_refused(states, actions, message):
    with pytest.raises(ValueError, match=message):
        count_transitions(trajectories(), states, actions)


def test_a_next_state_out_of_range_is_refused():
    batch = trajectories()
    batch["next", "observation"][1, 2] = 3  # an absorbing state that was not counted
    with pytest.raises(ValueError, match=r"next observation must lie in 0..2: got 0..3"):
        count_transitions(batch, 3, 2)


def test_continuous_states_are_refused():
    batch = trajectories()
    batch["observation"] = batch["observation"].float()
    with pytest.raises(ValueError, match="observation must hold one integer"):
        count_transitions(batch, 3, 2)
