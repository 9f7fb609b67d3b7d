"""The exact counterpart: posteriors over finite MDPs, whose value distributions have exact solutions.

Equations, examples and figures are those of Luis et al. (2024), `arXiv:2308.06590 <https://arxiv.org/abs/2308.06590>`_.
"""

from __future__ import annotations

from eqr_torchrl.tabular.bellman import (
    bellman_targets,
    unrolled_values,
    value_distribution_backup,
    value_distribution_iteration,
    value_distribution_samples,
)
from eqr_torchrl.tabular.conjugate import DirichletPosterior, NormalPosterior
from eqr_torchrl.tabular.envs import MDPEnv
from eqr_torchrl.tabular.eqr import QuantileEstimate, epistemic_quantile_regression
from eqr_torchrl.tabular.mdp import MDP, MarkovRewardProcess
from eqr_torchrl.tabular.nroom import nroom_cells, nroom_mdp, nroom_prior
from eqr_torchrl.tabular.posterior import ConjugatePosterior, EmpiricalPosterior, MDPPosterior
from eqr_torchrl.tabular.psrl import PSRLResult, psrl
from eqr_torchrl.tabular.solve import policy_iteration, policy_values, process_values, sample_values
from eqr_torchrl.tabular.statistics import TransitionStatistics, count_transitions
from eqr_torchrl.tabular.toy import sample_toy_parameter, toy_mdp

__all__ = [
    "MDP",
    "ConjugatePosterior",
    "DirichletPosterior",
    "EmpiricalPosterior",
    "MDPEnv",
    "MDPPosterior",
    "MarkovRewardProcess",
    "NormalPosterior",
    "PSRLResult",
    "QuantileEstimate",
    "TransitionStatistics",
    "bellman_targets",
    "count_transitions",
    "epistemic_quantile_regression",
    "nroom_cells",
    "nroom_mdp",
    "nroom_prior",
    "policy_iteration",
    "policy_values",
    "process_values",
    "psrl",
    "sample_toy_parameter",
    "sample_values",
    "toy_mdp",
    "unrolled_values",
    "value_distribution_backup",
    "value_distribution_iteration",
    "value_distribution_samples",
]
