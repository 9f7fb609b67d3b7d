"""Weight decay grows with the number of members, as published: the loss is divided by M, the decay is not."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble

# Equal rows, so that every bootstrap sample is the same and members see the same batches whatever M is.
SUCCESSOR = {"observation": torch.full((8, 2), 0.4), "reward": torch.ones(8, 1)}
ROWS = TensorDict({"observation": torch.full((8, 2), 0.1), "action": torch.zeros(8, 1), "next": SUCCESSOR}, [8])


def weights_of_member_0(num_members: int, weight_decay: float) -> torch.Tensor:
    """Weights of member 0 after 100 steps, from the same start for any number of members."""
    torch.manual_seed(0)
    start = GaussianEnsemble(2, 1, num_members=1, num_cells=(8,), normalize_targets=False)
    model = GaussianEnsemble(2, 1, num_members=num_members, num_cells=(8,), normalize_targets=False)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(start.get_parameter(name).data.expand_as(parameter))
    FixedStepsFit(model, num_steps=100, weight_decay=weight_decay)(ROWS)
    return torch.cat([parameter.detach()[0].flatten() for parameter in model.parameters()])


def test_a_member_of_five_decays_like_one_alone_with_five_times_the_decay():
    # Adam ignores the scale of g / 5 + d w = (g + 5 d w) / 5
    torch.testing.assert_close(weights_of_member_0(5, 0.01), weights_of_member_0(1, 0.05), atol=1e-4, rtol=0)
    assert (weights_of_member_0(5, 0.01) - weights_of_member_0(1, 0.01)).abs().max() > 1e-2


def test_without_decay_the_number_of_members_changes_nothing():
    torch.testing.assert_close(weights_of_member_0(5, 0.0), weights_of_member_0(1, 0.0), atol=1e-4, rtol=0)
