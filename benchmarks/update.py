"""How long one whole update takes: losses, backward, optimiser, target step, at the sizes of walker-run.

Candidates, timed alternately: a literal eager implementation of the paper's scheme (5 next states x 5 actions of each
member), this package with the same scheme, and with its default sampling: eager, in float32 alone, and compiled.
"""

from __future__ import annotations

import statistics
import warnings
from functools import partial
from typing import Any, Literal

import torch
from _literal import LiteralUpdate
from _timing import instruction_set, parse_arguments, print_json, print_table, sample_alternately
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from eqr_torchrl import EnsembleSuccessors, EpistemicQuantileLoss, GaussianEnsemble, ModelBasedEnv
from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.networks import fast_inference, make_actor, make_critic
from eqr_torchrl.networks._cpu import onednn_matmul
from eqr_torchrl.objectives import make_optimizer, make_update
from eqr_torchrl.testing import toy_env

S, A, B = 24, 6, 256


def make_candidate(
    *,
    num_next_states: int = 4,
    num_next_actions: int = 1,
    sampling: Literal["stratified", "iid"] = "stratified",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    compile: bool = False,
):
    """One update of this package, as a function of nothing."""
    env = toy_env(S, A)
    model_env = ModelBasedEnv(GaussianEnsemble(S, A, precision=precision), env, termination_fn=never_terminates)
    successors = EnsembleSuccessors(model_env, num_next_states=num_next_states, sampling=sampling)
    loss = EpistemicQuantileLoss(
        make_actor(env),
        make_critic(env),
        num_next_actions=num_next_actions,
        action_sampling=sampling,
        target_inference=partial(fast_inference, precision=precision),
    )
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, tau=0.005)

    def losses_of(batch: TensorDict) -> TensorDict:
        return loss(successors(batch))

    update = make_update(torch.compile(losses_of) if compile else losses_of, make_optimizer(loss), updater)
    batch = TensorDict({"observation": torch.randn(B, S), "action": torch.rand(B, A) * 2 - 1}, [B])
    return lambda: update(batch.copy())


def main() -> None:
    """Times all candidates and prints them."""
    arguments = parse_arguments(__doc__ or "")
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    literal, rows = LiteralUpdate(S, A), (torch.randn(B, S), torch.rand(B, A) * 2 - 1)
    paper: dict[str, Any] = {"num_next_states": 5, "num_next_actions": 5, "sampling": "iid"}

    def literal_with_onednn() -> None:
        with onednn_matmul():
            literal(*rows)

    samples = sample_alternately(
        {
            "literal, 5 x 5": lambda: literal(*rows),
            "literal, 5 x 5, matmuls by oneDNN": literal_with_onednn,
            "5 x 5": make_candidate(**paper),
            "8 stratified": make_candidate(num_next_states=8),
            "4 stratified (default)": make_candidate(),
            "4 stratified, fp32": make_candidate(precision="fp32"),
            "4 stratified, compiled": make_candidate(compile=True),
        },
        arguments.rounds,
    )
    seconds = {name: statistics.median(values) for name, values in samples.items()}
    lowest = {name: min(values) for name, values in samples.items()}
    baseline, lowest_baseline = seconds["literal, 5 x 5"], lowest["literal, 5 x 5"]
    print_table(
        [
            (name, f"{1e3 * value:.1f}", f"{baseline / value:.2f}",
             f"{1e3 * lowest[name]:.1f}", f"{lowest_baseline / lowest[name]:.2f}")
            for name, value in seconds.items()
        ],
        ("update", "ms", "times faster", "lowest ms", "times faster"),
    )  # fmt: skip
    if arguments.json:
        print_json(
            {
                "instruction_set": instruction_set(),
                "threads": torch.get_num_threads(),
                "baseline_ms": 1e3 * baseline,
                "update_ms": 1e3 * min(seconds["4 stratified (default)"], seconds["4 stratified, compiled"]),
                "update_paper_ms": 1e3 * seconds["5 x 5"],
                "update_eager_ms": 1e3 * seconds["4 stratified (default)"],
                "update_fp32_ms": 1e3 * seconds["4 stratified, fp32"],
                "update_ratio": baseline / seconds["4 stratified (default)"],
                "update_paper_ratio": baseline / seconds["5 x 5"],
            }
        )


if __name__ == "__main__":
    main()
