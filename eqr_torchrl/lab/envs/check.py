"""The command ``eqr-check NAME``: does an environment fit, and what to change?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from eqr_torchrl.imagination.terminations import never_terminates
from eqr_torchrl.lab.envs.check_env import check_env
from eqr_torchrl.lab.envs.lookup import import_by_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one line per finding of :func:`~eqr_torchrl.lab.envs.check_env`.

    Args:
        arguments: command-line arguments; ``None`` takes those of the process.

    Returns:
        Exit status: 1 if a finding is an error, otherwise 0.

    Examples:
        >>> main(["Pendulum-v0"])
        error   environment  unknown environment 'Pendulum-v0': did you mean Pendulum-v1 ...
        1
    """
    parser = argparse.ArgumentParser(prog="eqr-check", description=__doc__)
    parser.add_argument("env", metavar="NAME", help="'dmc/cheetah-run', 'Pendulum-v1', or 'package.module:MyEnv'")
    parser.add_argument("argument", metavar="KEY=VALUE", nargs="*", help="passed on to the environment")
    parser.add_argument("--num-steps", type=int, default=1000, help="random steps to take (default: %(default)s)")
    own: dict[str, Any] = {"metavar": "MODULE:FUNCTION", "type": _function}
    rule = parser.add_mutually_exclusive_group()
    never: dict[str, Any] = {"dest": "termination_fn", "action": "store_const", "const": never_terminates}
    rule.add_argument("--never-terminates", **never, help="check against a model that never terminates")
    rule.add_argument("--termination-fn", **own, help="your own termination function")
    parser.add_argument("--reward-fn", **own, help="your known reward, if the model will not learn it")
    parser.add_argument("--reward-scale", type=float, default=1.0, help="factor on every reward (default: %(default)s)")
    parser.add_argument("--max-episode-steps", type=int, help="time limit in place of the environment's own")
    options = vars(parser.parse_intermixed_args(arguments))
    if options["num_steps"] < 1:
        parser.error(f"--num-steps must be at least 1: got {options['num_steps']}.")
    words = options.pop("argument")
    if wrong := [word for word in words if not word.partition("=")[0].isidentifier() or "=" not in word]:
        parser.error(f"arguments of the environment must be of the form key=value: got {' '.join(wrong)}.")
    values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(words))  # as on the command line of the scripts
    if taken := values.keys() & options.keys():
        parser.error(f"{' and '.join(sorted(taken))}: use the option of this name.")
    findings = check_env(**options, **values)
    print("\n".join(map(str, findings)))
    return int(any(finding.level == "error" for finding in findings))


def _function(name: str) -> Any:
    try:
        return import_by_name(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
