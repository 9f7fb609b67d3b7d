"""What ``--help`` prints: what the script is, its groups with their choices, and all settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from eqr_torchrl.runs.overrides import ConfigGroups, compose_checked


def help_text(main: Callable[..., Any], config_name: str, overrides: Sequence[str]) -> str:
    """The help of one script, for the parts that the overrides choose.

    Hydra lists every group of the configuration folder; here are those that the script composes, with the choice that
    is set, and without the experiments of other scripts. Hydra must have been initialised.

    Args:
        main: the script's function; the docstring of its module comes first.
        config_name: name of the primary configuration.
        overrides: as typed.

    Returns:
        The text.

    Raises:
        CommandLineError: if an override is wrong.
    """
    from omegaconf import OmegaConf, open_dict

    config = compose_checked(config_name, overrides, multirun=True)
    chosen = {group.split("@")[0]: choice for group, choice in config.hydra.runtime.choices.items()}
    groups, lines = ConfigGroups(config_name, overrides), []
    for group in sorted(group for group in chosen if not group.startswith("hydra/")):
        others = [choice for choice in groups.choices_of_script(group) if choice != chosen[group]]
        lines.append(f"{group}={chosen[group] or 'null'}" + (f"  or {', '.join(others)}" if others else ""))
    with open_dict(config):
        del config["hydra"]
    sections = [
        (inspect.getdoc(inspect.getmodule(main)) or "").strip(),
        "Parts, each with the choice that is set (group=choice sets another):\n\n" + "\n".join(lines),
        "All settings (key=value sets another):\n\n" + OmegaConf.to_yaml(config).rstrip(),
        "--multirun runs every combination of comma-separated values; --cfg job prints the settings alone;\n"
        "--hydra-help tells the other options of Hydra, which composes the settings.",
    ]
    return "\n\n".join(section for section in sections if section)
