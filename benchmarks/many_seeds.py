"""Whether several seeds in one process, their parameters stacked, make more updates a second than one after the other.

Two updates, written with batched products over ``S`` seeds: ``small`` (member values of pendulum-swingup) and
``default`` (EQR-SAC of walker-run). ``S`` = 1 is what one seed takes on the same path.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from _timing import parse_arguments, print_json, print_table, time_alternately
from torch import Tensor, nn

from eqr_torchrl import functional as F
from eqr_torchrl.networks._cpu import onednn_matmul, uses_bf16
from eqr_torchrl.networks.ensemble import EnsembleLinear
from eqr_torchrl.networks.layers import Tanh
from eqr_torchrl.utility import OptimisticUtility
from eqr_torchrl.world_models import GaussianEnsemble

M, GAMMA, TAU, SEEDS = 5, 0.99, 0.005, (1, 4, 10)
LOW, HIGH = torch.tensor([-1.0]), torch.tensor([1.0])
PIECE = 4096  # rows of all seeds that are evaluated at once without gradient, so that activations stay in the cache


class Stacked(nn.Module):
    """One network for each of ``S`` seeds, ``[S, B, in]`` to ``[S, B, out]``."""

    def __init__(self, num_seeds: int, *sizes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EnsembleLinear(num_seeds, a, b) for a, b in pairwise(sizes))
        self.tanh, self.rounds = Tanh(), uses_bf16("auto")

    def forward(self, rows: Tensor) -> Tensor:
        first, hidden, last = cast(list[EnsembleLinear], list(self.layers))
        if torch.is_grad_enabled():
            return last(self.tanh(hidden(self.tanh(first(rows)))))
        middle = hidden.rounded() if self.rounds else hidden
        parts = rows.split(PIECE // len(rows), 1)
        return torch.cat([last(self.tanh(middle(self.tanh(first(part))))) for part in parts], 1)


def make_stacked(S: int, *, members: bool, states: int, actions: int, B: int, K: int) -> Callable[[], object]:
    """One update of ``S`` seeds: ``members`` trains a value for each member, otherwise quantiles are regressed."""
    model = GaussianEnsemble(states, actions, num_members=S * M, prior_scale=0.5 if members else 0.0)
    num_values = M if members else 51
    actor = Stacked(S, states, 128, 128, 2 * actions)
    critic, target_critic = (Stacked(S, states + actions, 256, 256, num_values) for _ in range(2))
    log_alpha = nn.Parameter(torch.zeros(S, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters(), log_alpha], lr=3e-4, fused=True)
    observation, action = torch.randn(S, B, states), torch.rand(S, B, actions) * 2 - 1
    utility, levels = OptimisticUtility(), F.quantile_midpoints(num_values, dtype=torch.float64)
    trained: list[Tensor] = list(critic.parameters())
    targets: list[Tensor] = list(target_critic.parameters())

    def act(rows: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_std = actor(rows).chunk(2, -1)
        return F.tanh_normal(loc, log_std.clamp(-20, 2).exp(), noise, LOW.expand(actions), HIGH.expand(actions))

    @torch.no_grad()
    def target() -> Tensor:
        inputs = (x.repeat_interleave(M, 0) for x in (observation, action))
        mean, scale = (x.unsqueeze(2) for x in model(*inputs))  # [S * M, B, 1, D]
        drawn = torch.addcmul(mean, scale, F.stratified_normal((S * M, B, K, model.noise_dim), dim=2))
        drawn = drawn.view(S, M, B, K, -1).transpose(1, 2)  # [S, B, M, K, D]
        rows = drawn[..., :states].reshape(S, -1, states)
        noise = F.stratified_normal((S, B * M, K, actions), dim=2).view(S, -1, actions)
        next_action, log_prob = act(rows, noise)
        values = target_critic(torch.cat([rows, next_action], -1)).view(S, B, M, K, -1)
        if members:
            values = values.diagonal(dim1=2, dim2=4).transpose(-1, -2).unsqueeze(-1)  # [S, B, M, K, 1]
        ended = torch.zeros(S, B, M, K, dtype=torch.bool)
        return F.epistemic_quantile_target(
            drawn[..., -1], ended, values, log_prob.view(S, B, M, K), gamma=GAMMA, alpha=log_alpha.exp()[:, :, None]
        )

    @onednn_matmul()
    def update() -> None:
        atoms = target()
        values = critic(torch.cat([observation, action], -1))
        fit = (values - atoms).square().sum(-1) if members else F.quantile_huber_loss(values, atoms, levels)
        drawn, log_prob = act(observation, torch.randn(S, B, actions))
        for parameter in trained:
            parameter.requires_grad_(False)
        ascended = utility(critic(torch.cat([observation, drawn], -1)))
        for parameter in trained:
            parameter.requires_grad_()
        policy = log_alpha.detach().exp() * log_prob - ascended
        (fit + policy - log_alpha * (log_prob.detach() - actions)).mean(1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(targets, trained, TAU)

    return update


def main() -> None:
    """Times both updates for several numbers of seeds."""
    arguments = parse_arguments(__doc__ or "")
    torch.manual_seed(0)
    small = {"members": True, "states": 3, "actions": 1, "B": 128, "K": 2}
    default = {"members": False, "states": 24, "actions": 6, "B": 256, "K": 4}
    candidates = {f"small, {S}": make_stacked(S, **small) for S in SEEDS}
    candidates |= {f"default, {S}": make_stacked(S, **default) for S in SEEDS}
    seconds = time_alternately(candidates, arguments.rounds)
    rates = {name: int(name.split(", ")[1]) / value for name, value in seconds.items()}
    alone = {name: rates[f"{name.split(', ')[0]}, 1"] for name in rates}
    rows = [(n, f"{1e3 * seconds[n]:.1f}", f"{rate:.0f}", f"{rate / alone[n]:.2f}") for n, rate in rates.items()]
    print_table(rows, ("update, seeds", "ms", "updates/s of all seeds", "times faster"))
    if arguments.json:
        print_json(rates)


if __name__ == "__main__":
    main()
