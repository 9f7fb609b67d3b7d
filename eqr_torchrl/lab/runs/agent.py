"""A trained agent: from its run folder with all parts, or its policy alone from a file that is data, not code."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import LossModule

from eqr_torchrl.imagination import ModelBasedEnv, never_terminates
from eqr_torchrl.lab._quiet import errors_alone
from eqr_torchrl.lab.envs import make_env, rules_for
from eqr_torchrl.lab.evaluation import isolated_rng
from eqr_torchrl.lab.runs.checkpoint import (
    CHECKPOINT_FOLDER,
    FORMAT,
    find_checkpoint,
    load_checkpoint,
    read_file,
    replace_file,
    restore_module,
    versions,
)
from eqr_torchrl.lab.runs.folder import BEST_POLICY_FILE, CONFIG_FILE, read_settings_file
from eqr_torchrl.networks import Tanh, make_actor

_KIND = "eqr_torchrl policy"
_ACTIVATIONS = {kind.__name__: kind for kind in (Tanh, nn.ReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus)}
_CHECKED = 1000  # observations on which an exported policy must act as the agent does
_PRETRAINED = Path(__file__).parents[1] / "pretrained"


@dataclass(frozen=True)
class Agent:
    """A trained agent, on the CPU and in eval mode.

    Attributes:
        source: the run folder or the policy file that it was loaded from.
        settings: the run's settings, those of ``config.yaml``, as plain dictionaries and lists.
        space: what the policy was trained for: name of the environment (``env``), ``observation_size``, and the action
            bounds ``action_low`` and ``action_high``, in which it acts.
        env_steps: environment steps of training.
        actor: the policy: reads ``observation``, writes ``action``. It samples unless TorchRL's exploration type is
            ``DETERMINISTIC``.
        evaluation: of a policy file: ``mean_return``, ``num_episodes`` and ``env_steps`` of its evaluation, if it had
            one. ``None`` from a checkpoint.
        critics: the value networks; empty from a policy file.
        loss: the loss, with targets and temperature; ``None`` from a policy file.
        world_model: the posterior over MDPs; ``None`` from a policy file, and of a model-free run.
    """

    source: Path
    settings: dict[str, Any]
    space: dict[str, Any]
    env_steps: int
    actor: TensorDictModule
    evaluation: dict[str, Any] | None = None
    critics: list[TensorDictModule] = field(default_factory=list)
    loss: LossModule | None = None
    world_model: Any = None

    @property
    def folder(self) -> Path:
        """The run folder; of a policy file elsewhere, the file's folder."""
        folder = self.source if self.source.is_dir() else self.source.parent
        return folder.parent if folder.name == CHECKPOINT_FOLDER else folder

    def make_env(self, **changes: Any) -> EnvBase:
        """Builds the environment the agent was trained in.

        Args:
            **changes: arguments of the environment that differ from training, such as ``seed`` or ``render_mode``.
                Other sizes and action bounds than in training are refused, and so is code that a policy file names for
                its environment (``name="module:Env"`` allows it).
        """
        settings = dict(self.settings.get("env") or {})
        if not settings and "name" not in changes:
            raise ValueError(f"{self.source} has no environment: name one (on a command line, --env).")
        if "num_envs" in settings:
            settings["num_envs"] = 1
        settings |= changes
        if self.source.is_dir() and "_target_" in settings:
            env = _build_by_hydra(settings)
        else:  # a file from elsewhere decides on no code
            target, name = settings.pop("_target_", ""), settings.get("name", self.space["env"])
            if "name" not in changes and (":" in str(name) or not target.endswith(".make_env")):
                raise ValueError(f"{self.source} must not choose code: name={str(name)!r} in make_env allows it.")
            env = make_env(**{**settings, "name": name})
        check_space(self.space, env, str(self.source))
        return env

    def make_model_env(self, env: EnvBase) -> ModelBasedEnv:
        """The imagined environment in which each row stays in one member, with the rewards and ends of the run.

        It has the specs of ``env``, the real environment, from :meth:`make_env`.
        """
        if self.world_model is None:
            raise ValueError(f"{self.source} has no world model: source must be the checkpoint of a model-based run.")
        rule = self.settings["termination_fn"]
        if "held_out" in self.settings:  # of examples/offline.py, where no rule means that no logged episode terminated
            rule = rule or never_terminates
        functions = rules_for(env, rule, self.settings["reward_fn"], learned=self.world_model.predicts_termination)
        bounds = self.settings["rollout"].get("reward_bounds")
        return ModelBasedEnv(self.world_model, env, reward_bounds=bounds, **functions)

    @property
    def critic(self) -> TensorDictModule:
        """All value networks as one that writes ``state_action_value``, their atoms side by side, ``[..., N]``."""
        if not self.critics:
            raise ValueError(f"{self.source} holds a policy alone: load a checkpoint for its critic.")

        def atoms(observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            values = [network(observation=observation, action=action) for network in self.critics]
            return torch.cat([value[-1] if isinstance(value, tuple) else value for value in values], -1)

        return TensorDictModule(atoms, in_keys=["observation", "action"], out_keys=["state_action_value"])

    @property
    def alpha(self) -> float:
        """The temperature of the entropy at the end of training, within the bounds of the loss."""
        if self.loss is None:
            raise ValueError(f"{self.source} holds a policy alone: load a checkpoint for its temperature.")
        loss: Any = self.loss
        bounds = [getattr(loss, name, None) for name in ("min_log_alpha", "max_log_alpha")]
        unit = math.log(float(getattr(loss, "value_unit", 1.0)))
        low, high = (None if bound is None else bound.item() + unit for bound in bounds)
        log_alpha = loss.log_alpha.detach()
        return (log_alpha if low is None and high is None else log_alpha.clamp(low, high)).exp().item()

    def copy_to(self, actor: nn.Module, world_model: nn.Module, *critics: nn.Module) -> None:
        """Copies what was learned into other networks of the same sizes.

        Raises:
            ValueError: if the source is a policy alone, a model-free run, or has other sizes or numbers of critics.
        """
        if self.world_model is None or len(critics) != len(self.critics):
            models = "no model" if self.world_model is None else "a model"
            needed = f"a model-based run with {len(critics)} critic(s)"
            raise ValueError(f"source must be {needed}, got {self.source} with {len(self.critics)} and {models}.")
        for part, own in zip(
            (actor, world_model, *critics), (self.actor, self.world_model, *self.critics), strict=True
        ):
            restore_module(type(part).__name__, part, own.state_dict())

    @torch.no_grad()
    def act(self, observation: Any) -> torch.Tensor:
        """The deterministic action, ``[..., A]`` in units of the environment, for observations ``[..., S]``."""
        observation = torch.as_tensor(observation, dtype=torch.float32)
        if observation.shape[-1:] != (self.space["observation_size"],):
            found, size = tuple(observation.shape), self.space["observation_size"]
            raise ValueError(f"observation must have {size} entries, as in training: got shape {found}.")
        # one cheap number for the common case: a sum is finite only if every term is
        if not math.isfinite(observation.sum()) and len(wrong := (~observation.isfinite()).nonzero()):
            found, entry = observation[tuple(wrong[0])].item(), int(wrong[0][-1])
            raise ValueError(f"observation must be finite: got {found} in entry {entry}.")
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            return self.actor(TensorDict({"observation": observation}, observation.shape[:-1]))["action"]

    def export(self, path: str | Path) -> Path:
        """Writes the deterministic policy for programs without this package.

        Inputs are observations ``[B, S]`` as float32, outputs actions ``[B, A]`` in units of the environment. The
        written file is loaded again; a RuntimeError is raised unless it acts as the agent does on 1,000 observations.

        Args:
            path: ``policy.onnx`` (needs the extra ``onnx``) or ``policy.pt2`` (for :func:`torch.export.load`).
        """
        path = Path(path)
        if path.suffix not in (".onnx", ".pt2"):
            raise ValueError(f"path must end in .onnx or .pt2, got {path}.")
        if describe_actor(self.actor, self.space) is None:
            raise ValueError(f"{self.source}: only policies of make_actor can be exported.")
        policy = _PlainPolicy(self.actor, self.space)
        generator = torch.Generator().manual_seed(0)
        sizes = (_CHECKED, self.space["observation_size"])
        # from small to large ones, where the actions saturate
        observations = torch.randn(sizes, generator=generator) * torch.logspace(-2, 2, _CHECKED).unsqueeze(-1)
        temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
        program = torch.export.export(policy, (observations[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
        try:
            if path.suffix == ".pt2":
                torch.export.save(program, temporary)
                actions = torch.export.load(temporary).module()(observations)
            else:
                actions = _export_onnx(program, observations, temporary)
            width = torch.tensor(self.space["action_high"]) - torch.tensor(self.space["action_low"])
            worst = ((actions - self.act(observations)) / width).abs().max().item()
            if not worst <= 1e-5:
                raise RuntimeError(f"the exported policy differs by {worst:.1e} of the action range.")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return path


class _PlainPolicy(nn.Module):
    """The deterministic policy of ``make_actor`` in layers of torch alone."""

    middle: torch.Tensor
    half_width: torch.Tensor

    def __init__(self, actor: Any, space: Mapping[str, Any]) -> None:
        super().__init__()
        layers = copy.deepcopy(actor[0].module.network).cpu().eval()
        self.layers = nn.Sequential(*(nn.Tanh() if isinstance(layer, Tanh) else layer for layer in layers))
        low, high = torch.tensor(space["action_low"]), torch.tensor(space["action_high"])
        self.register_buffer("middle", (low + high) / 2)
        self.register_buffer("half_width", (high - low) / 2)
        self.requires_grad_(False)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        loc, _ = self.layers(observation).chunk(2, -1)
        return self.middle + self.half_width * torch.tanh(loc)


def _export_onnx(program: Any, observations: torch.Tensor, path: Path) -> torch.Tensor:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
        import onnxscript  # noqa: F401  # pyright: ignore[reportMissingImports] # torch.onnx needs it
    except ImportError as error:
        raise ImportError(f"export to ONNX needs {error.name}: pip install 'eqr_torchrl[onnx]'.") from error
    names: Any = {"input_names": ["observation"], "output_names": ["action"]}
    with errors_alone("torch.onnx"):  # a warning for each operator of torchvision, which no policy has
        torch.onnx.export(program, f=path, dynamo=True, external_data=False, verbose=False, **names)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"observation": observations.numpy()})[0])


def load_agent(source: str | Path, *, which: str = "last", env: EnvBase | None = None) -> Agent:
    """Loads a trained agent, which acts within the action bounds of its training.

    Args:
        source: a run folder; one of its checkpoints; or a policy file, such as ``checkpoints/policy.pt``, under any
            name. A policy file holds data, about 90 kB, and needs neither the environment nor Hydra.
            ``pretrained/TASK`` is one that comes with the package.
        which: of a run folder, ``"last"`` is the newest checkpoint with all its parts, ``"best"`` the policy of the
            best evaluation; its return and number of episodes are the agent's ``evaluation``.
        env: an environment that the agent is to act in: other sizes or bounds than in training are refused.

    Examples:
        >>> load_agent("no/such/run")
        Traceback (most recent call last):
        ValueError: source must be a run folder with config.yaml and checkpoints, ... policy file: got no/such/run.
    """
    if which not in ("last", "best"):
        raise ValueError(f'which must be "last" or "best", got {which!r}.')
    source = _shipped(Path(source).expanduser())
    checkpoint, folder = find_checkpoint(source)
    if source.is_dir() and which == "best":
        checkpoint = folder / CHECKPOINT_FOLDER / BEST_POLICY_FILE
        if not checkpoint.is_file():
            raise ValueError(f"{source} has no {BEST_POLICY_FILE}: it was not evaluated.")
    content = {} if checkpoint is None else read_file(checkpoint)
    if content.get("kind") == _KIND:
        if content["network"] is None:
            raise ValueError(f"{source} holds a policy that make_actor did not build: load the run folder instead.")
        actor = _build_actor(content["network"], content["space"])
        actor.load_state_dict(content["actor"])
        saved = {name: content[name] for name in ("settings", "space", "env_steps", "evaluation")}
        agent = Agent(source=source, actor=actor.eval(), **saved)
    elif checkpoint is not None and (folder / CONFIG_FILE).is_file():
        agent = _load_run(folder, checkpoint)
    else:
        needed = f"a run folder with {CONFIG_FILE} and checkpoints, a checkpoint in one, or a policy file"
        raise ValueError(f"source must be {needed}: got {source}.")
    if env is not None:
        check_space(agent.space, env, str(source))
    return agent


def _shipped(source: Path) -> Path:
    """Where a policy that comes with the package lies; another source as it is."""
    if source.exists() or source.parts[:-1] != ("pretrained",):
        return source
    path = _PRETRAINED / f"{source.name}.pt"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in _PRETRAINED.glob("*.pt")))
        raise ValueError(f"source must be pretrained/ and one of {names}: got {source}.")
    return path


def _load_run(folder: Path, checkpoint: Path) -> Agent:
    try:
        from hydra.utils import instantiate
    except ImportError as error:
        raise ImportError("loading a checkpoint needs Hydra: pip install 'eqr_torchrl[hydra]'.") from error
    settings, saved = read_settings_file(folder / CONFIG_FILE), load_checkpoint(checkpoint)
    parts, space = saved["parts"], SpaceOnly(saved["space"])
    actor = instantiate(settings["actor"], space)
    critics = [instantiate(settings["critic"], space).eval() for _ in range(settings["loss"]["num_qvalue_nets"])]
    loss = instantiate(settings["loss"], actor, critics)
    loss.make_value_estimator(gamma=settings["gamma"])
    restore_module("loss", loss, parts["loss"])  # actor and critics share their parameters with the loss ...
    if loss.qvalue_network_params.batch_dims:  # ... except in TorchRL's own losses, which stack those of the critics
        for network, parameters in zip(critics, loss.qvalue_network_params.data.unbind(0), strict=True):
            TensorDict.from_module(network).data.update_(parameters)
    world_model = instantiate(settings["world_model"], space).eval() if "world_model" in parts else None
    if world_model is not None:
        restore_module("world_model", world_model, parts["world_model"])
    return Agent(
        source=folder, settings=settings, space=saved["space"], env_steps=saved["step"], actor=actor.eval(),
        evaluation=None, critics=critics, loss=loss.eval(), world_model=world_model,
    )  # fmt: skip


def _build_by_hydra(settings: dict[str, Any]) -> EnvBase:
    """The environment of a run; an error is the environment's own, not Hydra's account of it."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        return instantiate(settings)
    except InstantiationException as error:
        raise (error.__cause__ or error) from None


def space_of(env: EnvBase) -> dict[str, Any]:
    """Name, observation size and action bounds of an environment, as plain values."""
    space = getattr(env.action_spec_unbatched, "space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    return {
        "env": str(getattr(env, "env_name", type(env).__name__)),
        "observation_size": env.observation_spec["observation"].shape[-1],
        "action_low": None if low is None else low.float().tolist(),
        "action_high": None if high is None else high.float().tolist(),
    }


def check_space(trained: Mapping[str, Any], env: EnvBase, source: str) -> None:
    """Raises a ``ValueError`` that names the sizes and bounds in which an environment differs from the training."""
    found = space_of(env)
    names = [name for name in trained if name != "env" and trained[name] != found[name]]
    if names:
        before, now = (", ".join(f"{name}={one[name]}" for name in names) for one in (trained, found))
        raise ValueError(f"{source} was trained with {before}, and {found['env']} has {now}.")


class SpaceOnly(EnvBase):
    """Sizes and bounds for which networks are built, without a simulator.

    Args:
        space: ``env``, a name, ``observation_size``, ``action_low`` and ``action_high``, lists of numbers.
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        super().__init__()
        low, high = torch.tensor(space["action_low"]), torch.tensor(space["action_high"])
        self.observation_spec = Composite(observation=Unbounded(torch.Size([space["observation_size"]])))
        self.action_spec = Bounded(low, high, low.shape, dtype=torch.float32)
        self.reward_spec = Unbounded(torch.Size([1]))
        self.env_name = space["env"]

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        raise RuntimeError(f"{self.env_name} has no simulator here.")

    _step = _set_seed = _reset  # pyright: ignore[reportAssignmentType]


def describe_actor(actor: Any, space: Mapping[str, Any]) -> dict[str, Any] | None:
    """What :func:`~eqr_torchrl.networks.make_actor` needs to build a policy again; ``None`` if it did not build it."""
    try:
        head = actor[0].module
        layers = list(head.network)
        network = {
            "builder": "make_actor",
            "num_cells": [layer.out_features for layer in layers if isinstance(layer, nn.Linear)][:-1],
            "activation": next((kind for kind in map(_name, layers) if kind in _ACTIVATIONS), "Tanh"),
            "layer_norm": "LayerNorm" in map(_name, layers),
            "normalize": _name(layers[0]) == "Normalizer",
            "log_std_bounds": [float(head.low), float(head.high)],
        }
        with isolated_rng(0):
            twin: Any = _build_actor(network, space)
    except (AttributeError, IndexError, KeyError, TypeError, RuntimeError, ValueError):
        return None
    return network if repr(twin[0].module) == repr(head) else None  # also sizes, and arguments of activations


def _name(layer: nn.Module) -> str:
    return type(layer).__name__


def _build_actor(network: Mapping[str, Any], space: Mapping[str, Any]) -> Any:
    """A policy of a known kind, by plain values."""
    if network["builder"] != "make_actor" or network["activation"] not in _ACTIVATIONS:
        raise ValueError(f"a policy of make_actor with one of {', '.join(_ACTIVATIONS)} is needed, got {network}.")
    return make_actor(
        SpaceOnly(space),
        num_cells=network["num_cells"],
        activation_class=_ACTIVATIONS[network["activation"]],
        log_std_bounds=tuple(network["log_std_bounds"]),
        layer_norm=network.get("layer_norm", False),  # files of 0.2 have neither
        normalize=network.get("normalize", False),
    )


def policy_content(
    actor: nn.Module,
    network: Mapping[str, Any] | None,
    space: Mapping[str, Any],
    settings: Mapping[str, Any],
    env_steps: int,
    evaluation: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a policy file holds: data alone. The weights are copies."""
    return {
        "kind": _KIND,
        "format": FORMAT,
        "versions": versions(),
        "env_steps": env_steps,
        "space": dict(space),
        "network": network,
        "evaluation": evaluation,
        "settings": dict(settings),
        "actor": {key: value.detach().cpu().clone() for key, value in actor.state_dict().items()},
    }


def save_policy(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a policy file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: torch.save(dict(content), temporary))
