"""One optimiser for a soft actor-critic loss, and one update step with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import CudaGraphModule
from torch import Tensor
from torchrl.objectives import LossModule, TargetNetUpdater

from eqr_torchrl.networks._cpu import onednn_products


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

    Raises:
        ValueError: if a learning rate is not a finite number above zero.

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
    cuda_graph: bool = False,
) -> Callable[..., TensorDictBase]:
    """One update as a function: batch, losses, backward, optimiser step, target step.

    Args:
        losses_of: maps a batch to a TensorDict of ``loss_qvalue``, ``loss_actor``, ``loss_alpha`` and what to report;
            a loss, or :func:`torch.compile` of one, which on a CPU is slower.
        optimizer: over all parameters that the losses train.
        target_updater: moves the target networks after each step.
        sample: draws a batch, such as ``model_buffer.sample``; the update then takes no argument, and drawing is part
            of it. Defaults to ``None``: the batch is the argument.
        cuda_graph: whether the whole step is recorded at its fifth call and replayed from then on, which avoids
            launching its kernels one by one. Batches must keep their keys and shapes, random numbers come from torch's
            global generator, and ``sample`` must draw from a buffer of :func:`~eqr_torchrl.imagination.make_model_buffer`
            on the same device. CUDA only.

    Returns:
        A function of a batch, or of nothing if ``sample`` is given, to the detached losses and report.

    Raises:
        ValueError: if ``cuda_graph`` is set and the parameters are not on a CUDA device.

    Examples:
        >>> from eqr_torchrl.objectives import EpistemicQuantileLoss
        >>> loss = EpistemicQuantileLoss(toy_actor(), toy_critic())
        >>> update = make_update(loss, make_optimizer(loss), SoftUpdate(loss, tau=0.005))
        >>> update(toy_batch(B=4, M=2, K=3))["loss_qvalue"].requires_grad
        False
    """

    @onednn_products()
    def update(batch: TensorDictBase | None = None) -> TensorDictBase:
        losses = losses_of(sample() if sample is not None else batch)  # pyright: ignore[reportArgumentType]
        (losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        target_updater.step()
        return losses.detach()

    if not cuda_graph:
        return update
    device = optimizer.param_groups[0]["params"][0].device
    if device.type != "cuda":
        raise ValueError(
            f"cuda_graph must be False where the parameters are not on a CUDA device: they are on {device}."
        )
    recorded: Any = CudaGraphModule(
        update,  # pyright: ignore[reportArgumentType]
        in_keys=[],
        out_keys=[],
        warmup=_CALLS_BEFORE_RECORDING,
        device=device,
    )
    if sample is None:
        return recorded
    return lambda: recorded(TensorDict(device=device))  # a recording wants an input
