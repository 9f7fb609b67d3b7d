"""One optimiser for a soft actor-critic loss, and one update step with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import CudaGraphModule
from torchrl.objectives import LossModule, SoftUpdate, TargetNetUpdater


def make_optimizer(
    loss: LossModule, *, lr_actor: float = 3e-4, lr_critic: float = 3e-4, lr_alpha: float = 3e-4
) -> torch.optim.Adam:
    """Adam over the policy, the critics and the temperature of a soft actor-critic loss.

    The policy's rate also applies to trainable parameters of a utility, and to an encoder that critics share.

    Examples:
        >>> optimizer = make_optimizer(EpistemicQuantileLoss(toy_actor(), toy_critic()), lr_actor=1e-4)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.0001, 0.0003, 0.0003]
    """
    for name, rate in (("lr_actor", lr_actor), ("lr_critic", lr_critic), ("lr_alpha", lr_alpha)):
        if not 0 < rate < float("inf"):
            raise ValueError(f"{name} must be a finite number above 0, got {rate}.")
    # not running statistics, nor what another loss trains
    networks: Any = loss
    policy = [value for value in networks.actor_network_params.values(True, True) if value.requires_grad]
    utility = getattr(loss, "utility", None)
    if isinstance(utility, torch.nn.Module):  # what the policy ascends learns with it
        policy += [parameter for parameter in utility.parameters() if parameter.requires_grad]
    shared = {id(parameter) for parameter in policy}  # an encoder of both learns at the policy's rate
    critics = [v for v in networks.qvalue_network_params.values(True, True) if v.requires_grad and id(v) not in shared]
    groups = [{"params": policy, "lr": lr_actor}, {"params": critics, "lr": lr_critic}]
    if loss.log_alpha.requires_grad:
        groups.append({"params": [loss.log_alpha], "lr": lr_alpha})
    on_gpu = loss.log_alpha.device.type == "cuda"
    return torch.optim.Adam(groups, lr=lr_critic, fused=True, capturable=on_gpu)


def make_update(
    losses_of: Callable[[TensorDictBase], TensorDictBase],
    optimizer: torch.optim.Optimizer,
    target_updater: TargetNetUpdater,
    *,
    sample: Callable[[], TensorDictBase] | None = None,
    before_step: Callable[[], object] | None = None,
    after_step: Callable[[], object] | None = None,
    cuda_graph: bool = False,
) -> Callable[..., TensorDictBase]:
    """One update as a function of a batch to the detached losses: losses, backward, optimiser step, target step.

    Args:
        losses_of: maps a batch to a TensorDict of ``loss_qvalue``, ``loss_actor``, ``loss_alpha`` and what to report.
        optimizer: over all parameters that the losses train.
        target_updater: moves the target networks after each step.
        sample: samples a batch, such as ``model_buffer.sample``; the update then takes no argument. Defaults to
            ``None``: the batch is the argument.
        before_step: called between backward and optimiser step, where gradients can be clipped.
        after_step: called at the end, such as the ``step`` of a learning-rate scheduler.
        cuda_graph: whether the step on a batch is recorded at its fifth call and replayed from then on (CUDA only),
            except for ``after_step``. Batches must keep their keys and shapes; Python numbers, such as step sizes that
            are not tensors, stay as they were recorded.

    Examples:
        >>> loss = EpistemicQuantileLoss(toy_actor(), toy_critic())
        >>> clip = lambda: nn.utils.clip_grad_norm_(loss.parameters(), 10.0)
        >>> update = make_update(loss, make_optimizer(loss), SoftUpdate(loss, tau=0.005), before_step=clip)
        >>> update(toy_batch(B=4, M=2, K=3))["loss_qvalue"].requires_grad
        False
    """
    device = next(parameter for group in optimizer.param_groups for parameter in group["params"]).device
    if cuda_graph and device.type != "cuda":
        raise ValueError(f"cuda_graph must be False where the parameters are not on a CUDA device: got {device}.")
    move_targets = _target_step(target_updater)

    def step(batch: TensorDictBase) -> TensorDictBase:
        losses = losses_of(batch)
        (losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"]).backward()
        if before_step is not None:
            before_step()
        optimizer.step()
        optimizer.zero_grad()
        move_targets()
        return losses.detach()

    one: Any = step
    if cuda_graph:  # after five calls the optimiser's state, and whatever else is made lazily, exists
        one = CudaGraphModule(step, in_keys=[], out_keys=[], warmup=5, device=device)  # pyright: ignore

    def update(*batch: TensorDictBase) -> TensorDictBase:
        losses = one(*batch) if sample is None else one(sample(*batch))  # which takes no batch
        if after_step is not None:
            after_step()
        return losses

    return update


def _target_step(updater: TargetNetUpdater) -> Callable[[], None]:
    """``updater.step``, of a ``SoftUpdate`` as one call of torch instead of some 1,800 of Python."""
    if type(updater) is not SoftUpdate:
        return updater.step
    sources, targets = [], []
    for name, target in updater.loss_module.named_children():
        if name.startswith("target_") and isinstance(target, TensorDictParams):
            online: TensorDictParams = getattr(updater.loss_module, name.removeprefix("target_"))
            for key, source in online.items(True, True):
                # running statistics stay; what is frozen now may be trained later
                if isinstance(source, torch.nn.Parameter) and not target[key].is_set_to(source):
                    sources.append(source)
                    targets.append(target[key])

    @torch.no_grad()
    def step() -> None:
        torch._foreach_lerp_(targets, sources, 1 - updater.eps)

    return step
