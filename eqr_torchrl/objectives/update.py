"""One optimiser for a soft actor-critic loss, and one update step with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import CudaGraphModule
from torch import Tensor
from torchrl.objectives import LossModule, SoftUpdate, TargetNetUpdater

from eqr_torchrl.objectives._calls import leaves


def make_optimizer(
    loss: LossModule, *, lr_actor: float = 3e-4, lr_critic: float = 3e-4, lr_alpha: float = 3e-4
) -> torch.optim.Adam:
    """Adam over the policy, the critics and the temperature of a soft actor-critic loss.

    Args:
        loss: a loss with ``actor_network_params``, ``qvalue_network_params`` and ``log_alpha``.
        lr_actor: learning rate of the policy, and of a utility's trainable parameters.
        lr_critic: learning rate of the critics.
        lr_alpha: learning rate of the temperature.

    Returns:
        A fused optimiser that can be captured in a CUDA graph.

    Examples:
        >>> from eqr_torchrl.objectives import EpistemicQuantileLoss
        >>> optimizer = make_optimizer(EpistemicQuantileLoss(toy_actor(), toy_critic()), lr_actor=1e-4)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.0001, 0.0003, 0.0003]
    """
    for name, rate in (("lr_actor", lr_actor), ("lr_critic", lr_critic), ("lr_alpha", lr_alpha)):
        if not 0 < rate < float("inf"):
            raise ValueError(f"{name} must be a finite number above 0, got {rate}.")
    policy = _trainable(loss, "actor_network_params")
    utility = getattr(loss, "utility", None)
    if isinstance(utility, torch.nn.Module):  # what the policy ascends learns with it
        policy += [parameter for parameter in utility.parameters() if parameter.requires_grad]
    shared = {id(parameter) for parameter in policy}  # an encoder of both learns at the policy's rate
    critics = [parameter for parameter in _trainable(loss, "qvalue_network_params") if id(parameter) not in shared]
    groups = [{"params": policy, "lr": lr_actor}, {"params": critics, "lr": lr_critic}]
    if loss.log_alpha.requires_grad:
        groups.append({"params": [loss.log_alpha], "lr": lr_alpha})
    on_gpu = loss.log_alpha.device.type == "cuda"
    return torch.optim.Adam(groups, lr=lr_critic, fused=True, capturable=on_gpu)


def _trainable(loss: LossModule, name: str) -> list[Tensor]:
    """Parameters without running statistics and what another loss trains."""
    parameters: TensorDictParams = getattr(loss, name)
    return [value for value in parameters.values(True, True) if value.requires_grad]


_CALLS_BEFORE_RECORDING = 5  # optimiser state, and whatever else is made lazily, then exists


def make_update(
    losses_of: Callable[[TensorDictBase], TensorDictBase],
    optimizer: torch.optim.Optimizer,
    target_updater: TargetNetUpdater,
    *,
    sample: Callable[[], TensorDictBase] | None = None,
    before_step: Callable[[], object] | None = None,
    after_step: Callable[[], object] | None = None,
    policy_every: int = 1,
    cuda_graph: bool = False,
) -> Callable[..., TensorDictBase]:
    """One update as a function: batch, losses, backward, optimiser step, target step.

    Args:
        losses_of: maps a batch to a TensorDict of ``loss_qvalue``, ``loss_actor``, ``loss_alpha`` and what to report;
            a loss, or :func:`torch.compile` of one, which on a CPU is slower.
        optimizer: over all parameters that the losses train.
        target_updater: moves the target networks after each step.
        sample: samples a batch, such as ``model_buffer.sample``; the update then takes no argument, and sampling is
            part of it. Defaults to ``None``: the batch is the argument.
        before_step: called between backward and optimiser step, where gradients can be clipped.
        after_step: called after the optimiser step, such as the ``step`` of a learning-rate scheduler.
        policy_every: policy and temperature learn in one of so many updates, the critics in each. Defaults to ``1``.
        cuda_graph: whether the step on a batch is recorded at its fifth call and replayed from then on, which avoids
            launching its kernels one by one. Batches must keep their keys and shapes, and random numbers come from
            torch's global generator. Sampling is not recorded: a replayed sampler would not see new rows. CUDA only.

    Returns:
        A function of a batch, or of nothing if ``sample`` is given, to the detached losses and report.

    Raises:
        ValueError: if ``cuda_graph`` is set and the parameters are not on a CUDA device, or the policy is delayed.

    Examples:
        >>> from eqr_torchrl.objectives import EpistemicQuantileLoss
        >>> loss = EpistemicQuantileLoss(toy_actor(), toy_critic())
        >>> clip = lambda: nn.utils.clip_grad_norm_(loss.parameters(), 10.0)
        >>> update = make_update(loss, make_optimizer(loss), SoftUpdate(loss, tau=0.005), before_step=clip)
        >>> update(toy_batch(B=4, M=2, K=3))["loss_qvalue"].requires_grad
        False
    """
    if policy_every < 1 or (cuda_graph and policy_every > 1):
        raise ValueError(f"policy_every must be at least 1, and 1 with cuda_graph: got {policy_every}.")
    calls = 0

    def step(batch: TensorDictBase) -> TensorDictBase:
        nonlocal calls
        calls += 1
        losses = losses_of(batch)
        total = losses["loss_qvalue"]
        if calls % policy_every == 0:
            total = total + losses["loss_actor"] + losses["loss_alpha"]
        total.backward()
        if before_step is not None:
            before_step()
        optimizer.step()
        optimizer.zero_grad()
        if after_step is not None:
            after_step()
        _move_targets(target_updater)
        return losses.detach()

    if not cuda_graph:
        return step if sample is None else lambda: step(sample())
    device = optimizer.param_groups[0]["params"][0].device
    if device.type != "cuda":
        raise ValueError(
            f"cuda_graph must be False where the parameters are not on a CUDA device: they are on {device}."
        )
    recorded: Any = CudaGraphModule(
        step,  # pyright: ignore[reportArgumentType]
        in_keys=[],
        out_keys=[],
        warmup=_CALLS_BEFORE_RECORDING,
        device=device,
    )
    return recorded if sample is None else lambda: recorded(sample())


def _move_targets(updater: TargetNetUpdater) -> None:
    """``updater.step()``, of a ``SoftUpdate`` as one call of torch instead of some 1,800 of Python."""
    if type(updater) is not SoftUpdate:
        updater.step()
        return
    loss: Any = updater.loss_module
    for source_name, target_name in zip(updater._source_names, updater._target_names, strict=True):
        source, target = leaves(getattr(loss, source_name)), leaves(getattr(loss, target_name))
        # running statistics are no parameters: they stay, as in SoftUpdate
        moved = [name for name in source if updater._distinct_and_params[(target_name, *name)]]
        with torch.no_grad():
            torch._foreach_lerp_([target[name] for name in moved], [source[name] for name in moved], 1 - updater.eps)
