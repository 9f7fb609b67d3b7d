"""Critics of any build, alone or in lists: layer norm, dropout, batch dimensions, shared encoders."""

from __future__ import annotations

import pytest
import torch
from loss_parts import linear_critic, make_loss, seeded
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import MLP, ValueOperator

from eqr_torchrl.objectives import EpistemicQuantileLoss, make_optimizer, make_update
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic


def critic_of(*layers: nn.Module) -> TensorDictModule:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*layers)

        def forward(self, observation, action):
            return self.net(torch.cat([observation, action], -1))

    return TensorDictModule(Net(), ["observation", "action"], ["state_action_value"])


BUILDS = {
    "layer norm": lambda: critic_of(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5)),
    "dropout": lambda: critic_of(nn.Linear(4, 8), nn.Dropout(0.2), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5)),
    "torchrl": lambda: ValueOperator(MLP(in_features=4, out_features=5, num_cells=[8]), ["observation", "action"]),
    "toy": toy_critic,
}


@pytest.mark.parametrize("build", list(BUILDS))
@pytest.mark.parametrize("size", [(), (2, 3)])
def test_critics_of_any_build_train(build, size):
    loss = make_loss(critic=BUILDS[build](), tau=0.5)
    assert (loss.qvalue_network_params.detach() == loss.target_qvalue_network_params).all()
    update = make_update(loss, make_optimizer(loss, lr_critic=1e-2), loss.updater)
    batch = toy_batch(16, *size)
    batch["next", "terminated"].fill_(True)  # targets stand still
    losses = torch.stack([update(batch)["loss_qvalue"] for _ in range(30)])
    assert torch.isfinite(losses).all() and losses[-5:].mean() < 0.9 * losses[:5].mean()


def test_dropout_draws_anew_in_training_and_not_in_evaluation():
    loss, batch = make_loss(critic=BUILDS["dropout"]()), toy_batch(B=16)
    batch["next", "terminated"].fill_(True)  # the target is the reward: only the prediction can differ
    assert loss.qvalue_v2_loss(batch)[0] != loss.qvalue_v2_loss(batch)[0]
    loss.eval()
    loss.qvalue_network.eval()  # networks are kept outside the module tree
    assert loss.qvalue_v2_loss(batch)[0] == loss.qvalue_v2_loss(batch)[0]


def test_critics_built_differently_keep_their_weights_and_are_saved_and_updated():
    critics = nn.ModuleList([BUILDS["layer norm"](), toy_critic(num_cells=(4, 4, 4))])  # a list may be one of torch
    loss, batch = make_loss(critic=critics, tau=0.5), toy_batch(B=6, M=2, K=3)
    for i, critic in enumerate(critics):
        kept = loss.qvalue_network_params["critics", str(i)].flatten_keys(".")
        assert all(kept[name] is value for name, value in critic.named_parameters())
    make_update(loss, make_optimizer(loss), loss.updater)(batch)
    fresh = make_loss(critic=[BUILDS["layer norm"](), toy_critic(num_cells=(4, 4, 4))])
    fresh.load_state_dict(loss.state_dict(), strict=True)
    assert seeded(fresh, batch)["loss_qvalue"] == seeded(loss, batch)["loss_qvalue"]


def test_the_loss_of_several_critics_is_the_sum_of_theirs():
    actor, critics, batch = toy_actor(), [toy_critic(), toy_critic()], toy_batch(B=6)
    batch["next", "terminated"].fill_(True)  # the target is the reward, whatever the critics say
    both = make_loss(actor, critics)(batch)["loss_qvalue"]
    torch.testing.assert_close(both, sum(make_loss(actor, [c])(batch)["loss_qvalue"] for c in critics))


def test_the_td_error_of_several_critics_is_the_largest():
    # values 0 and 10 where the episode ends with a reward of 1: errors of 1 and 9
    critics = [linear_critic([0.0, 0.0, 0.0], [0.0], [value, value]) for value in (0.0, 10.0)]
    batch = toy_batch(B=2, M=2, K=1)
    batch["next", "reward"].fill_(1.0)
    batch["next", "terminated"].fill_(True)
    make_loss(critic=critics)(batch)
    assert batch["td_error"].tolist() == [9.0, 9.0]


def test_lazy_layers_work_once_they_are_initialised():
    critic = critic_of(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(5))
    critic(toy_batch())
    loss = make_loss(critic=critic)
    assert torch.isfinite(loss(toy_batch())["loss_qvalue"])
    assert (loss.qvalue_network_params.detach() == loss.target_qvalue_network_params).all()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(3, 8), nn.Linear(9, 5)

    def forward(self, observation, action):
        return self.head(torch.cat([self.shared(observation).tanh(), action], -1))


def test_an_encoder_shared_with_the_policy_learns_from_the_critic():
    actor, encoder = toy_actor(num_cells=(8,)), Encoder()
    encoder.shared = actor.module[0].module.network[0]
    critic = TensorDictModule(encoder, ["observation", "action"], ["state_action_value"])
    loss = make_loss(actor, critic)
    loss(toy_batch(B=6))["loss_qvalue"].backward()
    assert encoder.shared.weight.grad.any() and encoder.head.weight.grad.any()
    make_update(loss, make_optimizer(loss), loss.updater)(toy_batch(B=6))


def test_one_critic_is_copied_with_new_weights():
    critic = toy_critic()
    loss = make_loss(critic=critic, num_qvalue_nets=3)
    nets = [loss.qvalue_network_params["critics", str(i)].flatten_keys(".") for i in range(3)]
    assert all(nets[0][name] is weight for name, weight in critic.named_parameters())  # the first is the user's own
    for name in (name for name, weight in critic.named_parameters() if weight.ndim == 2):
        assert not any(torch.equal(nets[i][name], nets[j][name]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert torch.isfinite(loss(toy_batch(B=6, M=2, K=3))["loss_qvalue"])


def test_a_critic_that_cannot_be_drawn_anew_is_not_copied():
    with pytest.raises(ValueError, match="qvalue_network must be a list of 2 critics for num_qvalue_nets=2: no layer"):
        make_loss(critic=linear_critic([1.0] * 3, [1.0], [0.0]), num_qvalue_nets=2)


def test_an_optimiser_takes_no_running_statistics():
    critic = critic_of(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    loss = make_loss(critic=critic)
    trained = {id(p) for group in make_optimizer(loss).param_groups for p in group["params"]}
    assert trained == {id(p) for p in loss.parameters()}


def test_a_lazy_critic_is_copied_after_its_first_call():
    critic = critic_of(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(5))
    with pytest.raises(ValueError, match="qvalue_network must have its weights before it is copied: call it once"):
        EpistemicQuantileLoss(toy_actor(), critic, num_qvalue_nets=2)
    critic(toy_batch(B=4))
    loss = EpistemicQuantileLoss(toy_actor(), critic, num_qvalue_nets=2, delay_qvalue=False)
    assert loss(toy_batch(B=4))["loss_qvalue"].isfinite()


def test_a_function_is_no_critic():
    with pytest.raises(ValueError, match="qvalue_network must be a TensorDictModule .* got function"):
        EpistemicQuantileLoss(toy_actor(), lambda tensordict: tensordict)
