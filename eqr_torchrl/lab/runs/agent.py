"""A trained agent from its run folder, and the small file that holds its policy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import EnvBase
from torchrl.objectives import LossModule

from eqr_torchrl.lab.envs import import_by_name, termination_for
from eqr_torchrl.lab.runs.atomic import replace_file
from eqr_torchrl.lab.runs.checkpoint import (
    CHECKPOINT_FOLDER,
    FORMAT,
    checkpoint_path,
    latest_checkpoint,
    load_checkpoint,
)
from eqr_torchrl.lab.runs.settings import CONFIG_FILE

if TYPE_CHECKING:
    from omegaconf import DictConfig

POLICY_FILE = "policy.pt"


@dataclass(frozen=True)
class Agent:
    """A trained agent, on the CPU and in eval mode.

    Attributes:
        folder: the run folder; the folder of the file if it was loaded from a policy file.
        settings: the run's settings, those of ``config.yaml``.
        env_steps: environment steps of training.
        actor: the policy: reads ``observation``, writes ``action``. It samples unless TorchRL's exploration type is
            ``DETERMINISTIC``.
        critics: the value networks; empty without a checkpoint.
        loss: the loss, with targets and temperature; ``None`` without a checkpoint.
        world_model: the posterior over MDPs; ``None`` without a checkpoint, and of a model-free run.
    """

    folder: Path
    settings: DictConfig
    env_steps: int
    actor: TensorDictModule
    critics: list[TensorDictModule]
    loss: LossModule | None
    world_model: Any

    def make_env(self, **changes: Any) -> EnvBase:
        """Builds the environment the agent was trained in.

        Args:
            **changes: arguments of the environment to set otherwise, such as ``seed`` or ``render_mode``.

        Raises:
            ValueError: if its module cannot be imported here; what else its constructor raises is passed on.
        """
        return _build_env(self.settings.env, **changes)

    def make_model_env(self, env: EnvBase) -> Any:
        """Builds the imagined environment in which each row stays in one member, with the run's rewards and ends.

        Args:
            env: the real environment, from :meth:`make_env`.

        Returns:
            A :class:`~eqr_torchrl.imagination.ModelBasedEnv`.

        Raises:
            ValueError: if there is no world model.
        """
        from hydra.utils import instantiate

        if self.world_model is None:
            raise ValueError(f"{self.folder} has no world model: source must be the checkpoint of a model-based run.")
        rules = [{"member": "fixed", "starts": "per_member"}]
        rule, reward_fn = termination_for(env, self.settings.termination_fn), self.settings.reward_fn
        functions = {"termination_fn": rule, "reward_fn": import_by_name(reward_fn) if reward_fn else None}
        return instantiate(self.settings.rollout, self.world_model, env, rules=rules, **functions).model_env

    @property
    def critic(self) -> TensorDictModule:
        """All value networks as one that writes ``state_action_value``, their atoms side by side, ``[..., N]``."""
        if not self.critics:
            raise ValueError(f"{self.folder} holds a policy alone: load a checkpoint for its critic.")

        def atoms(observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            values = [network(observation=observation, action=action) for network in self.critics]
            return torch.cat([value[-1] if isinstance(value, tuple) else value for value in values], -1)

        return TensorDictModule(atoms, in_keys=["observation", "action"], out_keys=["state_action_value"])

    @property
    def alpha(self) -> float:
        """The temperature of the entropy at the end of training."""
        if self.loss is None:
            raise ValueError(f"{self.folder} holds a policy alone: load a checkpoint for its temperature.")
        log_alpha: Any = self.loss.log_alpha
        return log_alpha.exp().item()


def load_agent(source: str | Path) -> Agent:
    """Loads a trained agent.

    Args:
        source: a run folder (its newest checkpoint), one of its checkpoints, or a policy file
            (``checkpoints/policy.pt``), which needs nothing else of the run: kilobytes, without critic and model.

    Raises:
        ValueError: if ``source`` is none of these, or if the module of its environment cannot be imported here.
        ImportError: if Hydra is not installed.

    Examples:
        >>> load_agent("no/such/run")
        Traceback (most recent call last):
        ValueError: source must be a run folder with config.yaml and checkpoints, ... policy.pt: got no/such/run.
    """
    try:
        from hydra.utils import instantiate
        from omegaconf import OmegaConf
    except ImportError as error:
        raise ImportError("load_agent needs Hydra: pip install 'eqr_torchrl[hydra]'.") from error
    source = Path(source).expanduser()
    if source.is_file() and source.name == POLICY_FILE:
        saved = torch.load(source, map_location="cpu", weights_only=True)
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            raise ValueError(f"{source} must be a policy file of format {FORMAT}.")
        cfg: Any = OmegaConf.create(saved["settings"])
        actor = instantiate(cfg.actor, _build_env(cfg.env))
        actor.load_state_dict(saved["actor"])
        return Agent(source.parent, cfg, saved["env_steps"], actor.eval(), [], None, None)
    checkpoint = source if source.is_file() else latest_checkpoint(source)
    folder = None if checkpoint is None else checkpoint.parent
    if folder is not None and folder.name == CHECKPOINT_FOLDER:
        folder = folder.parent
    if checkpoint is None or folder is None or not (folder / CONFIG_FILE).is_file():
        raise ValueError(
            f"source must be a run folder with {CONFIG_FILE} and checkpoints, a checkpoint, or "
            f"{POLICY_FILE}: got {source}."
        )
    cfg, saved = OmegaConf.load(folder / CONFIG_FILE), load_checkpoint(checkpoint)
    parts, env = saved["parts"], _build_env(cfg.env)
    actor = instantiate(cfg.actor, env)
    critics = [instantiate(cfg.critic, env).eval() for _ in range(cfg.loss.num_qvalue_nets)]
    loss = instantiate(cfg.loss, actor, critics)
    loss.make_value_estimator(gamma=cfg.gamma)
    loss.load_state_dict(parts["loss"])  # actor and critics share their parameters with the loss ...
    if loss.qvalue_network_params.batch_dims:  # ... except in TorchRL's own losses, which stack those of the critics
        for network, parameters in zip(critics, loss.qvalue_network_params.data.unbind(0), strict=True):
            TensorDict.from_module(network).data.update_(parameters)
    world_model = instantiate(cfg.world_model, env).eval() if "world_model" in parts else None
    if world_model is not None:
        world_model.load_state_dict(parts["world_model"])
    return Agent(folder, cfg, saved["step"], actor.eval(), critics, loss.eval(), world_model)


def _build_env(settings: DictConfig, **changes: Any) -> EnvBase:
    """The environment of a run; an error is the environment's own, not Hydra's account of it."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        return instantiate(settings, **changes)
    except InstantiationException as error:
        raise (error.__cause__ or error) from None


def save_policy(folder: Path, policy: nn.Module, settings: Mapping[str, Any], env_steps: int) -> Path:
    """Writes the policy alone beside the checkpoints of a run folder; returns the file."""
    path = checkpoint_path(folder, env_steps).with_name(POLICY_FILE)
    actor = {key: value.detach().cpu() for key, value in policy.state_dict().items()}
    content = {"format": FORMAT, "env_steps": env_steps, "settings": dict(settings), "actor": actor}
    replace_file(path, lambda temporary: torch.save(content, temporary))
    return path
