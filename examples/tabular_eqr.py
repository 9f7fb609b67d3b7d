"""The tabular studies of Luis et al. (2024), https://arxiv.org/abs/2308.06590, whose truth can be computed.

python examples/tabular_eqr.py                        # experiment=toy: Figures 2 and 5
python examples/tabular_eqr.py experiment=nroom       # Figure 6
python examples/tabular_eqr.py experiment=qr_loss     # Figure 4; also psrl, unrolling (Appendix A)
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_type_hints

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from tqdm import tqdm

from eqr_torchrl.functional import quantile_projection, wasserstein_distance
from eqr_torchrl.runs import RunStatus, make_run_folder, run_hydra
from eqr_torchrl.tabular import (
    EmpiricalPosterior,
    NRoom,
    TransitionStatistics,
    bellman_targets,
    count_transitions,
    epistemic_quantile_regression,
    nroom_mdp,
    nroom_prior,
    plotting,
    policy_iteration,
    policy_values,
    process_values,
    psrl,
    sample_toy_parameter,
    sample_values,
    toy_mdp,
    value_distribution_iteration,
    value_distribution_samples,
)

TOY_COLUMNS = ("gaussian", "bimodal", "heavy_tailed")  # left, middle and right column of Figure 5
NO_CHOICE = torch.zeros(4, dtype=torch.long)  # the policy of the toy MDP


def toy(
    folder: Path,
    generator: torch.Generator,
    progress: bool,
    *,
    num_samples: int,
    truncation: str,
    num_quantiles: int,
    num_iterations: int,
    step_size: float,
    num_betas: int,
    num_runs: int,
    num_limit_betas: int,
    example_beta: float,
) -> None:
    """EQR against the true posterior of values, without a cycle and with cycles of any strength."""
    draws = {"num_samples": num_samples, "truncation": truncation, "generator": generator}
    x = torch.stack([sample_toy_parameter(name, **draws) for name in TOY_COLUMNS])  # [P, Q]
    betas = torch.linspace(0, 1, num_betas, dtype=torch.float64)
    mdps = toy_mdp(betas.unsqueeze(-1), x.unsqueeze(1))  # [P, b, Q]
    values = process_values(mdps.under(NO_CHOICE))[..., 0]
    truth = quantile_projection(values, num_quantiles)  # [P, b, N]
    with tqdm(total=num_iterations, disable=not progress, unit="iteration") as bar:
        estimate = epistemic_quantile_regression(
            EmpiricalPosterior(mdps),
            NO_CHOICE,
            num_quantiles=num_quantiles,
            num_iterations=num_iterations,
            step_size=step_size,
            run_shape=(num_runs,),
            record_states=(0,),
            record_every=max(1, num_iterations // 500),
            progress=bar.update,
            generator=generator,
        )
    distances = wasserstein_distance(estimate.quantiles[..., 0, :], truth)  # [R, P, b]

    # The exact fixed point of the same update: what remains of the distance without any noise
    few_x = quantile_projection(x, 500)
    limit_betas = torch.linspace(0, 1, num_limit_betas, dtype=torch.float64)
    processes = toy_mdp(limit_betas, few_x.T[:, :, None]).under(NO_CHOICE)  # [500, P, c]
    limit = value_distribution_iteration(processes, num_quantiles=num_quantiles)[..., 0, :]
    limit_truth = quantile_projection(process_values(processes)[..., 0].movedim(0, -1), num_quantiles)
    limits = wasserstein_distance(limit, limit_truth)  # [P, c]

    write_csv(
        folder / "wasserstein.csv",
        ("posterior", "beta", "seed", "wasserstein_1"),
        (
            (name, float(beta), run, float(distances[run, column, at]))
            for column, name in enumerate(TOY_COLUMNS)
            for at, beta in enumerate(betas)
            for run in range(num_runs)
        ),
    )
    errors = truth[:, 0] - estimate.history[:, 0, :, 0, 0]  # [I, P, N], without a cycle
    by_beta = distances.movedim(0, -1)  # [P, b, R]
    save(
        plotting.plot_toy(
            dict(zip(TOY_COLUMNS, values[:, 0], strict=True)),
            estimate.history_iterations,
            errors,
            betas,
            by_beta,
            limit_betas,
            limits,
        ),
        folder / "figures" / "toy.png",
    )
    example_x = sample_toy_parameter("example", **draws)
    example_values = process_values(toy_mdp(example_beta, example_x).under(NO_CHOICE))[:, 0]
    figure = plotting.plot_uncertain_transition(example_x, example_values, beta=example_beta)
    save(figure, folder / "figures" / "uncertain_transition.png")

    averaged = wasserstein_distance(estimate.history[-len(estimate.history) // 10 :, ..., 0, :].mean(0), truth).mean(0)
    print(f"1-Wasserstein distance after {num_iterations:,} iterations, mean and range of {num_runs} runs")
    for column, name in enumerate(TOY_COLUMNS):
        for at in (0, -1):
            runs = by_beta[column, at]
            print(
                f"  {name:12} beta {betas[at]:.0f}: {runs.mean():.3f} ({runs.min():.3f} to {runs.max():.3f}), "
                f"last tenth averaged {averaged[column, at]:.3f}, exact fixed point {limits[column, at]:.3f}"
            )


def qr_loss(
    folder: Path,
    generator: torch.Generator,
    progress: bool,
    *,
    num_samples: int,
    beta: float,
    levels: Sequence[float],
    num_grid: int,
) -> None:
    """The quantile-regression loss, whose minima are the quantiles of the value distribution."""
    x = sample_toy_parameter("example", num_samples, generator=generator)
    values = process_values(toy_mdp(beta, x).under(NO_CHOICE))[:, 0]
    grid = torch.linspace(-1, 1, num_grid, dtype=torch.float64)
    tau = torch.tensor(levels, dtype=torch.float64)
    gap = values - grid.unsqueeze(-1)  # [G, Q]; Eq. 12 of the paper for each level
    losses = tau.unsqueeze(-1) * gap.clamp_min(0).mean(-1) + (1 - tau).unsqueeze(-1) * (-gap).clamp_min(0).mean(-1)
    write_csv(
        folder / "qr_loss.csv",
        ("level", "v", "loss"),
        (
            (level, float(v), float(loss))
            for level, row in zip(levels, losses, strict=True)
            for v, loss in zip(grid, row, strict=True)
        ),
    )
    save(plotting.plot_quantile_loss(values, tau, grid, losses), folder / "figures" / "qr_loss.png")
    quantiles = torch.quantile(values, tau, interpolation="nearest")
    for level, quantile, at in zip(levels, quantiles, losses.argmin(-1), strict=True):
        print(f"  level {level:g}: quantile {quantile:.3f}, minimum of the loss at {grid[at]:.3f}")


def nroom(
    folder: Path,
    generator: torch.Generator,
    progress: bool,
    *,
    snapshots: Sequence[int],
    horizon: int,
    num_quantiles: int,
    num_iterations: int,
    step_size: float,
    num_truth: int,
    num_reference: int,
) -> None:
    """EQR on the posterior of a grid world after more and more episodes of the optimal policy."""
    mdp = nroom_mdp()
    start = mdp.initial_state
    policy, _ = policy_iteration(nroom_mdp(left_prize_ends_episode=True))
    posterior = nroom_prior(shared_noise=True).update(follow(policy, snapshots, horizon))  # [P]
    values = sample_values(posterior, policy, num_reference, generator=generator)[..., start].T  # [P, Q]
    truth, reference = (quantile_projection(v, num_quantiles) for v in (values[:, :num_truth], values))  # [P, N]
    with tqdm(total=num_iterations, disable=not progress, unit="iteration") as bar:
        estimate = epistemic_quantile_regression(
            posterior,
            policy,
            num_quantiles=num_quantiles,
            num_iterations=num_iterations,
            step_size=step_size,
            record_states=(start,),
            progress=bar.update,
            generator=generator,
        )
    history = estimate.history[:, :, 0]  # [I, P, N]
    distances = wasserstein_distance(history, truth)  # [I, P]
    write_csv(
        folder / "nroom.csv",
        ("episode", "iteration", "wasserstein_1"),
        (
            (episode, iteration, float(distances[iteration - 1, column]))
            for column, episode in enumerate(snapshots)
            for iteration in range(1, num_iterations + 1)
        ),
    )
    # What num_truth draws leave to chance: the distance of such a sample from the larger one
    blocks = quantile_projection(values.unfold(-1, num_truth, num_truth), num_quantiles)  # [P, blocks, N]
    chance = wasserstein_distance(blocks, reference.unsqueeze(1)).mean(-1)  # [P]
    figure = plotting.plot_nroom(
        snapshots,
        values[:, :num_truth],
        history[-1],
        estimate.history_iterations,
        distances,
        true_value=float(policy_values(mdp, policy)[start]),
        sampling_error=chance,
    )
    save(figure, folder / "figures" / "nroom.png")

    last = max(1, num_iterations // 10)
    against_reference = wasserstein_distance(history[-last:], reference).mean(0)
    averaged = wasserstein_distance(history[-last:].mean(0), reference)
    print(f"1-Wasserstein distance, mean over the last {last} iterations")
    for column, episode in enumerate(snapshots):
        print(
            f"  after {episode:3} episodes: {distances[-last:, column].mean():.2f} against {num_truth:,} true samples, "
            f"{against_reference[column]:.2f} against {num_reference:,}, of which {averaged[column]:.2f} remain when "
            f"the iterates are averaged; {num_truth:,} true samples are themselves off by {chance[column]:.2f}"
        )


def psrl_study(
    folder: Path, generator: torch.Generator, progress: bool, *, num_episodes: int, horizon: int, num_runs: int
) -> None:
    """Posterior sampling finds the way to the prize."""
    env = NRoom(left_prize_ends_episode=True, batch_size=(num_runs,))
    env.set_seed(generator.initial_seed())
    with tqdm(total=num_episodes, disable=not progress, unit="episode") as bar:
        result = psrl(
            env,
            nroom_prior(),
            num_episodes=num_episodes,
            horizon=horizon,
            true_mdp=env.mdp,
            progress=bar.update,
            generator=generator,
        )
    assert result.regret is not None
    write_csv(
        folder / "psrl.csv",
        ("episode", "seed", "episode_return", "regret"),
        (
            (episode + 1, run, float(result.episode_returns[episode, run]), float(result.regret[episode, run]))
            for run in range(num_runs)
            for episode in range(num_episodes)
        ),
    )
    save(plotting.plot_regret(result.regret), folder / "figures" / "psrl.png")
    last = max(1, num_episodes // 10)
    print(
        f"regret per episode: {result.regret[:last].mean():.3f} over the first {last} episodes, "
        f"{result.regret[-last:].mean():.3f} over the last {last}"
    )


def unrolling(
    folder: Path,
    generator: torch.Generator,
    progress: bool,
    *,
    max_horizon: int,
    num_samples: int,
    beta: float,
    num_episodes: int,
) -> None:
    """How the value distribution of the unrolled MDP approaches the one of the MDP with cycles."""
    x = sample_toy_parameter("example", num_samples, generator=generator)
    policy, _ = policy_iteration(nroom_mdp(left_prize_ends_episode=True))
    posterior = nroom_prior().update(follow(policy, [num_episodes], 20))
    studies = {
        f"toy MDP, $\\beta$ = {beta:g}": (toy_mdp(beta, x).under(NO_CHOICE), 0),
        f"3 rooms, {num_episodes} episodes": (
            posterior.sample_process(policy, (num_samples,), generator=generator)[:, 0],
            nroom_mdp().initial_state,
        ),
    }
    horizons = torch.logspace(0, math.log10(max_horizon), 40).round().long().unique()
    errors, bounds, rows = {}, {}, []
    for name, (processes, state) in studies.items():
        truth = process_values(processes)[:, state]
        same = independent = torch.zeros_like(processes.rewards)  # values of states with no step left
        series = []
        for steps_left in range(1, max_horizon + 1):
            same = bellman_targets(same.unsqueeze(-1), processes).squeeze(-1)
            independent = value_distribution_samples(
                processes, num_iterations=1, initial_values=independent, generator=generator
            )
            if steps_left in horizons:
                series.append([wasserstein_distance(v[:, state], truth) for v in (same, independent)])
        errors[name] = torch.tensor(series).unbind(-1)
        bounds[name] = processes.gamma**horizons / (1 - processes.gamma) * processes.rewards.abs().amax(-1).mean()
        rows += [(name, int(h), float(a), float(b)) for h, a, b in zip(horizons, *errors[name], strict=True)]
        print(
            f"  {name}: error at H = {max_horizon}: {rows[-1][2]:.4f} with the same dynamics at all steps, "
            f"{rows[-1][3]:.4f} with dynamics of its own at each step"
        )
    write_csv(folder / "unrolling.csv", ("mdp", "horizon", "same_dynamics", "independent_dynamics"), rows)
    save(plotting.plot_unrolling(horizons, errors, bounds=bounds), folder / "figures" / "unrolling.png")


def follow(policy: Tensor, snapshots: Sequence[int], horizon: int) -> TransitionStatistics:
    """What the grid world shows to ``policy`` in its first episodes, up to each snapshot: batch shape ``[P]``."""
    env = NRoom(batch_size=(max(snapshots),))
    episodes = env.rollout(horizon, lambda td: td.set("action", policy[td["observation"]]), break_when_any_done=False)
    seen = count_transitions(episodes, env.mdp.num_states, env.mdp.num_actions)
    last = torch.tensor(snapshots) - 1
    return TransitionStatistics(*(v.cumsum(0)[last] for v in (seen.counts, seen.reward_sums, seen.reward_squares)))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def save(figure, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path)


STUDIES = {"toy": toy, "qr_loss": qr_loss, "nroom": nroom, "psrl": psrl_study, "unrolling": unrolling}


def check(parameters: dict[str, object], study: Callable[..., None]) -> None:
    """Raises a ValueError for a value of the wrong kind, before anything is computed or written."""
    hints = get_type_hints(study)
    for name, value in parameters.items():
        if name not in hints:
            raise ValueError(
                f"experiment.{name} does not exist; valid are {', '.join(parameters.keys() & hints.keys())}."
            )
        kind = hints[name]
        if kind is int and not (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            raise ValueError(f"experiment.{name} must be a positive integer, got {value!r}.")
        if kind is float and not (isinstance(value, int | float) and not isinstance(value, bool)):
            raise ValueError(f"experiment.{name} must be a number, got {value!r}.")
        if kind is str and not isinstance(value, str):
            raise ValueError(f"experiment.{name} must be a word, got {value!r}.")
        if kind not in (int, float, str) and not (
            isinstance(value, list) and value and all(isinstance(v, int | float) and v > 0 for v in value)
        ):
            raise ValueError(f"experiment.{name} must be a list of positive numbers such as [1, 2], got {value!r}.")


def main(cfg: DictConfig) -> None:
    """Runs one study."""
    parameters = {str(key): value for key, value in OmegaConf.to_object(cfg.experiment).items()}  # pyright: ignore
    study = parameters.pop("study")
    check(parameters, STUDIES[study])
    if cfg.num_threads is not None:
        torch.set_num_threads(cfg.num_threads)
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    folder = make_run_folder(cfg.runs_root, f"tabular-{study}-seed{cfg.seed}", cfg.run_dir)
    OmegaConf.save(cfg, folder / "config.yaml", resolve=True)
    with RunStatus(folder):
        STUDIES[study](folder, generator, cfg.progress, **parameters)
    print(f"wrote {folder}")


if __name__ == "__main__":
    run_hydra(main, Path(__file__).parent.parent / "configs" / "tabular", "tabular_eqr")
