"""Reports incompatible versions of TorchRL and TensorDict before they cause an obscure error."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement


def check_versions() -> None:
    """Checks the installed ``tensordict`` against the requirement of the installed ``torchrl``.

    Raises:
        ImportError: if it is another version; the message names both.
    """
    try:
        requirements = [Requirement(line) for line in metadata.requires("torchrl") or ()]
        found = metadata.version("tensordict")
    except metadata.PackageNotFoundError:  # a nightly build goes by another name
        return
    needed = next((requirement for requirement in requirements if requirement.name == "tensordict"), None)
    if needed is not None and not needed.specifier.contains(found, prereleases=True):
        raise ImportError(
            f"torchrl {metadata.version('torchrl')} needs tensordict {needed.specifier}, and {found} is installed: "
            f"pip install '{needed.name}{needed.specifier}'."
        )


check_versions()
