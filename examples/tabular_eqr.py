"""The tabular studies of Luis et al. (2024), https://arxiv.org/abs/2308.06590, whose truth can be computed.

python examples/tabular_eqr.py                        # experiment=toy: Figures 2 and 5
python examples/tabular_eqr.py experiment=nroom       # Figure 6
python examples/tabular_eqr.py experiment=qr_loss     # Figure 4
python examples/tabular_eqr.py experiment=psrl        # how the policy of Figure 6 is found
python examples/tabular_eqr.py experiment=unrolling   # Appendix A
"""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_type_hints

import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
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
    plot_nroom,
    plot_quantile_loss,
    plot_regret,
    plot_toy,
    plot_uncertain_transition,
    plot_unrolling,
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOY_COLUMNS = ("gaussian", "bimodal", "heavy_tailed")  # left, middle and right column of Figure 5
NO_CHOICE = torch.zeros(4, dtype=torch.long)  # the policy of the toy MDP


class Findings(NamedTuple):
    """What a study found: lines to print, figures, and CSV tables as a header and rows, by file name."""

    summary: list[str]
    figures: dict[str, Figure]
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[Any]]]]


def toy(
    generator: torch.Generator,
    progress: bool,
    *,
    num_samples: int,
    truncation: Literal["clipped", "truncated"],
    num_quantiles: int,
    num_iterations: int,
    step_size: float,
    num_betas: int,
    num_runs: int,
    num_limit_betas: int,
    example_beta: float,
) -> Findings:
    """EQR against the true posterior of values, without a cycle and with cycles of any strength."""

    def draw(name: str) -> Tensor:
        return sample_toy_parameter(name, num_samples, truncation=truncation, generator=generator)

    example_x = draw("example")
    example_values = process_values(toy_mdp(example_beta, example_x).under(NO_CHOICE))[:, 0]
    x = torch.stack([draw(name) for name in TOY_COLUMNS])  # [P, Q]
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
    history = estimate.history[..., 0, :]  # [I, R, P, b, N]
    distances = wasserstein_distance(estimate.quantiles[..., 0, :], truth).movedim(0, -1)  # [P, b, R]
    averaged = wasserstein_distance(history[-math.ceil(len(history) / 10) :].mean(0), truth).mean(0)  # [P, b]

    # Where the updates vanish on average: the part of the distance that is no noise
    limit_betas = torch.linspace(0, 1, num_limit_betas, dtype=torch.float64)
    few_x = quantile_projection(x, 500)
    processes = toy_mdp(limit_betas, few_x.T.unsqueeze(-1)).under(NO_CHOICE)  # [500, P, c]
    limit_truth = quantile_projection(process_values(processes)[..., 0].movedim(0, -1), num_quantiles)
    limit = value_distribution_iteration(processes, num_quantiles=num_quantiles)[..., 0, :]
    limits = wasserstein_distance(limit, limit_truth)  # [P, c]

    summary = [f"1-Wasserstein distance after {num_iterations:,} iterations, mean and range of {num_runs} runs:"]
    summary += [
        f"  {name:12} beta {betas[at]:.0f}: {distances[column, at].mean():.3f} ({distances[column, at].min():.3f} to "
        f"{distances[column, at].max():.3f}), last tenth averaged {averaged[column, at]:.3f}, exact fixed point "
        f"{limits[column, at]:.3f}"
        for column, name in enumerate(TOY_COLUMNS)
        for at in (0, -1)
    ]
    rows = [
        (name, float(beta), run, float(distances[column, at, run]))
        for column, name in enumerate(TOY_COLUMNS)
        for at, beta in enumerate(betas)
        for run in range(num_runs)
    ]
    figures = {
        "toy.png": plot_toy(
            dict(zip(TOY_COLUMNS, values[:, 0], strict=True)),
            estimate.history_iterations,
            truth[:, 0] - history[:, 0, :, 0],
            betas,
            distances,
            limit_betas,
            limits,
        ),
        "uncertain_transition.png": plot_uncertain_transition(example_x, example_values, beta=example_beta),
    }
    return Findings(summary, figures, {"wasserstein.csv": (("posterior", "beta", "seed", "wasserstein_1"), rows)})


def qr_loss(
    generator: torch.Generator, progress: bool, *, num_samples: int, beta: float, levels: Sequence[float], num_grid: int
) -> Findings:
    """The quantile-regression loss, whose minima are the quantiles of the value distribution."""
    x = sample_toy_parameter("example", num_samples, generator=generator)
    values = process_values(toy_mdp(beta, x).under(NO_CHOICE))[:, 0]
    grid, tau = torch.linspace(-1, 1, num_grid, dtype=torch.float64), torch.tensor(levels, dtype=torch.float64)
    gap = values - grid.unsqueeze(-1)  # [G, Q]
    losses = torch.outer(tau, gap.relu().mean(-1)) + torch.outer(1 - tau, (-gap).relu().mean(-1))  # Eq. 13
    quantiles = torch.quantile(values, tau, interpolation="nearest")
    summary = [
        f"  level {level:g}: quantile {quantile:.3f}, minimum of the loss at {grid[at]:.3f}"
        for level, quantile, at in zip(levels, quantiles, losses.argmin(-1), strict=True)
    ]
    rows = [(level, float(v), float(losses[i, j])) for i, level in enumerate(levels) for j, v in enumerate(grid)]
    figure = plot_quantile_loss(values, tau, grid, losses)
    return Findings(summary, {"qr_loss.png": figure}, {"qr_loss.csv": (("level", "v", "loss"), rows)})


def nroom(
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
) -> Findings:
    """EQR on the posterior of a grid world after more and more episodes of the optimal policy."""
    if num_truth > num_reference:
        raise ValueError(f"num_truth must not exceed num_reference, {num_reference}: got {num_truth}.")
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
    tail = history[-math.ceil(num_iterations / 10) :]
    to_truth, to_reference = (wasserstein_distance(tail, target).mean(0) for target in (truth, reference))  # [P]
    averaged = wasserstein_distance(tail.mean(0), reference)
    # What num_truth draws leave to chance: how far such samples are from the larger one
    samples = quantile_projection(values.unfold(-1, num_truth, num_truth), num_quantiles)  # [P, samples, N]
    chance = wasserstein_distance(samples, reference.unsqueeze(1)).mean(-1)  # [P]

    summary = [f"1-Wasserstein distance, mean over the last {len(tail):,} iterations:"]
    summary += [
        f"  after {episode:3} episodes: {to_truth[i]:.2f} from {num_truth:,} true values, which are themselves "
        f"{chance[i]:.2f} from the truth; {to_reference[i]:.2f} from {num_reference:,} true values, of which "
        f"{averaged[i]:.2f} remain if the iterates are averaged"
        for i, episode in enumerate(snapshots)
    ]
    rows = [
        (episode, iteration + 1, float(distance))
        for i, episode in enumerate(snapshots)
        for iteration, distance in enumerate(distances[:, i])
    ]
    figure = plot_nroom(
        snapshots,
        values[:, :num_truth],
        history[-1],
        estimate.history_iterations,
        distances,
        true_value=float(policy_values(mdp, policy)[start]),
        sampling_error=chance,
    )
    return Findings(summary, {"nroom.png": figure}, {"nroom.csv": (("episode", "iteration", "wasserstein_1"), rows)})


def posterior_sampling(
    generator: torch.Generator, progress: bool, *, num_episodes: int, horizon: int, num_runs: int
) -> Findings:
    """PSRL finds the way to the prize."""
    env = NRoom(left_prize_ends_episode=True, batch_size=(num_runs,))
    env.set_seed(generator.initial_seed())
    options = {"num_episodes": num_episodes, "horizon": horizon, "true_mdp": env.mdp, "generator": generator}
    with tqdm(total=num_episodes, disable=not progress, unit="episode") as bar:
        result = psrl(env, nroom_prior(), progress=bar.update, **options)
    regret = torch.as_tensor(result.regret)  # [episodes, R]
    tenth = math.ceil(num_episodes / 10)
    summary = [
        f"regret per episode: {regret[:tenth].mean():.3f} over the first {tenth} episodes, "
        f"{regret[-tenth:].mean():.3f} over the last {tenth}"
    ]
    rows = [
        (episode + 1, run, float(result.episode_returns[episode, run]), float(regret[episode, run]))
        for run in range(num_runs)
        for episode in range(num_episodes)
    ]
    figure = plot_regret(regret)
    return Findings(
        summary, {"psrl.png": figure}, {"psrl.csv": (("episode", "seed", "episode_return", "regret"), rows)}
    )


def unrolling(
    generator: torch.Generator, progress: bool, *, max_horizon: int, num_samples: int, beta: float, num_episodes: int
) -> Findings:
    """How the value distribution of the unrolled MDP approaches that of the MDP with cycles."""
    x = sample_toy_parameter("example", num_samples, generator=generator)
    policy, _ = policy_iteration(nroom_mdp(left_prize_ends_episode=True))
    posterior = nroom_prior().update(follow(policy, [num_episodes], horizon=20))
    grid_worlds = posterior.sample_process(policy, (num_samples,), generator=generator)[:, 0]
    studies = {
        "toy": (f"toy MDP, $\\beta = {beta:g}$", toy_mdp(beta, x).under(NO_CHOICE), 0),
        "nroom": (f"three rooms after {num_episodes} episodes", grid_worlds, nroom_mdp().initial_state),
    }
    horizons = torch.logspace(0, math.log10(max_horizon), 40).round().long().unique()
    labels = {  # by column of the table
        "same_dynamics": "same dynamics at all steps",
        "own_dynamics": "dynamics of its own at each step",
        "own_dynamics_by_rank": "likewise, next values tied by rank as in EQR",
    }
    couplings: tuple[Literal["joint", "comonotone"], ...] = ("joint", "comonotone")
    summary, rows, errors, bounds = [f"1-Wasserstein distance at horizon {max_horizon}:"], [], {}, {}
    for name, (title, processes, state) in studies.items():
        truth = process_values(processes)[:, state]
        values = [torch.zeros_like(processes.rewards)] * 3  # with no step left
        distances = []
        for steps in tqdm(range(1, max_horizon + 1), disable=not progress, unit="step", desc=name):
            values[0] = bellman_targets(values[0].unsqueeze(-1), processes).squeeze(-1)
            for i, coupling in enumerate(couplings, start=1):
                values[i] = value_distribution_samples(
                    processes, num_iterations=1, coupling=coupling, initial_values=values[i], generator=generator
                )
            if steps in horizons:
                distances.append([float(wasserstein_distance(v[:, state], truth)) for v in values])
        errors[title] = dict(zip(labels.values(), torch.tensor(distances).unbind(-1), strict=True))
        bounds[title] = processes.gamma**horizons / (1 - processes.gamma) * processes.rewards.abs().amax(-1).mean()
        rows += [(name, int(horizon), *row) for horizon, row in zip(horizons, distances, strict=True)]
        summary += [
            f"  {name:5} {error:.4f} {label}" for error, label in zip(rows[-1][2:], labels.values(), strict=True)
        ]
    figure = plot_unrolling(horizons, errors, bounds=bounds)
    return Findings(summary, {"unrolling.png": figure}, {"unrolling.csv": (("mdp", "horizon", *labels), rows)})


def follow(policy: Tensor, snapshots: Sequence[int], horizon: int) -> TransitionStatistics:
    """What the grid world shows to ``policy`` in its first episodes, up to each snapshot: batch shape ``[P]``."""
    env = NRoom(batch_size=(max(snapshots),))
    episodes = env.rollout(horizon, lambda td: td.set("action", policy[td["observation"]]), break_when_any_done=False)
    seen = count_transitions(episodes, env.mdp.num_states, env.mdp.num_actions)
    last = torch.tensor(snapshots) - 1
    return TransitionStatistics(*(v.cumsum(0)[last] for v in (seen.counts, seen.reward_sums, seen.reward_squares)))


STUDIES: dict[str, Callable[..., Findings]] = {
    "toy": toy,
    "qr_loss": qr_loss,
    "nroom": nroom,
    "psrl": posterior_sampling,
    "unrolling": unrolling,
}


def check(parameters: dict[str, Any], study: Callable[..., Findings]) -> None:
    """Raises a ValueError for a value of the wrong kind, before anything is computed."""
    hints = get_type_hints(study)
    for name, value in parameters.items():
        if name not in hints:
            raise ValueError(f"experiment.{name} is no setting of this experiment.")
        needed, fits = {
            "int": ("a positive integer", _is_number(value) and value == int(value) and value > 0),
            "float": ("a number", _is_number(value)),
            "Literal": (f"one of {', '.join(map(str, get_args(hints[name])))}", value in get_args(hints[name])),
            "Sequence": (
                "a list of positive numbers",
                isinstance(value, list | ListConfig) and len(value) > 0 and all(_is_number(v) and v > 0 for v in value),
            ),
        }[getattr(hints[name], "__name__", "Literal")]
        if not fits:
            raise ValueError(f"experiment.{name} must be {needed}, got {value!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def main(cfg: DictConfig) -> None:
    """Runs one study, then writes what it found."""
    parameters = {str(key): value for key, value in cfg.experiment.items() if key != "study"}
    study = STUDIES[cfg.experiment.study]
    check(parameters, study)
    if cfg.num_threads is not None:
        torch.set_num_threads(cfg.num_threads)
    torch.manual_seed(cfg.seed)
    folder = make_run_folder(cfg.runs_root, f"tabular-{cfg.experiment.study}-seed{cfg.seed}", cfg.run_dir)
    try:
        findings = study(torch.Generator().manual_seed(cfg.seed), cfg.progress, **parameters)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()  # nothing has been written
        raise
    with RunStatus(folder):
        OmegaConf.save(cfg, folder / "config.yaml", resolve=True)
        for name, (header, rows) in findings.tables.items():
            with open(folder / name, "w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows([header, *rows])
        (folder / "figures").mkdir(exist_ok=True)
        for name, figure in findings.figures.items():
            figure.savefig(folder / "figures" / name)
    print(*findings.summary, f"wrote {folder}", sep="\n")


if __name__ == "__main__":
    run_hydra(main, Path(__file__).parent.parent / "configs" / "tabular", "tabular_eqr")
