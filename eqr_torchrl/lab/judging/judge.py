"""Returns of a policy in models it was not trained in, with intervals that are calibrated on held-out episodes."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from eqr_torchrl.imagination import ModelBasedEnv
from eqr_torchrl.lab.diagnostics import member_returns, rollout_drift, trajectory_windows, trusted_horizon
from eqr_torchrl.lab.evaluation import EpisodeRow
from eqr_torchrl.lab.logs import episodes_of, returns_to_go, uncertainty_stop

_FEATURES = 256  # of the value of the logging policy
ROLLOUTS = 8  # in each member from each state
_STARTS = 50  # at most, of as many held-out episodes


class Judgement(NamedTuple):
    """Expected return of an episode, in units of reward, and an interval; see :class:`Judge`.

    ``left`` is the share of imagined episodes that leave the data.
    """

    value: float
    low: float
    high: float
    left: float = 0.0

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def time_limit(data: TensorDictBase, max_episode_steps: int | None = None) -> int:
    """The time limit of an episode: the number of steps that is stated, else that of the longest one in the log.

    Raises:
        ValueError: if an episode is longer than what is stated.

    Examples:
        >>> time_limit(toy_env(max_steps=10).rollout(25, break_when_any_done=False))
        10
    """
    longest, stated = max(map(len, episodes_of(data))), max_episode_steps
    if stated is not None and stated < longest:
        raise ValueError(f"max_episode_steps must be at least {longest}, the longest episode in the log: got {stated}.")
    return stated or longest


class Judge:
    r"""Estimates what a policy returns, from held-out episodes and an ensemble of its own.

    From the first states of the held-out episodes, the policy acts in each member until the time limit L. An imagined
    episode leaves the data at step T, where the members first disagree more than anywhere in the held-out episodes:

    .. math:: \hat J_1 = \mathrm{E}_m \mathrm{E}_{s_0} \Big[ \sum_{t<L} r_t \Big], \qquad
        \hat J_0 = \mathrm{E}_m \mathrm{E}_{s_0} \Big[ \sum_{t<T} r_t + V(s_T, L - T) \Big]

    So :math:`\hat J_1` believes the members everywhere (except for rewards below all of the log), and
    :math:`\hat J_0` credits a policy that has left the data with what the logging policy would earn from there on, give
    or take a standard deviation of the returns in the log. The value is their mean, and the interval holds
    :math:`\hat J_0 \pm q\,s_0` and :math:`\hat J_1 \pm q\,s_1`.

    For s and q, the logged actions of held-out episodes are imagined from their first states for ``horizon`` steps h,
    since errors grow where no policy corrects them. Later steps count with
    :math:`V(s_h, L - h)`, the value of the logging policy for a state and so many steps, which is fitted to the
    training episodes (ridge regression on random features). ``bias`` is the mean error of these returns, and
    ``unforeseen`` the variance of the errors beyond that of members and rollouts, such as from a rare end that no
    member predicts. :math:`s^2` is the sum of the
    variance of :math:`\hat J` over members, of ``bias`` squared, and of the variances of rollouts, ``unforeseen`` and
    starts in a mean of ``num_episodes``. :math:`q` is conformal (split;
    `Lei et al. (2018) <https://arxiv.org/abs/1604.04173>`_): a share ``confidence`` of the real returns of single
    held-out episodes lies within ``q`` standard deviations. It is at least that of a normal distribution, since logged
    actions cannot show that members err less where they disagree more.

    Judge in members that the policy was not trained in: it has learned to exploit the errors of the others.

    Args:
        model_env: two or more fitted members as an environment, with the rule of the episodes' end. If it has no bounds
            of the reward, it gets the range of those in the log, widened by its length.
        train: transitions of training episodes, from :func:`~eqr_torchrl.lab.logs.split_episodes`.
        held_out: transitions of held-out episodes.
        confidence: share of real returns that an interval is to hold. With n held-out episodes it is at most
            ``n / (n + 1)``: the attribute has the value in use.
        num_episodes: number of episodes in the mean return that the interval is to hold.
        max_episode_steps: time limit of an episode, at least the longest one in the log, which is the default.
        seed: of features and rollouts.

    Attributes:
        horizon: steps of logged actions that are imagined: no more than ``trusted``, and before a tenth of them end in
            the members where they do not in the log.
        limit: the time limit, in steps.
        width: :math:`q`, in standard deviations.
        bias: mean of real minus imagined returns of held-out episodes, in units of reward.
        unforeseen: of the return of an episode, in squared units of reward.
        starts: first states of held-out episodes from which a policy is imagined, 50 at most, shape ``[R, S]``.
        num_scores: how many held-out episodes the width is calibrated on: those that are whole, as below, if any are.
        logged: mean return of the logging policy, with the interval of its standard error: over the ``whole`` episodes.
        best: the largest return of an episode in the log.
        whole: how many held-out and training episodes terminated or have nine tenths of ``limit`` steps: a return over
            fewer steps compares with nothing. 0 if they are fewer than three: then ``logged`` is over all episodes.
        trusted: steps until the members' error reaches the spread of the states.
        compared: steps over which that error is measured.

    Examples:
        >>> from eqr_torchrl import FixedStepsFit, GaussianEnsemble, never_terminates
        >>> from eqr_torchrl.lab.logs import split_episodes
        >>> train, held_out = split_episodes(toy_env(max_steps=10).rollout(200, break_when_any_done=False))
        >>> model = GaussianEnsemble(3, 1, num_members=3, num_cells=(16,))
        >>> _ = FixedStepsFit(model, num_steps=20)(train)
        >>> judge = Judge(ModelBasedEnv(model, toy_env(), termination_fn=never_terminates), train, held_out)
        >>> found = judge(toy_actor())
        >>> found.low < found.value < found.high
        True
    """

    def __init__(
        self,
        model_env: ModelBasedEnv,
        train: TensorDictBase,
        held_out: TensorDictBase,
        *,
        confidence: float = 0.9,
        num_episodes: int = 10,
        max_episode_steps: int | None = None,
        seed: int = 0,
    ) -> None:
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must be between 0 and 1, got {confidence}.")
        if model_env.world_model.num_members < 2:
            raise ValueError("model_env must have at least 2 members, whose differences are judged: got 1.")
        self.model_env, self.seed, self.num_episodes = model_env, seed, num_episodes
        episodes, self.held_out = [*episodes_of(train), *episodes_of(held_out)], episodes_of(held_out)
        self.limit = max(time_limit(part, max_episode_steps) for part in (train, held_out))
        returns = torch.stack([returns_to_go(episode)[0] for episode in episodes])
        self.scale = float(returns.std(correction=0)) or 1.0
        low, high = (bound.item() for bound in train["next", "reward"].aminmax())
        given = model_env.reward_bounds or ((-math.inf, math.inf) if low == high else None)
        self._inside = given or (2 * low - high, 2 * high - low)  # tight bounds would cut off noise on one side
        self._beyond = given or (low, 2 * high - low)  # beyond the data no reward is worse than those logged
        is_whole = [self._is_whole(episode) for episode in episodes]
        self.whole = sum(is_whole) if sum(is_whole) > 2 else 0
        self._judged = [episode for episode in self.held_out if self.whole and self._is_whole(episode)] or self.held_out
        returns = returns[torch.tensor(is_whole)] if self.whole else returns
        mean, self.best = float(returns.mean()), float(returns.max())
        error = 1.645 * float(returns.std(correction=1)) / math.sqrt(len(returns)) if len(returns) > 1 else math.inf
        self.logged = Judgement(mean, mean - error, mean + error)
        lengths = sorted(map(len, self.held_out), reverse=True)
        self.compared = lengths[min(4, len(lengths) - 1)]  # the largest that five episodes have
        self.trusted = self._trusted()
        all_held_out: Any = torch.cat(self.held_out)  # pyright: ignore[reportArgumentType, reportCallIssue]
        self._leaves = uncertainty_stop(model_env.world_model, all_held_out, level=1.0)
        self.horizon = max(min(self.trusted, self.limit), 1)
        self.horizon = self._until_false_ends()
        self._fit_value(train)
        self.num_scores = len(self._judged)
        spread = self._judged[:: math.ceil(self.num_scores / _STARTS)]
        self.starts = torch.stack([episode["observation"][0] for episode in spread])
        self.confidence = min(confidence, self.num_scores / (self.num_scores + 1))
        self.width = self._calibrate()

    def __call__(self, policy: Any) -> Judgement:
        """Judges the deterministic actions of a policy that reads ``observation`` and writes ``action``."""
        starts = self.starts
        values, lows, highs, left = [], [], [], 0.0
        for stop_fn, bounds in ((self._leaves, self._inside), (None, self._beyond)):
            self.model_env.reward_bounds = bounds
            value, within, between, stopped = self._imagined(policy, starts, self.limit, self.limit, stop_fn)
            share = 1 / self.num_episodes  # of noise that is left in the mean of so many episodes
            noise = share * (within.mean() + self.unforeseen) + (share + 1 / len(starts)) * value.var(correction=0)
            noise += stopped * self.scale**2  # by which a policy may differ from the logging policy, either way
            half = self.width * float((between.mean(0).var(correction=1) + self.bias**2 + noise).sqrt())
            values.append(float(value.mean()))
            lows.append(values[-1] - half)
            highs.append(values[-1] + half)
            left = max(left, stopped)
            if not left:  # nothing else to believe
                break
        return Judgement(sum(values) / len(values), min(lows), max(highs), left)

    def as_row(self, found: Judgement) -> EpisodeRow:
        """The value as an evaluation of one episode: the score by which a run keeps a policy."""
        return {"episode": 0, "episode_return": found.value, "episode_length": self.limit, "terminated": 0}

    def _is_whole(self, episode: TensorDictBase) -> bool:
        return len(episode) >= 0.9 * self.limit or bool(episode["next", "terminated"][-1])

    def _imagined(
        self, policy: Any, starts: Tensor, limit: int, horizon: int | None = None, stop_fn: Any = None
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Means of starts ``[R]``, variance within a member ``[R]``, members' means ``[R, M]``, share left."""
        horizon = min(horizon or self.horizon, limit)

        def later(tensordict: TensorDictBase) -> Tensor:  # [M, R * P]
            return self._value(tensordict["observation"], limit - tensordict["step_count"])

        returns, tail_weight, num_steps = member_returns(
            self.model_env, policy, starts, horizon=horizon, gamma=1.0, num_rollouts=ROLLOUTS,
            deterministic=True, stop_fn=stop_fn, final_value=later, seed=self.seed,
        )  # fmt: skip
        stopped = float(tail_weight.logical_and(num_steps < horizon).float().mean())
        return returns.mean((1, 2)), returns.var(-1).mean(1), returns.mean(-1), stopped

    def _calibrate(self) -> float:
        self.model_env.reward_bounds = self._inside
        errors, variances = [], []
        for episode in self._judged:
            limit = self.limit if episode["next", "terminated"][-1] else len(episode)
            value, within, between, _ = self._imagined(_Replay(episode["action"]), episode["observation"][:1], limit)
            errors.append(float(returns_to_go(episode)[0] - value[0]))
            variances.append(float(between[0].var(correction=1) + within[0]))
        error, variance = torch.tensor(errors), torch.tensor(variances)
        self.bias = float(error.mean())
        # members that agree by chance are not certain: a share of the spread of returns at least
        beyond = float(error.var(correction=0) - variance.mean())
        self.unforeseen = max(beyond, (0.02 * self.scale) ** 2)
        scores = (error.abs() / (variance + self.unforeseen + self.bias**2).sqrt()).sort().values.tolist()
        conformal = scores[min(math.ceil((len(scores) + 1) * self.confidence), len(scores)) - 1]
        return max(conformal, NormalDist().inv_cdf((1 + self.confidence) / 2))

    def _until_false_ends(self) -> int:
        """Steps before a tenth of the imagined replays terminate where the log does not; ``horizon`` at most."""
        steps = []
        for episode in self._judged:
            length = min(len(episode) - 1, self.horizon)
            replay: Any = _Replay(episode["action"])
            found = member_returns(
                self.model_env, replay, episode["observation"][:1], horizon=length, gamma=1.0, num_rollouts=ROLLOUTS,
                deterministic=True, seed=self.seed,
            )  # fmt: skip
            steps.append(torch.where(found.tail_weight > 0, math.inf, found.num_steps).flatten())
        return max(int(min(torch.cat(steps).quantile(0.1, interpolation="lower").item(), self.horizon)), 1)

    def _trusted(self) -> int:
        """Steps that the members predict better than the mean of all states, on held-out episodes."""
        length = self.compared
        windows = [trajectory_windows(episode, length) for episode in self.held_out if len(episode) >= length]
        joined: Any = torch.cat(windows)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return trusted_horizon(rollout_drift(self.model_env, joined, num_particles=5, seed=self.seed))

    def _fit_value(self, train: TensorDictBase) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        states, remaining, targets = [], [], []
        for episode in episodes_of(train):
            limit = self.limit if episode["next", "terminated"][-1] else len(episode)
            states.append(episode["observation"])
            remaining.append(limit - torch.arange(len(episode)))
            targets.append(returns_to_go(episode))
        state, target = torch.cat(states), torch.cat(targets).double()
        self._mean, self._std = state.mean(0), state.std(0).clamp(min=1e-6)
        self._weight = torch.randn(state.shape[1] + 1, _FEATURES, generator=generator) / math.sqrt(state.shape[1] + 1)
        self._phase = 2 * math.pi * torch.rand(_FEATURES, generator=generator)
        features = self._features(state, torch.cat(remaining)).double()
        ridge = 1e-2 * len(features) / _FEATURES * torch.eye(features.shape[1], dtype=torch.float64)
        solution = torch.linalg.solve(features.T @ features + ridge, features.T @ (target - target.mean()))
        self._coefficients, self._offset = solution.float(), float(target.mean())
        self._range = float(target.min()), float(target.max())

    def _features(self, state: Tensor, remaining: Tensor) -> Tensor:
        inputs = ((state - self._mean) / self._std).clamp(-3, 3)
        inputs = torch.cat([inputs, 3 * remaining.unsqueeze(-1).to(inputs) / self.limit], -1)
        return (inputs @ self._weight + self._phase).cos()

    def _value(self, state: Tensor, remaining: Tensor) -> Tensor:
        """What the logging policy earns from here on, ``[...]``; nothing after the limit."""
        found = self._features(state.cpu(), remaining.cpu()) @ self._coefficients + self._offset
        return torch.where(remaining.cpu() > 0, found.clamp(*self._range), 0.0).to(state.device)


class _Replay(nn.Module):
    """A policy that repeats logged actions ``[T, A]``, and the last of them where the log has ended."""

    def __init__(self, actions: Tensor) -> None:
        super().__init__()
        self.actions, self.step = actions, 0

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = self.actions[min(self.step, len(self.actions) - 1)].to(tensordict["observation"])
        self.step += 1
        return tensordict.set("action", action.expand(*tensordict.batch_size, -1).clone())
