"""The packages of a distribution: those below ``eqr_torchrl``, and the scripts and configurations of the clone.

``pyproject.toml`` says in which folders the latter are: ``examples`` is ``eqr_torchrl.lab.scripts``, ``configs`` beside
it.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["eqr_torchrl*"]),
        "eqr_torchrl.lab.configs",
        "eqr_torchrl.lab.scripts",
        *(f"eqr_torchrl.lab.scripts.{name}" for name in find_packages("examples")),
    ]
)
