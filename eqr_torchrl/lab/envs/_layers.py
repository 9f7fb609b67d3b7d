"""What stands between a simulator and the agent: TorchRL's transforms and Gymnasium's wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from torchrl.envs import EnvBase, GymWrapper, TransformedEnv
from torchrl.envs.transforms import (
    Compose,
    DeviceCastTransform,
    DoubleToFloat,
    InitTracker,
    StepCounter,
    Transform,
    VecNorm,
    VecNormV2,
)

_KEEP_VALUES = (DeviceCastTransform, DoubleToFloat, InitTracker, StepCounter)
_PASSIVE = {
    *("TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo"),
    *("RenderCollection", "HumanRendering"),
}
_KEEPERS = {  # Gymnasium's wrappers that return the entry as the simulator does, and base classes of such
    "observation": _PASSIVE | {"ActionWrapper", "RewardWrapper", "NormalizeReward"},
    # a reward may depend on the action: only wrappers that keep it within the simulator's own bounds
    "reward": _PASSIVE | {"ObservationWrapper", "RescaleAction", "ClipAction"},
}


def simulator_env(env: EnvBase) -> EnvBase:
    """The innermost TorchRL environment; of several identical ones, the one that :func:`make_env` opened to look at."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    # not getattr: ParallelEnv would ask its processes
    return simulator_env(vars(env)["template"]) if "template" in vars(env) else env


def layers(env: EnvBase) -> Iterator[Any]:
    """Transforms and Gymnasium wrappers, from the outermost to the innermost."""
    while isinstance(env, TransformedEnv):
        yield from reversed(list(env.transform) if isinstance(env.transform, Compose) else [env.transform])
        env = env.base_env
    if "template" in vars(env):
        yield from layers(vars(env)["template"])
    wrapper: Any = env._env if isinstance(env, GymWrapper) else None
    while wrapper is not None and wrapper is not wrapper.unwrapped:
        yield wrapper
        wrapper = wrapper.env


def may_change(layer: Any, entry: Literal["observation", "reward"]) -> bool:
    """Whether what comes out of a layer may differ from what went in. One that does not state what it writes may.

    Transforms of this package do not count: what they do is known.
    """
    if not isinstance(layer, Transform):
        return not any(kind.__name__ in _KEEPERS[entry] for kind in type(layer).__mro__)
    if type(layer).__module__.startswith("eqr_torchrl.") or isinstance(layer, _KEEP_VALUES):
        return False
    return entry in layer.out_keys if layer.out_keys else True


def check_running_statistics(env: EnvBase, name: str) -> None:
    """Rejects layers that go on collecting statistics; raises ValueError with one sentence."""
    for layer in layers(env):
        if isinstance(layer, Transform):
            collects, frozen = isinstance(layer, (VecNorm, VecNormV2)) and not layer.frozen, "frozen"
        else:
            kinds = {type(value).__name__ for value in vars(layer).values()}
            collects, frozen = "RunningMeanStd" in kinds and getattr(layer, "update_running_mean", True), "fixed"
        if collects:
            raise ValueError(
                f"{name}: the running statistics of {type(layer).__name__} are neither shared with the environment of "
                "evaluations nor saved in checkpoints, so that one state has several observations or rewards: remove "
                f"it, since the world model normalises by itself (or use it with {frozen} statistics)."
            )
