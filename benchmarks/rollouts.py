"""How fast D_model is filled: imagined transitions per second, against the machine's own matrix-multiply rate.

Sizes of walker-run: 24 observations, 6 actions, 5 members of 4 x 200 cells, policy of 2 x 128.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Literal

import torch
from _timing import parse_arguments, print_json, print_table, time_alternately

from eqr_torchrl import GaussianEnsemble, ModelBasedEnv, branched_rollout, make_actor, make_model_buffer
from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.networks._cpu import onednn_matmul
from eqr_torchrl.testing import toy_env

S, A, M, STARTS, HORIZON = 24, 6, 5, 8192, 5


def flops_per_row() -> int:
    """Floating-point operations of the two networks' products for one transition."""
    model = [S + A, 200, 200, 200, 200, 2 * (S + 1)]
    actor = [S, 128, 128, 2 * A]
    return 2 * sum(a * b for sizes in (model, actor) for a, b in pairwise(sizes))


def main() -> None:
    """Times rollouts in both member modes and a bare matrix product."""
    arguments = parse_arguments(__doc__ or "")
    warnings.simplefilter("ignore")
    env, world_model = toy_env(S, A), GaussianEnsemble(S, A)
    actor, states = make_actor(env), torch.randn(5000, S)
    total = M * STARTS * HORIZON
    buffer = make_model_buffer(total)
    left, right = torch.randn(4096, 200), torch.randn(200, 200)
    product_flops, repeats = 2 * 4096 * 200 * 200, 50

    def product() -> None:
        for _ in range(repeats):
            torch.mm(left, right)

    def onednn_product() -> None:
        with onednn_matmul():
            product()

    def roll(member: Literal["fixed", "resampled"]):
        model_env = ModelBasedEnv(world_model, env, termination_fn=never_terminates, member=member)
        return lambda: branched_rollout(
            model_env, actor, states, buffer, num_starts=STARTS, horizon=HORIZON, keys=("observation", "action")
        )

    seconds = time_alternately(
        {"product": product, "onednn": onednn_product, "fixed": roll("fixed"), "resampled": roll("resampled")},
        min(arguments.rounds, 5),
        warmup=1,
    )
    peak, onednn_peak = (repeats * product_flops / seconds[name] for name in ("product", "onednn"))
    rows: list[tuple[str, ...]] = [
        ("matrix product 4096 x 200 x 200, PyTorch's default", "", f"{peak / 1e9:.0f}", "100%", ""),
        ("the same by oneDNN", "", f"{onednn_peak / 1e9:.0f}", f"{onednn_peak / peak:.0%}", "100%"),
    ]
    figures = {"peak_gflops": peak / 1e9, "onednn_peak_gflops": onednn_peak / 1e9}
    for member in ("fixed", "resampled"):
        rate = total / seconds[member]
        flops = rate * flops_per_row()
        shares = flops / peak, flops / onednn_peak
        rows.append((f"rollouts, {member} member", f"{rate:,.0f}", f"{flops / 1e9:.0f}", *(f"{s:.0%}" for s in shares)))
        figures |= {
            f"{member}_rows_per_second": rate,
            f"{member}_share_of_peak": shares[0],
            f"{member}_share_of_onednn_peak": shares[1],
        }
    print_table(rows, ("work", "rows/s", "GFLOP/s", "of the product's rate", "of oneDNN's"))
    if arguments.json:
        print_json(figures)


if __name__ == "__main__":
    main()
