"""What every soft actor-critic loss of this package shares: policy, temperature, keys, outputs."""

from __future__ import annotations

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule, dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules.distributions.utils import rsample_and_log_prob
from torchrl.objectives import LossModule
from torchrl.objectives.utils import ValueEstimators, default_value_kwargs

from eqr_torchrl.networks.actor import log_half_range
from eqr_torchrl.networks.critic import StateActionNetwork
from eqr_torchrl.networks.layers import Normalizer
from eqr_torchrl.objectives._calls import StackedCritics, bound, policy_distribution
from eqr_torchrl.utility import MeanUtility

_STEPS = "steps_to_next_obs"  # as MultiStepTransform writes it
_GAMMA = default_value_kwargs(ValueEstimators.TD0)["gamma"]
_ABSENT = {  # arguments of TorchRL's soft actor-critic losses
    "loss_function": "the loss of the critic is part of the class",
    "delay_actor": "targets always use the present policy",
    "gamma": "call make_value_estimator(gamma=...)",
    "priority_key": "call set_keys(priority=...)",
    "separate_losses": "the policy's loss gives critics no gradient",
    "skip_done_states": "next states of terminated rows are always masked",
    "use_prioritized_weights": "a batch with priority_weight is weighted",
}


class SoftActorCriticLoss(LossModule):
    """Abstract base of the losses: how critics are trained and which value the policy ascends is left to subclasses.

    Args:
        actor_network: stochastic policy, ``observation`` to ``action``.
        qvalue_network: critic, or a list of critics, which may differ in build.
        utility: what the policy ascends of the critics' values. Defaults to :class:`~eqr_torchrl.utility.MeanUtility`.
        num_qvalue_nets: number of critics. Defaults to the number given; of one critic, copies with new weights are
            made.
        alpha_init: initial entropy temperature, in units of reward per nat, or of ``value_unit`` (:meth:`set_scales`).
        min_alpha, max_alpha: bounds of the temperature, in the same unit. Default to ``None``: no bounds.
        fixed_alpha: whether the temperature stays at ``alpha_init``.
        target_entropy: in nats of the action in units of the environment. Defaults to ``"auto"``: that of ``-1`` for
            each entry of the action in [-1, 1], which is minus the action dimension plus the sum of log half-ranges.
        action_spec: spec of the action, where the policy has none.
        delay_qvalue: whether targets use parameters that a ``SoftUpdate`` or ``HardUpdate`` moves.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, over the batch. Defaults to ``None``: the mean.
        target_inference: maps policy and critics to the modules that compute targets, without gradient and with the
            same parameters, such as :func:`~eqr_torchrl.networks.fast_inference`. Defaults to ``None``: themselves.

    The bonus that values contain is ``alpha`` times the entropy of the action in [-1, 1], where its bounds are known:
    values, the policy and the temperature do not depend on the unit of the action.

    ``priority_weight`` of a batch weighs its losses, a validity mask of TorchRL leaves elements out of them (what is
    reported beside the losses is of all elements), and
    ``steps_to_next_obs``, as :class:`~torchrl.envs.MultiStepTransform` writes it, makes the discount
    ``gamma ** steps_to_next_obs``.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys that can be renamed with ``set_keys``; rewards and flags are read under ``"next"``.

        ``log_prob`` is there as in TorchRL's losses, and is not read: log-densities are computed anew.
        """

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
    _schedulable_buffers = frozenset({"log_alpha", "min_log_alpha", "max_log_alpha", "gamma"})

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
        reduction: Literal["none", "mean", "sum"] | None = None,
        target_inference: Callable[[nn.Module], nn.Module] | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        for name in unknown:
            reason = f": {_ABSENT[name]}" if name in _ABSENT else ""
            raise TypeError(f"{type(self).__name__} takes no argument '{name}'{reason}.")
        for name, value in (("alpha_init", alpha_init), ("min_alpha", min_alpha), ("max_alpha", max_alpha)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value}.")
        if min_alpha is not None and max_alpha is not None and min_alpha > max_alpha:
            raise ValueError(f"min_alpha must not exceed max_alpha, got {min_alpha} and {max_alpha}.")
        if target_entropy != "auto" and not math.isfinite(target_entropy):
            raise ValueError(f'target_entropy must be finite or "auto", got {target_entropy}.')
        if reduction not in (None, "none", "mean", "sum"):
            raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}.')
        if utility is not None and not callable(utility):
            raise ValueError(f"utility must be a module that maps values [..., N] to [...], got {utility!r}.")
        critics = _as_critics(qvalue_network, num_qvalue_nets)
        self.num_qvalue_nets = len(critics)
        self.reduction = "mean" if reduction is None else reduction

        self.delay_qvalue = delay_qvalue
        stacked: Any = StackedCritics(critics, self.default_keys().state_action_value)
        with_unit = [name for name, m in stacked.named_modules() if isinstance(m, StateActionNetwork) and m.normalizer]
        self._unit_key = (*with_unit[0].split("."), "value_unit") if with_unit else None
        self.convert_to_functional(actor_network, "actor_network", create_target_params=False)
        self.convert_to_functional(stacked, "qvalue_network", create_target_params=delay_qvalue)
        view = target_inference or (lambda network: network)
        # tuples hide them from TorchRL, which takes every module of a loss for a network with parameters of its own
        self._online = self.actor_network, self.qvalue_network
        self._target = view(self.actor_network), view(self.qvalue_network)

        device = next(self.parameters()).device
        log_alpha = torch.tensor(math.log(alpha_init * float(self.value_unit)), device=device)
        if fixed_alpha:
            self.register_buffer("log_alpha", log_alpha)
        else:
            self.log_alpha = nn.Parameter(log_alpha)
        self.fixed_alpha = fixed_alpha
        self.register_coeff_buffer("alpha_init", alpha_init, device=device)
        for name, bound_ in (("min_log_alpha", min_alpha), ("max_log_alpha", max_alpha)):
            self.register_coeff_buffer(name, None if bound_ is None else math.log(bound_), device=device)
        self.register_coeff_buffer("gamma", _GAMMA, device=device)
        action_keys = getattr(actor_network, "dist_sample_keys", None) or ["action"]
        self.set_keys(action=action_keys[0])
        spec: Any = getattr(actor_network, "spec", None) if action_spec is None else action_spec
        if spec is not None and hasattr(spec, "keys"):
            spec = spec[self.tensor_keys.action] if self.tensor_keys.action in spec.keys(True, True) else None
        self._log_half_range = log_half_range(spec)
        if target_entropy == "auto" and spec is None:
            raise ValueError('target_entropy="auto" needs the size of the action: give action_spec or a number.')
        entropy = self._log_half_range - spec.shape[-1] if target_entropy == "auto" else target_entropy  # pyright: ignore
        self.register_coeff_buffer("target_entropy", entropy, device=device)
        self.utility = MeanUtility() if utility is None else utility
        reported = [] if self.reduction == "none" else ["alpha", "entropy", *self._batch_keys()[2]]
        self.out_keys = ["loss_actor", "loss_qvalue", "loss_alpha", *reported]

    @abstractmethod
    def _critic_losses(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Critic loss and absolute TD error of each batch element, shape ``[*B]``, and scalars to report."""

    @abstractmethod
    def _policy_value(self, quantiles: Tensor) -> Tensor:
        """What the policy ascends, ``[*B]``, of the critics' values ``[*B, C, N]``."""

    @abstractmethod
    def _batch_size(self, tensordict: TensorDictBase) -> torch.Size:
        """Size ``[*B]`` of a batch, by the shape of its entries: that of the TensorDict may be another."""

    @abstractmethod
    def _batch_keys(self) -> tuple[list[NestedKey], list[NestedKey], list[NestedKey]]:
        """Keys that a batch must hold, those that are read where it holds them, and of scalars that are reported."""

    @torch.no_grad()
    def set_scales(self, observation: Tensor, value_unit: float | None = None) -> None:
        """Fits networks of ``make_actor(normalize=True)`` and ``make_critic(normalize=True)`` to scales of the data.

        Normalizers take the statistics of ``observation``. Critics and temperature learn in ``value_unit``: the first
        unit multiplies values and temperature; later units leave both as they are. Other networks stay as they are.

        Args:
            observation: real states, in units of the environment, shape ``[n, S]``.
            value_unit: a scale of returns, in their unit, such as the range of the rewards. Defaults to ``None``: it
                stays.
        """
        if value_unit is not None and not 0 < value_unit < math.inf:
            raise ValueError(f"value_unit must be positive and finite, got {value_unit}.")
        parts = [(self.actor_network_params, self.actor_network), (self.qvalue_network_params, self.qvalue_network)]
        if self.delay_qvalue:
            parts.append((self.target_qvalue_network_params, self.qvalue_network))
        first = False
        for params, network in parts:
            with bound(params, network):
                for module in network.modules():
                    if isinstance(module, Normalizer):
                        module.update(observation)
                    if value_unit is not None and isinstance(module, StateActionNetwork):
                        first |= module.normalizer is not None and not module.has_unit
                        module.set_value_unit(self.gamma.new_tensor(value_unit))
        if value_unit is not None and first:
            self.log_alpha += math.log(value_unit)

    @property
    def value_unit(self) -> Tensor | float:
        """Unit of the losses, in which the critics learn; 1 for critics of another build."""
        return 1.0 if self._unit_key is None else self.qvalue_network_params[self._unit_key]

    @property
    def _alpha(self) -> Tensor:
        if self.min_log_alpha is not None or self.max_log_alpha is not None:
            # the parameter itself, as SACLoss does: a clamped copy would let it drift beyond its bound
            bounds, unit = (self.min_log_alpha, self.max_log_alpha), torch.as_tensor(self.value_unit).log()
            self.log_alpha.data.clamp_(*(None if bound_ is None else bound_ + unit for bound_ in bounds))
        return self.log_alpha.detach().exp()

    def _policy(self, entries: Mapping[NestedKey, Tensor], size: torch.Size, *, target: bool = False):
        """Action distribution at the observations in ``entries``; of a ``target`` through the view for targets."""
        network = (self._target if target else self._online)[0]
        with set_exploration_type(ExplorationType.RANDOM), bound(self.actor_network_params, self.actor_network):
            return policy_distribution(network, entries, size)

    def _values(
        self,
        kind: Literal["online", "frozen", "target"],
        entries: Mapping[NestedKey, Tensor],
        action: Tensor,
        *,
        own_rows: bool = False,
    ) -> Tensor:
        """Values ``[..., C, N]`` at ``action``: with gradient, without one in the critics, or of the target critics.

        With ``own_rows`` the last batch dimension is ``C``, and each critic sees its own entry alone.
        """
        delayed, size = kind == "target" and self.delay_qvalue, action.shape[:-1]
        params = self.target_qvalue_network_params if delayed else self.qvalue_network_params
        network: Any = (self._target if kind == "target" else self._online)[1]
        with bound(params, self.qvalue_network, detach=kind != "online" and not delayed):
            values = network({**entries, self.tensor_keys.action: action}, size, own_rows=own_rows)
        if values.shape[:-2] != (size[:-1] if own_rows else size):
            raise RuntimeError(
                f"qvalue_network must map a batch {tuple(size)} to values [{', '.join(map(str, size))}, N]: got "
                f"{tuple(values.shape)} from {values.shape[-2]} critic(s)."
            )
        return values

    def _states(self, network: Any, tensordict: Any, size: torch.Size) -> dict[NestedKey, Tensor]:
        """What ``network`` reads beside the action, of batch size ``size``."""
        entries = {}
        for key in network.in_keys:
            if key != self.tensor_keys.action:
                value = entries[key] = tensordict[key]
                if value.shape[: len(size)] != size:
                    raise RuntimeError(f"{key!r} must be of batch size {tuple(size)}, got {tuple(value.shape)}.")
        return entries

    def _outcome(self, successors: Any, batch: torch.Size, sizes: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Rewards of a floating type and terminations as bool, of one of ``sizes``, such as ``"B, M, K"``."""
        keys = self.tensor_keys
        reward, terminated = successors[keys.reward], successors.get(keys.terminated, None)
        terminated = successors[keys.done] if terminated is None else terminated
        if reward.shape[-1:] != (1,) or terminated.shape != reward.shape:
            shapes = f"{tuple(reward.shape)} and {tuple(terminated.shape)}"
            raise RuntimeError(f"{keys.reward!r} and {keys.terminated!r} must have one shape, [..., 1]: got {shapes}.")
        reward, terminated = reward.squeeze(-1), terminated.squeeze(-1).bool()
        extra = [size.count(",") for size in sizes]
        if reward.ndim - len(batch) not in extra or reward.shape[: len(batch)] != batch:
            raise RuntimeError(
                f'"next" must have batch size {" or ".join(f"[*{size}]" for size in sizes)} with B = {tuple(batch)}: '
                f"got a {keys.reward!r} of shape {(*reward.shape, 1)}."
            )
        return reward if reward.is_floating_point() else reward.to(self.gamma.dtype), terminated

    def _discount(self, transitions: TensorDictBase, shape: tuple[int, ...]) -> Tensor:
        """``gamma``, or for transitions over ``n`` steps ``gamma ** n``, of a shape that broadcasts to ``[*B, M]``."""
        steps = transitions.get(_STEPS, None)
        return self.gamma if steps is None else self.gamma ** steps.reshape(shape)

    def _transition_keys(self) -> tuple[list[NestedKey], list[NestedKey]]:
        """Keys of one transition: states, action, and what came ``"next"``; and those that it may hold."""
        keys = self.tensor_keys
        states = dict.fromkeys((*self.actor_network.in_keys, *self.qvalue_network.in_keys))
        states = [key for key in states if key != keys.action]
        following = [unravel_key(("next", key)) for key in (*states, keys.reward, keys.terminated)]
        return [*states, keys.action, *following], [unravel_key(("next", keys.done)), _STEPS]

    def qvalue_v2_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Reduced critic loss, and a dictionary with ``td_error`` and scalars to report."""
        loss, td_error, report = self._critic_losses(tensordict)
        return self._reduced(loss, tensordict), {"td_error": td_error, **report}

    def _reduced(self, loss: Tensor, tensordict: TensorDictBase) -> Tensor:
        return self._reduce_loss(loss, tensordict=tensordict, weights=self._maybe_get_priority_weight(tensordict))

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Reduced policy loss (critics get no gradient), and a dictionary with ``log_prob`` of the sampled actions."""
        size = self._batch_size(tensordict)
        policy = self._policy(self._states(self.actor_network, tensordict, size), size)
        action, log_prob = rsample_and_log_prob(policy)
        values = self._values("frozen", self._states(self.qvalue_network, tensordict, size), action)
        value = self._policy_value(values)
        if not isinstance(value, Tensor) or value.shape != log_prob.shape:
            name = getattr(self.utility, "__name__", type(self.utility).__name__)
            came = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise RuntimeError(
                f"utility must map values [..., N] to [...], here {tuple(log_prob.shape)}: {name} gave {came}."
            )
        loss = (self._alpha * (log_prob + self._log_half_range) - value) / self.value_unit
        return self._reduced(loss, tensordict), {"log_prob": log_prob.detach()}

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """Temperature loss of each batch element, ``[*B]``: raises the temperature where entropy is too low."""
        if self.fixed_alpha:
            return torch.zeros_like(log_prob)
        return -self.log_alpha * (log_prob.detach() + self.target_entropy)

    @dispatch  # pyright: ignore[reportArgumentType]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Losses of a batch ``[*B]``, to which the absolute TD error is written under ``td_error``.

        Returns ``loss_qvalue``, ``loss_actor``, ``loss_alpha``, and, detached, ``alpha``, ``entropy`` (nats) and the
        report of the critics (``out_keys``). With ``reduction="none"`` the losses alone, at ``[*B]``.
        """
        loss_qvalue, report = self.qvalue_v2_loss(tensordict)
        loss_actor, actor_report = self.actor_loss(tensordict)
        log_prob = actor_report["log_prob"]
        loss_alpha = self._reduced(self.alpha_loss(log_prob), tensordict)
        td_error = report.pop("td_error")
        if tensordict.batch_dims > td_error.ndim:  # @dispatch infers a size from shapes, which may agree by chance
            tensordict.batch_size = td_error.shape
        tensordict.set(self.tensor_keys.priority, td_error)
        losses = {"loss_qvalue": loss_qvalue, "loss_actor": loss_actor, "loss_alpha": loss_alpha}
        if not loss_qvalue.ndim:
            losses |= {"alpha": self._alpha, "entropy": -log_prob.mean(), **report}
        out = TensorDict(losses, loss_qvalue.shape)
        self._clear_weakrefs(
            tensordict, out, "actor_network_params", "qvalue_network_params", "target_qvalue_network_params"
        )
        return out

    def make_value_estimator(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, value_type: ValueEstimators | None = None, *, gamma: float = _GAMMA, device=None, differentiable=None
    ):
        """Sets the discount, ``make_value_estimator(gamma=0.99)``, and returns the loss.

        Targets bootstrap once (``ValueEstimators.TD0``), after one step, or after ``steps_to_next_obs`` steps.
        ``device`` and ``differentiable`` are accepted as in TorchRL and have no effect.
        """
        if value_type not in (None, ValueEstimators.TD0):
            raise NotImplementedError(f"value_type must be ValueEstimators.TD0, got {value_type}.")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}.")
        self.value_type = ValueEstimators.TD0
        self.gamma.fill_(gamma)
        return self

    def _default_value_estimator(self) -> None:
        """Reading ``value_estimator`` gives ``None``, and must not set the discount."""

    def _make_vmap(self) -> None:
        """Networks run one after the other: ``set_vmap_randomness`` has nothing to prepare."""

    def _forward_value_estimator_keys(self, **kwargs) -> None:
        if "qvalue_network" in self.__dict__:
            for _, critics in (self._online, self._target):
                critics.value_key = self.tensor_keys.state_action_value  # pyright: ignore[reportArgumentType]
            # optional keys are none of them: TensorDict takes a batch that lacks one for keyword arguments
            self.in_keys = self._batch_keys()[0]

    @property
    def optional_in_keys(self) -> list[NestedKey]:
        """Keys that are read where a batch holds them.

        ``batch.select(*loss.in_keys, *loss.optional_in_keys, strict=False)`` has the same losses as ``batch``.
        """
        return [*self._batch_keys()[1], self.tensor_keys.priority_weight, *self._loss_mask_keys()]


def _as_critics(qvalue_network: Any, num_qvalue_nets: int | None) -> list[TensorDictModule]:
    single = not isinstance(qvalue_network, list | tuple | nn.ModuleList)
    critics: list[Any] = [qvalue_network] if single else list(qvalue_network)
    if wrong := [type(critic).__name__ for critic in critics if not hasattr(critic, "in_keys")]:
        needed = "a TensorDictModule that reads observation and action, or a list of them"
        raise ValueError(f"qvalue_network must be {needed}, got {wrong[0]}.")
    if len(set(map(id, critics))) < len(critics):
        raise ValueError(f"qvalue_network must hold different critics: got a list of {len(critics)} that repeats one.")
    count = len(critics) if num_qvalue_nets is None else num_qvalue_nets
    if count < 1 or not (single or len(critics) == count):
        came = f"{num_qvalue_nets} for {len(critics)} critic(s)"
        raise ValueError(f"num_qvalue_nets must be positive and match qvalue_network: got {came}.")
    while len(critics) < count:
        critics.append(copy.deepcopy(qvalue_network))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing was reset: an error here
            critics[-1].reset_parameters_recursive()
        if any(map(is_lazy, critics[0].parameters())):
            raise ValueError(
                "qvalue_network must have its weights before it is copied: call it once, its layers are lazy."
            )
        if all(map(torch.equal, critics[0].parameters(), critics[-1].parameters())):
            raise ValueError(
                f"qvalue_network must be a list of {count} critics for num_qvalue_nets={count}: no layer of this one "
                "has reset_parameters, which would give a copy weights of its own."
            )
    return critics
