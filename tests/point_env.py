"""A point that the action pushes hard, so that a few hundred updates show whether a policy learns."""

from __future__ import annotations

from eqr_torchrl.testing import ToyEnv


class PointEnv(ToyEnv):
    """``s' = 0.9 s + 0.5 a + noise``, reward ``-s^2``: from 1, idling costs 5.2 and pushing back at once about 1.3."""

    def __init__(self) -> None:
        super().__init__(1, 1, noise=0.02)
        self.push = 5 * self.push
