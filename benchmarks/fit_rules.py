"""How a fit should end: rules for fitting the world model, replayed on recorded streams of transitions.

    python benchmarks/fit_rules.py mountain_car.pt pendulum_swingup.pt cheetah_run.pt --out fit_rules.csv

Each stream is a TensorDict of transitions in the order in which an agent saw them, saved with torch.save. A model is
fitted to the first 1,500 of them and again after every 1,000 more, and judged on the 400 that come next: squared error
and likelihood of one step (in deviations of the data), open-loop error after 20 steps, the share of entries within two
standard deviations of the ensemble, and the seconds of all fits.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tensordict import TensorDictBase

from eqr_torchrl.functional import gaussian_nll, rarity_weights
from eqr_torchrl.world_models import EarlyStoppingFit, FixedStepsFit, GaussianEnsemble, WorldModelFit


class NoBootstrap(FixedStepsFit):
    """The default fit, with all rows in every member's sample."""

    def _fit(self, rows):
        chances = rarity_weights(rows.targets, self.rare_threshold or math.inf)
        index = chances.expand(self.world_model.num_members, -1).multinomial(self.num_steps * self.batch_size, True)
        for batch in index.split(self.batch_size, dim=1):
            self._step(rows, batch, None)
        return {}


class HeldOutEpisodes(EarlyStoppingFit):
    """Early stopping on whole episodes of 1,000 steps (the last one may be shorter) instead of on single rows."""

    def _fit(self, rows):
        def by_episode(size, **kwargs):
            if size != rows.num_rows:  # the order of an epoch
                return draw(size, **kwargs)
            episodes = torch.arange(size).split(1000)
            return torch.cat([episodes[i] for i in draw(len(episodes))])

        draw = torch.randperm
        with mock.patch("torch.randperm", by_episode):
            return super()._fit(rows)


RULES: dict[str, Callable[[GaussianEnsemble], WorldModelFit]] = {
    "early stopping": lambda model: EarlyStoppingFit(model),
    "early stopping, held out by episode": lambda model: HeldOutEpisodes(model),
    "early stopping, likelihood": lambda model: EarlyStoppingFit(model, min_likelihood_improvement=0.01),
    "early stopping, variance weight": lambda model: EarlyStoppingFit(model, variance_weight=0.5),
    "250 steps": lambda model: FixedStepsFit(model, variance_weight=0.0, rare_threshold=None),
    "250 steps, variance weight": lambda model: FixedStepsFit(model, rare_threshold=None),
    "250 steps, variance weight, rare rows": lambda model: FixedStepsFit(model),
    "250 steps, variance weight, rare rows, no bootstrap": lambda model: NoBootstrap(model),
    "125 steps, variance weight, rare rows": lambda model: FixedStepsFit(model, num_steps=125),
}
HORIZON, FUTURE = 20, 400


@torch.no_grad()
def judge(model: GaussianEnsemble, rows: TensorDictBase) -> dict[str, float]:
    state, action, after = rows["observation"], rows["action"], rows["next", "observation"]
    target = torch.cat([after - state, rows["next", "reward"]], -1)
    scale = target.std(0)
    varies, scale = scale > 1e-8, scale.clamp(min=1e-8)
    members = model.num_members
    loc, noise = model(state.expand(members, -1, -1), action.expand(members, -1, -1))
    loc = torch.cat([loc[..., :-1] - state, loc[..., -1:]], -1)
    noise = noise.clamp(min=1e-6)
    total = (loc.var(0) + noise.square().mean(0)).sqrt()
    inside = ((loc.mean(0) - target).abs() <= 2 * total).float()
    nll = gaussian_nll(loc / scale, 2 * (noise / scale).log(), target / scale)
    # open loop: pieces of HORIZON steps without a reset inside
    pieces = len(state) // HORIZON
    states, actions, afters = (
        value[: pieces * HORIZON].unflatten(0, (pieces, HORIZON)) for value in (state, action, after)
    )
    whole = ((afters[:, :-1] - states[:, 1:]).abs().amax(-1) < 1e-5).all(1)
    imagined = states[whole][:, 0].expand(members, -1, -1)
    for step in range(HORIZON):
        imagined = model(imagined, actions[whole][:, step].expand(members, -1, -1))[0][..., :-1]
    drift = ((imagined - afters[whole][:, -1]) / state.std(0).clamp(min=1e-6)).square().mean().sqrt()
    return {
        "mse": ((loc - target) / scale)[..., varies].square().mean().item(),
        "nll": nll[..., varies].mean().item(),
        "drift_20": drift.item(),
        "coverage": inside[:, varies].mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="+", type=Path)
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    parser.add_argument("--prior", nargs=2, type=float, default=(0.0, 0.0), help="of the state and of the reward")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto", help="of products in the fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: list[dict[str, Any]] = []
    for path in args.streams:
        stream = torch.load(path, weights_only=False)
        sizes = stream["observation"].shape[-1], stream["action"].shape[-1]
        ends = range(1500, len(stream) - FUTURE + 1, 1000)
        for name in args.rules:
            torch.manual_seed(args.seed)
            prior = {"prior_scale": args.prior[0], "reward_prior_scale": args.prior[1]}
            model = GaussianEnsemble(*sizes, **prior, precision=args.precision)
            fit, results, seconds = RULES[name](model), [], 0.0
            for end in ends:
                seconds += fit(stream[:end])["seconds"]
                in_bf16, model.uses_bf16 = model.uses_bf16, False  # all fits are judged alike
                results.append(judge(model, stream[end : end + FUTURE]))
                model.uses_bf16 = in_bf16
            medians = {key: sorted(row[key] for row in results)[len(results) // 2] for key in results[0]}
            table.append({"stream": path.stem, "rule": name, "fits": len(ends), **medians, "seconds": seconds})
            print(*(f"{v:.4g}" if isinstance(v, float) else v for v in table[-1].values()), sep=" | ", flush=True)
    if args.out:
        with args.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, table[0])
            writer.writeheader()
            writer.writerows(table)


if __name__ == "__main__":
    main()
