"""What a policy is worth, judged from a log: returns in models it was not trained in, with calibrated intervals."""

from __future__ import annotations

from eqr_torchrl.lab.judging.judge import Judge, Judgement, time_limit
from eqr_torchrl.lab.judging.page import (
    advice,
    diagnose_offline,
    functions_of,
    judged_loop,
    kept_report,
    offline_report,
)

__all__ = [
    "Judge",
    "Judgement",
    "advice",
    "diagnose_offline",
    "functions_of",
    "judged_loop",
    "kept_report",
    "offline_report",
    "time_limit",
]
