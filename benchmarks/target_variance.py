"""What a target costs and how noisy it is: nested draws, independent and stratified pairs of next state and action.

The agent is trained here first, on Pendulum-v1, in about a minute. Then the same transitions get their targets many
times over under each scheme. The table shows, against critic evaluations per member: the variance of a target atom
relative to the paper's nested 5 x 5 scheme, and the 1-Wasserstein distance between the sampled atoms and their
expectation.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from _timing import parse_arguments, print_json, print_table
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from eqr_torchrl import (
    EnsembleSuccessors,
    EpistemicQuantileLoss,
    FixedStepsFit,
    GaussianEnsemble,
    ModelBasedEnv,
    branched_rollout,
    make_actor,
    make_critic,
    make_env,
    make_model_buffer,
)
from eqr_torchrl.functional import wasserstein_distance
from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.objectives import make_optimizer, make_update

UPDATES, REPEATS = 1500, 100


def trained_agent() -> tuple[EpistemicQuantileLoss, ModelBasedEnv, TensorDict]:
    """A loss, its world model as an environment, and transitions, after a short training on Pendulum-v1."""
    env = make_env("Pendulum-v1", seed=0)
    actor, critic = make_actor(env), make_critic(env)
    world_model = GaussianEnsemble(3, 1)
    model_env = ModelBasedEnv(world_model, env, termination_fn=never_terminates)
    loss = EpistemicQuantileLoss(actor, critic)
    loss.make_value_estimator(gamma=0.99)
    successors = EnsembleSuccessors(model_env, num_next_states=2)
    rates = {"lr_actor": 1e-3, "lr_critic": 1e-3, "lr_alpha": 1e-3}
    optimizer, updater = make_optimizer(loss, **rates), SoftUpdate(loss, tau=0.02)
    update = make_update(lambda batch: loss(successors(batch)), optimizer, updater)
    with torch.no_grad():
        data: Any = torch.cat([env.rollout(200, actor) for _ in range(4)])  # pyright: ignore[reportArgumentType]
    FixedStepsFit(world_model)(data)
    buffer = make_model_buffer(20_000, batch_size=128)
    for _ in range(3):
        branched_rollout(
            model_env,
            actor,
            data["observation"],
            buffer,
            num_starts=400,
            horizon=5,
            keys=("observation", "action"),
        )
        for _ in range(UPDATES // 3):
            update(buffer.sample())
    return loss, model_env, buffer.sample(256).select("observation", "action")


@torch.no_grad()
def draws(
    loss, model_env, batch, *, num_next_states: int, num_next_actions: int, sampling: Literal["stratified", "iid"]
) -> torch.Tensor:
    """Targets ``[REPEATS, B, M * N]`` of one batch."""
    successors = EnsembleSuccessors(model_env, num_next_states=num_next_states, sampling=sampling)
    loss.num_next_actions, loss.action_sampling = num_next_actions, sampling
    return torch.stack([loss.compute_target(successors(batch.copy())) for _ in range(REPEATS)])


def main() -> None:
    """Trains, measures and prints."""
    arguments = parse_arguments(__doc__ or "")
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    loss, model_env, batch = trained_agent()
    schemes: dict[str, Any] = {"nested 5 x 5 (paper)": (5, 5, "iid")}
    for count in (1, 2, 4, 8, 25):
        schemes[f"{count} independent pairs"] = (count, 1, "iid")
        schemes[f"{count} stratified pairs"] = (count, 1, "stratified")
    targets = {
        name: draws(loss, model_env, batch, num_next_states=k, num_next_actions=y, sampling=sampling)
        for name, (k, y, sampling) in schemes.items()
    }
    # all schemes are unbiased: the average over every draw of the most exact one is the expectation
    expectation = targets["25 stratified pairs"].mean(0)
    variance = {name: target.var(0).mean().item() for name, target in targets.items()}
    baseline = variance["nested 5 x 5 (paper)"]
    rows, figures = [], {}
    for name, target in targets.items():
        k, y, _ = schemes[name]
        distance = wasserstein_distance(target, expectation).mean().item()
        rows.append((name, str(k * y), f"{variance[name] / baseline:.2f}", f"{distance:.3f}"))
        figures[name.replace(" ", "_")] = variance[name] / baseline
    header = ("next states and actions", "critic evaluations", "relative variance", "W1 to expectation")
    print_table(rows, header)
    if arguments.json:
        print_json(figures)


if __name__ == "__main__":
    main()
