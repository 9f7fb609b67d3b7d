"""The tasks of the paper."""

from __future__ import annotations

PAPER_DMC_TASKS: tuple[str, ...] = (
    "dmc/acrobot-swingup",
    "dmc/ball_in_cup-catch",
    "dmc/cartpole-balance_sparse",
    "dmc/cartpole-swingup_sparse",
    "dmc/cheetah-run",
    "dmc/finger-spin",
    "dmc/finger-turn_easy",
    "dmc/fish-swim",
    "dmc/fish-upright",
    "dmc/pendulum-swingup",
    "dmc/quadruped-escape",
    "dmc/quadruped-run",
    "dmc/quadruped-walk",
    "dmc/reacher-easy",
    "dmc/reacher-hard",
    "dmc/walker-run",
)
"""The 16 DeepMind Control tasks of the paper's score table, as names for :func:`~eqr_torchrl.envs.make_env`."""
