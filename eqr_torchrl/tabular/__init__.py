"""The exact counterpart: posteriors over finite MDPs, whose value distributions can be checked against the truth."""

from __future__ import annotations

from .bellman import (
    bellman_targets,
    value_distribution_backup,
    value_distribution_iteration,
    value_distribution_samples,
)
from .dirichlet import DirichletPosterior
from .envs import MDPEnv, NRoom, ToyMDP
from .eqr import QuantileEstimate, epistemic_quantile_regression
from .mdp import MDP, MarkovRewardProcess
from .nroom import nroom_cells, nroom_mdp, nroom_prior
from .plotting import (
    plot_nroom,
    plot_quantile_loss,
    plot_regret,
    plot_toy,
    plot_uncertain_transition,
    plot_unrolling,
)
from .posterior import ConjugatePosterior, EmpiricalPosterior, MDPPosterior
from .psrl import PSRLResult, psrl
from .rewards import NormalGammaPosterior, NormalPosterior, RewardPosterior
from .solve import action_values, policy_iteration, policy_values, process_values, sample_values
from .statistics import TransitionStatistics, count_transitions
from .toy import TOY_POSTERIORS, sample_toy_parameter, toy_mdp
from .unroll import UnrolledMDP, unroll, unrolled_values

__all__ = [
    "MDP",
    "TOY_POSTERIORS",
    "ConjugatePosterior",
    "DirichletPosterior",
    "EmpiricalPosterior",
    "MDPEnv",
    "MDPPosterior",
    "MarkovRewardProcess",
    "NRoom",
    "NormalGammaPosterior",
    "NormalPosterior",
    "PSRLResult",
    "QuantileEstimate",
    "RewardPosterior",
    "ToyMDP",
    "TransitionStatistics",
    "UnrolledMDP",
    "action_values",
    "bellman_targets",
    "count_transitions",
    "epistemic_quantile_regression",
    "nroom_cells",
    "nroom_mdp",
    "nroom_prior",
    "plot_nroom",
    "plot_quantile_loss",
    "plot_regret",
    "plot_toy",
    "plot_uncertain_transition",
    "plot_unrolling",
    "policy_iteration",
    "policy_values",
    "process_values",
    "psrl",
    "sample_toy_parameter",
    "sample_values",
    "toy_mdp",
    "unroll",
    "unrolled_values",
    "value_distribution_backup",
    "value_distribution_iteration",
    "value_distribution_samples",
]
