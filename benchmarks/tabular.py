"""What makes the tabular studies quick: one batch instead of runs in a row, the faster count, few posterior rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _timing import parse_arguments, print_json, print_table, time_alternately

from eqr_torchrl.tabular import (
    DirichletPosterior,
    EmpiricalPosterior,
    epistemic_quantile_regression,
    eqr,
    nroom_prior,
    sample_toy_parameter,
    toy_mdp,
)

ITERATIONS = 20  # of each timed run
BETAS, RUNS = 50, 3  # with three posteriors: the 450 runs of the toy study
ROOM_STATES, ROOM_QUANTILES, SNAPSHOTS = 78, 100, 3  # the grid-world study


def main() -> None:
    """Times the candidates and prints one table."""
    arguments = parse_arguments(__doc__ or "")
    torch.manual_seed(0)
    x = torch.stack([sample_toy_parameter(name, 5000) for name in ("gaussian", "bimodal", "heavy_tailed")])
    study = EmpiricalPosterior(toy_mdp(torch.linspace(0, 1, BETAS).unsqueeze(-1), x.unsqueeze(1)))
    single = EmpiricalPosterior(toy_mdp(0.5, x[0]))
    no_choice = torch.zeros(4, dtype=torch.long)
    toy = partial(epistemic_quantile_regression, num_quantiles=10, num_iterations=ITERATIONS, step_size=5e-3)

    # three posteriors of the grid world that differ in a few rows, as after 1, 10 and 100 episodes
    concentration = nroom_prior().transitions.concentration.repeat(SNAPSHOTS, 1, 1, 1)
    for visits, snapshot in zip((1, 10, 100), concentration, strict=True):
        snapshot[torch.arange(38, 45), 1, torch.arange(39, 46)] += visits
    rooms = DirichletPosterior(concentration)
    right = torch.ones(ROOM_STATES, dtype=torch.long)

    def count(size: tuple[int, int], most_pairs: int) -> None:
        eqr._MAX_PAIRWISE_TARGETS = most_pairs
        eqr._share_below(*arrays[size])

    arrays: dict[tuple[int, int], Any] = {}
    for batch, states, quantiles in ((3 * BETAS * RUNS, 4, 10), (SNAPSHOTS, ROOM_STATES, ROOM_QUANTILES)):
        process = single.sample_process(no_choice, (batch,))
        if states == ROOM_STATES:
            process = nroom_prior().sample_process(right, (batch,))
        arrays[batch * states, quantiles] = (torch.rand(batch, states, quantiles, dtype=torch.float64), process)
    small, large = arrays
    pairs, sort = 10**9, 0
    groups: dict[str, tuple[dict[str, Callable[[], object]], dict[str, float]]] = {
        "toy study, 450 runs": (
            {
                "one run after the other": lambda: toy(single, no_choice),
                "one batch": lambda: toy(study, no_choice, run_shape=(RUNS,)),
            },
            {"one run after the other": 3 * BETAS * RUNS / ITERATIONS, "one batch": 1 / ITERATIONS},
        ),
        f"count, {small[0]} x {small[1]} quantiles": (
            {"sorting": lambda: count(small, sort), "all pairs": lambda: count(small, pairs)},
            {},
        ),
        f"count, {large[0]} x {large[1]} quantiles": (
            {"all pairs": lambda: count(large, pairs), "sorting": lambda: count(large, sort)},
            {},
        ),
        "grid world, 3 posteriors": (
            {
                "whole MDPs": lambda: rooms.sample((4,)),
                "rows of the policy": lambda: rooms.sample((4,), policy=right),
            },
            dict.fromkeys(("whole MDPs", "rows of the policy"), 0.25),
        ),
    }
    rows, figures = [], {}
    for group, (candidates, scale) in groups.items():
        seconds = time_alternately(candidates, arguments.rounds)
        milliseconds = {name: 1000 * scale.get(name, 1.0) * value for name, value in seconds.items()}
        slowest = milliseconds[next(iter(milliseconds))]
        for name, value in milliseconds.items():
            rows.append((group, name, f"{value:.2f}", f"{slowest / value:.1f}"))
            figures[f"{group}: {name}"] = value
    print_table(rows, ("one iteration of", "how", "ms", "times as fast"))
    if arguments.json:
        print_json(figures)


if __name__ == "__main__":
    main()
