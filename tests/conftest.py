"""A posterior over MDPs that can be worked out on paper, for the tests of everything that uses one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from matplotlib.figure import Figure

from eqr_torchrl.world_models import WorldModel


class KnownModel(WorldModel):
    """Member ``m`` moves every state entry by ``drift[m]`` and pays ``reward[m]``, with Gaussian noise on both.

    ``scale`` is one standard deviation, or one for each predicted entry.
    """

    def __init__(self, drift, reward=None, *, observation_dim: int = 3, scale=0.0) -> None:
        super().__init__(observation_dim, num_members=len(drift), predicts_reward=reward is not None)
        self.register_buffer("drift", torch.tensor(drift).view(-1, 1, 1))
        self.register_buffer("reward", None if reward is None else torch.tensor(reward).view(-1, 1, 1))
        self.scale, self.rows = scale, []

    def forward(self, observation, action):
        self.rows.append(observation.shape[1])  # rows of each member in every call
        loc = observation + self.drift
        if self.reward is not None:
            loc = torch.cat([loc, self.reward.expand(*observation.shape[:2], 1)], -1)
        return loc, torch.as_tensor(self.scale, dtype=loc.dtype, device=loc.device).expand_as(loc)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first: with several workers, none of them is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Takes back the handlers that Hydra gives the root logger: they write to the output of one test alone."""
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def known_model() -> type[KnownModel]:
    return KnownModel


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that a test saves, in order."""
    saved: list[Figure] = []
    save = Figure.savefig

    def savefig(figure: Figure, *args: object, **kwargs: object) -> None:
        saved.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved
