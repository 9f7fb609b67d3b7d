"""What every soft actor-critic loss of this package shares: policy, temperature, keys, outputs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule, dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules.distributions.utils import rsample_and_log_prob
from torchrl.objectives import LossModule
from torchrl.objectives.utils import ValueEstimators, default_value_kwargs
from torchrl.objectives.value import TD0Estimator

from eqr_torchrl.utility import MeanUtility

_STEPS = "steps_to_next_obs"  # as MultiStepTransform writes it


class SoftActorCriticOptions(TypedDict, total=False):
    """Keyword arguments that every soft actor-critic loss of this package takes, named as in TorchRL's ``SACLoss``.

    Args:
        alpha_init: initial entropy temperature, in units of reward per nat. Defaults to ``1.0``.
        min_alpha: smallest temperature. Defaults to ``None``: no bound.
        max_alpha: largest temperature. Defaults to ``None``: no bound.
        fixed_alpha: whether the temperature stays at ``alpha_init``. Defaults to ``False``.
        target_entropy: in nats. Defaults to ``"auto"``: minus the action dimension.
        action_spec: spec of the action, where the policy has none and ``target_entropy="auto"``. Defaults to ``None``.
        delay_qvalue: whether targets use parameters that a ``SoftUpdate`` or ``HardUpdate`` moves. Defaults to
            ``True``.
        separate_losses: whether parameters shared with the policy get no gradient from the critics' loss. Defaults to
            ``False``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, over the batch. Defaults to ``None``: the mean.
        scalar_output_mode: with ``reduction="none"``, ``"non_tensor"`` keeps the scalar outputs as non-tensor data;
            ``"exclude"`` and ``None`` (the default) leave them out.
        use_prioritized_weights: whether ``priority_weight`` weighs the losses. Defaults to ``"auto"``: where the batch
            has it.

    Examples:
        >>> from eqr_torchrl.objectives import EpistemicQuantileLoss
        >>> options: SoftActorCriticOptions = {"alpha_init": 0.25, "fixed_alpha": True}
        >>> EpistemicQuantileLoss(toy_actor(), toy_critic(), **options).alpha_init
        tensor(0.2500)
    """

    alpha_init: float
    min_alpha: float | None
    max_alpha: float | None
    fixed_alpha: bool
    target_entropy: float | Literal["auto"]
    action_spec: Any
    delay_qvalue: bool
    separate_losses: bool
    reduction: Literal["none", "mean", "sum"] | None
    scalar_output_mode: Literal["exclude", "non_tensor"] | None
    use_prioritized_weights: bool | Literal["auto"]


class StackedCritics(nn.Module):
    """Runs critics side by side and stacks their values before the last dimension: ``[..., C, N]``.

    They may differ in build. Running each in turn keeps dropout, normalisation and initialisation as they are.
    """

    critics: nn.ModuleList

    def __init__(self, critics: Sequence[TensorDictModule], value_key: NestedKey) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)
        self.value_key = value_key

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that any of the critics reads."""
        return list(dict.fromkeys(key for critic in self.critics for key in critic.in_keys))  # pyright: ignore

    def forward(self, tensordict: TensorDictBase, *, own_rows: bool = False) -> Tensor:
        """Values ``[*B, C, N]``: of all critics on the same rows ``[*B]``, or of each on its own of ``[*B, C]``."""
        values = []
        for i, critic in enumerate(self.critics):
            rows = tensordict[..., i] if own_rows else tensordict
            inputs = rows.select(*critic.in_keys)  # pyright: ignore
            values.append(critic(inputs).get(self.value_key))
        return torch.stack(values, -2) if len(values) > 1 else values[0].unsqueeze(-2)

    def reset_parameters_recursive(self) -> None:
        """Draws new initial weights for each critic, by the ``reset_parameters`` of its layers."""
        for critic in self.critics:
            critic.reset_parameters_recursive()  # pyright: ignore[reportCallIssue]


class SoftActorCriticLoss(LossModule):
    """Abstract base: subclasses define how critics are trained and which value the policy ascends."""

    @dataclass
    class _AcceptedKeys:
        """Keys that can be renamed with ``set_keys``; rewards and flags are read under ``"next"``."""

        action: NestedKey = "action"
        state_action_value: NestedKey = "state_action_value"
        log_prob: NestedKey = "action_log_prob"
        priority: NestedKey = "td_error"
        priority_weight: NestedKey = "priority_weight"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    default_value_estimator = ValueEstimators.TD0
    _schedulable_buffers = frozenset({"alpha_init", "log_alpha", "min_log_alpha", "max_log_alpha", "gamma"})

    actor_network: TensorDictModule
    actor_network_params: TensorDictParams
    target_actor_network_params: TensorDictParams
    qvalue_network: TensorDictModule
    qvalue_network_params: TensorDictParams
    target_qvalue_network_params: TensorDictParams
    log_alpha: Tensor
    gamma: Tensor
    target_entropy: Tensor
    utility: nn.Module
    log_action_unit: Tensor
    reward_unit: Tensor
    min_log_alpha: Tensor | None
    max_log_alpha: Tensor | None

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        qvalue_network: TensorDictModule | Sequence[TensorDictModule],
        *,
        utility: nn.Module | None = None,
        num_qvalue_nets: int | None = None,
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | Literal["auto"] = "auto",
        action_spec: Any = None,
        delay_qvalue: bool = True,
        separate_losses: bool = False,
        reduction: Literal["none", "mean", "sum"] | None = None,
        scalar_output_mode: Literal["exclude", "non_tensor"] | None = None,
        use_prioritized_weights: bool | Literal["auto"] = "auto",
    ) -> None:
        self._in_keys = None
        self._out_keys = None
        super().__init__()
        for name, value in (("alpha_init", alpha_init), ("min_alpha", min_alpha), ("max_alpha", max_alpha)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value}.")
        if min_alpha is not None and max_alpha is not None and min_alpha > max_alpha:
            raise ValueError(f"min_alpha must not exceed max_alpha, got {min_alpha} and {max_alpha}.")
        if target_entropy != "auto" and not math.isfinite(target_entropy):
            raise ValueError(f'target_entropy must be finite or "auto", got {target_entropy}.')
        if reduction not in (None, "none", "mean", "sum"):
            raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}.')
        if scalar_output_mode not in (None, "exclude", "non_tensor"):
            raise ValueError(f'scalar_output_mode must be "exclude" or "non_tensor", got {scalar_output_mode!r}.')
        critics = _as_critics(qvalue_network, num_qvalue_nets)
        self.num_qvalue_nets = len(critics)
        self.use_prioritized_weights = use_prioritized_weights
        self.reduction = "mean" if reduction is None else reduction
        self.scalar_output_mode = scalar_output_mode

        self.convert_to_functional(actor_network, "actor_network", create_target_params=False)
        self.delay_qvalue = delay_qvalue
        self.convert_to_functional(
            StackedCritics(critics, self.default_keys().state_action_value),  # pyright: ignore[reportArgumentType]
            "qvalue_network",
            create_target_params=delay_qvalue,
            compare_against=list(actor_network.parameters()) if separate_losses else None,
        )

        device = next(self.parameters()).device
        log_alpha = torch.tensor(math.log(alpha_init), device=device)
        if fixed_alpha:
            self.register_buffer("log_alpha", log_alpha)
        else:
            self.log_alpha = nn.Parameter(log_alpha)
        self.fixed_alpha = fixed_alpha
        self.register_coeff_buffer("alpha_init", alpha_init, device=device)
        for name, bound in (("min_log_alpha", min_alpha), ("max_log_alpha", max_alpha)):
            self.register_coeff_buffer(name, None if bound is None else math.log(bound), device=device)
        self.register_coeff_buffer("gamma", default_value_kwargs(ValueEstimators.TD0)["gamma"], device=device)
        action_keys = getattr(actor_network, "dist_sample_keys", None) or ["action"]
        self.set_keys(action=action_keys[0])
        if target_entropy == "auto":
            spec = action_spec if action_spec is not None else getattr(actor_network, "spec", None)
            target_entropy = -float(_action_size(spec, self.tensor_keys.action))
        self.register_coeff_buffer("target_entropy", target_entropy, device=device)
        # entropies are those of actions in [-1, 1], values and temperature are learnt in units of reward_unit
        self.register_buffer("log_action_unit", _log_half_range(actor_network).to(device))
        self.register_buffer("reward_unit", torch.ones((), device=device))
        self.utility = MeanUtility() if utility is None else utility
        _try_utility(self.utility, log_alpha)

    # --- what a subclass supplies

    @abstractmethod
    def _critic_losses(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Critic loss and absolute TD error of each batch element, shape ``[*B]``, and scalars to report."""

    @abstractmethod
    def _policy_value(self, quantiles: Tensor, tensordict: TensorDictBase) -> Tensor:
        """What the policy ascends, ``[*B]``, of the critics' values ``[*B, C, N]``."""

    @abstractmethod
    def _report_keys(self) -> list[str]:
        """Keys of the scalars that the critics report."""

    @abstractmethod
    def _batch_size(self, tensordict: TensorDictBase) -> torch.Size:
        """Size ``[*B]`` of a batch, by the shape of its entries: that of the TensorDict may be another."""

    @abstractmethod
    def _batch_keys(self) -> list[NestedKey]:
        """Keys that are read from a batch."""

    # --- shared pieces

    @property
    def _alpha(self) -> Tensor:
        log_alpha = self.log_alpha.detach()
        if self.min_log_alpha is not None or self.max_log_alpha is not None:
            log_alpha = log_alpha.clamp(self.min_log_alpha, self.max_log_alpha)
        return log_alpha.exp() * self.reward_unit

    def _draw(self, distribution) -> tuple[Tensor, Tensor]:
        """Actions in units of the environment, and the log-density of the same actions in [-1, 1]."""
        action, log_prob = rsample_and_log_prob(distribution)
        return action, log_prob + self.log_action_unit

    def _policy(self, tensordict: TensorDictBase, batch_size: torch.Size, where: str = "the batch"):
        """Action distribution at the observations in ``tensordict``, leaving ``tensordict`` as it is."""
        inputs = TensorDict({key: required(tensordict, key, where) for key in self.actor_network.in_keys}, batch_size)
        with (
            set_exploration_type(ExplorationType.RANDOM),
            self.actor_network_params.to_module(self.actor_network, preserve_module_state=False),
        ):
            return self.actor_network.get_dist(inputs)  # pyright: ignore[reportCallIssue]

    def _values(self, params, tensordict: TensorDictBase, action: Tensor, *, own_rows: bool = False) -> Tensor:
        """Values ``[..., C, N]`` of the critics with the given parameters at ``action``.

        With ``own_rows`` the last batch dimension is ``C``, and each critic sees its own entry alone.
        """
        inputs = TensorDict(
            {key: required(tensordict, key) for key in self.qvalue_network.in_keys if key != self.tensor_keys.action},
            action.shape[:-1],
        )
        inputs.set(self.tensor_keys.action, action)
        with params.to_module(self.qvalue_network, preserve_module_state=False):
            return self.qvalue_network(inputs, own_rows=own_rows)  # pyright: ignore[reportReturnType]

    def _outcome(self, successors: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Rewards of a floating type and terminations as bool, both ``[..., 1]``."""
        reward = required(successors, self.tensor_keys.reward, '"next"')
        reward = reward if reward.is_floating_point() else reward.to(self.gamma.dtype)
        terminated = successors.get(self.tensor_keys.terminated, None)
        if terminated is None:
            terminated = successors.get(self.tensor_keys.done, None)
        if terminated is None:
            terminated = required(successors, self.tensor_keys.terminated, '"next"')
        if reward.shape[-1:] != (1,) or terminated.shape != reward.shape:
            raise RuntimeError(
                f"{self.tensor_keys.reward!r} and {self.tensor_keys.terminated!r} must have one shape, [..., 1]: got "
                f"{tuple(reward.shape)} and {tuple(terminated.shape)}."
            )
        return reward, terminated.bool()

    def _discount(self, transitions: TensorDictBase, shape: tuple[int, ...]) -> Tensor:
        """``gamma``, or for transitions over ``n`` steps ``gamma ** n``, of a shape that broadcasts to ``[*B, M]``."""
        steps = transitions.get(_STEPS, None)
        return self.gamma if steps is None else self.gamma ** steps.reshape(shape)

    def _transition_keys(self) -> list[NestedKey]:
        """Keys of one transition: states, action, and what came ``"next"``."""
        keys = self.tensor_keys
        states = dict.fromkeys((*self.actor_network.in_keys, *self.qvalue_network.in_keys))
        states = [key for key in states if key != keys.action]
        return [*states, keys.action, *(nested("next", key) for key in (*states, keys.reward, keys.terminated))]

    def qvalue_v2_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Reduced critic loss, and a dictionary with ``td_error`` and scalars to report."""
        loss, td_error, report = self._critic_losses(tensordict)
        loss = self._reduce_loss(loss, tensordict=tensordict, weights=self._maybe_get_priority_weight(tensordict))
        return loss, {"td_error": td_error, **report}

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Reduced policy loss (critics get no gradient), and a dictionary with ``log_prob`` of the drawn actions."""
        action, log_prob = self._draw(self._policy(tensordict, self._batch_size(tensordict)))
        quantiles = self._values(self.qvalue_network_params.detach(), tensordict, action)
        value = self._policy_value(quantiles, tensordict)
        _check_utility(self.utility, value, log_prob.shape, RuntimeError)
        loss = (self._alpha * log_prob - value) / self.reward_unit
        loss = self._reduce_loss(loss, tensordict=tensordict, weights=self._maybe_get_priority_weight(tensordict))
        return loss, {"log_prob": log_prob.detach()}

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """Temperature loss of each batch element, ``[*B]``: raises the temperature where entropy is too low."""
        if self.fixed_alpha:
            return torch.zeros_like(log_prob)
        return -self.log_alpha * (log_prob.detach() + self.target_entropy)

    @dispatch  # pyright: ignore[reportArgumentType]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Losses of one batch.

        Args:
            tensordict: transitions, batch size ``[*B]``. The absolute TD error is written to it under ``td_error``.

        Returns:
            TensorDict of ``loss_qvalue``, ``loss_actor``, ``loss_alpha``, and, detached, ``alpha``, ``entropy`` (nats)
            and the report of the critics (``out_keys``); scalars unless ``reduction="none"``, which keeps the losses
            at ``[*B]``.

        Raises:
            RuntimeError: if the batch lacks a key, or an entry or the utility's value has the wrong shape.
        """
        loss_qvalue, report = self.qvalue_v2_loss(tensordict)
        loss_actor, actor_report = self.actor_loss(tensordict)
        log_prob = actor_report["log_prob"]
        loss_alpha = self._reduce_loss(
            self.alpha_loss(log_prob), tensordict=tensordict, weights=self._maybe_get_priority_weight(tensordict)
        )
        td_error = report.pop("td_error")
        if tensordict.batch_dims > td_error.ndim:  # @dispatch infers a size from shapes, which may agree by chance
            tensordict.batch_size = td_error.shape
        tensordict.set(self.tensor_keys.priority, td_error)
        out = TensorDict(
            {"loss_qvalue": loss_qvalue, "loss_actor": loss_actor, "loss_alpha": loss_alpha}, loss_qvalue.shape
        )
        scalars = {"alpha": self._alpha, "entropy": -log_prob.mean(), **report}
        if not out.batch_size:
            out.update(scalars)
        elif self.scalar_output_mode == "non_tensor":
            for key, value in scalars.items():
                out.set_non_tensor(key, value)
        self._clear_weakrefs(
            tensordict, out, "actor_network_params", "qvalue_network_params", "target_qvalue_network_params"
        )
        return out

    # --- TorchRL's conventions

    def make_value_estimator(self, value_type: ValueEstimators | None = None, **hyperparams):
        """Sets the discount: ``make_value_estimator(gamma=0.99)``.

        Targets bootstrap once (TD0), after one step, or after ``steps_to_next_obs`` steps with
        ``gamma ** steps_to_next_obs`` where :class:`~torchrl.envs.MultiStepTransform` has written that entry.

        Args:
            value_type: ``ValueEstimators.TD0`` or ``None``.
            **hyperparams: ``gamma``, in ``[0, 1]``. ``device`` and ``differentiable`` are accepted as in TorchRL and
                have no effect: the discount stays on the device of the loss, and targets have no gradient.

        Returns:
            The loss itself.

        Raises:
            NotImplementedError: for any other estimator.
            ValueError: for a discount outside ``[0, 1]`` or an unknown hyper-parameter.
        """
        if value_type is None:
            value_type = self.default_value_estimator
        if value_type is not ValueEstimators.TD0:
            raise NotImplementedError(f"value_type must be ValueEstimators.TD0, got {value_type}.")
        gamma = hyperparams.pop("gamma", default_value_kwargs(value_type)["gamma"])
        if unknown := hyperparams.keys() - {"device", "differentiable"}:
            raise ValueError(f"hyperparams must be gamma, device or differentiable, got {', '.join(sorted(unknown))}.")
        if not 0 <= float(gamma) <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {float(gamma)}.")
        self.value_type = value_type
        self.gamma.fill_(float(gamma))
        return self

    @property
    def value_estimator(self) -> TD0Estimator:  # pyright: ignore[reportIncompatibleMethodOverride]
        """TorchRL's estimator with the discount and the keys of this loss, made at each call: a copy for reading."""
        estimator = TD0Estimator(gamma=self.gamma.item(), value_network=None, device=self.gamma.device)  # pyright: ignore
        keys = self.tensor_keys
        estimator.set_keys(
            value=keys.state_action_value, reward=keys.reward, done=keys.done, terminated=keys.terminated
        )
        return estimator

    def _forward_value_estimator_keys(self, **kwargs) -> None:
        if "qvalue_network" in self.__dict__:
            self.qvalue_network.value_key = self.tensor_keys.state_action_value  # pyright: ignore[reportArgumentType]
        self._in_keys = None

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys read from the batch; as keyword arguments, nested ones are joined by underscores."""
        if self._in_keys is None:
            self._in_keys = self._batch_keys()
        return self._in_keys

    @in_keys.setter
    def in_keys(self, values) -> None:
        self._in_keys = values

    @property
    def out_keys(self) -> list[NestedKey]:
        """Keys of the result of ``forward``."""
        if self._out_keys is None:
            losses, scalars = ["loss_actor", "loss_qvalue", "loss_alpha"], ["alpha", "entropy", *self._report_keys()]
            reduced = self.reduction != "none" or self.scalar_output_mode == "non_tensor"
            self._out_keys: list[NestedKey] | None = [*losses, *scalars] if reduced else [*losses]
        return self._out_keys

    @out_keys.setter
    def out_keys(self, values) -> None:
        self._out_keys = values


def nested(parent: str, key: NestedKey) -> NestedKey:
    """``key`` one level down, under ``parent``."""
    return (parent, *key) if isinstance(key, tuple) else (parent, key)


def required(tensordict: TensorDictBase, key: NestedKey, where: str = "the batch") -> Any:
    """The entry under ``key``, or an error that names it and what is there instead."""
    value = tensordict.get(key, None)
    if value is None:
        raise RuntimeError(f"{where} must hold {key!r}, got {', '.join(map(repr, tensordict.keys())) or 'nothing'}.")
    return value


def _check_utility(utility: Callable, value: Any, shape: torch.Size, error: type[Exception]) -> None:
    if not isinstance(value, Tensor) or value.shape != shape:
        name = getattr(utility, "__name__", type(utility).__name__)
        came = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise error(f"utility must map values [..., N] to [...], here {tuple(shape)}: {name} gave {came}.")


def _try_utility(utility: Any, like: Tensor) -> None:
    """Rejects a utility that is found to return the wrong shape, before there is a batch to apply it to."""
    if not callable(utility):
        raise ValueError(f"utility must be a module that maps values [..., N] to [...], got {utility!r}.")
    try:
        with torch.no_grad():
            value = utility(like.new_zeros(2, 51))
    except Exception:  # made for another number of values: the first batch shows
        return
    _check_utility(utility, value, torch.Size([2]), ValueError)


def _as_critics(qvalue_network, num_qvalue_nets: int | None) -> list[TensorDictModule]:
    if isinstance(qvalue_network, nn.Module) and not isinstance(qvalue_network, nn.ModuleList):
        count = 1 if num_qvalue_nets is None else num_qvalue_nets
        if count == 1:
            return [qvalue_network]  # pyright: ignore[reportReturnType]
        if count > 1:
            raise ValueError(
                f"qvalue_network must be a list of {count} critics, each with its own initial weights, for "
                f"num_qvalue_nets={count}: got one module."
            )
    else:
        critics = list(qvalue_network)
        if critics and num_qvalue_nets in (None, len(critics)):
            return critics  # pyright: ignore[reportReturnType]
    raise ValueError(
        f"num_qvalue_nets must be positive and match qvalue_network: got {num_qvalue_nets} for "
        f"{len(qvalue_network) if isinstance(qvalue_network, Sequence | nn.ModuleList) else 1} critic(s)."
    )


def _log_half_range(actor_network) -> Tensor:
    """Sum of the logarithms of the half-ranges of a bounded action, 0 where the policy does not know its bounds."""
    space = getattr(getattr(actor_network, "spec", None), "space", None)
    if space is None:
        try:
            space = actor_network.spec[actor_network.dist_sample_keys[0]].space
        except (AttributeError, KeyError, TypeError):
            return torch.zeros(())
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    return torch.zeros(()) if low is None else ((high - low) / 2).log().sum().float()


def _action_size(spec, action_key: NestedKey) -> int:
    if spec is not None and hasattr(spec, "keys"):
        spec = spec[action_key] if action_key in spec.keys(True, True) else None
    if spec is None:
        raise ValueError('target_entropy="auto" needs the size of the action: give action_spec or a number.')
    return spec.shape[-1]
