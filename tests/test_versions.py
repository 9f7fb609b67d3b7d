from __future__ import annotations

from importlib import metadata

import pytest

from eqr_torchrl._versions import check_versions


@pytest.mark.parametrize(("found", "fits"), [("0.14.2", False), ("0.14.3", True), ("0.14.9", True), ("0.15.3", False)])
def test_a_tensordict_that_torchrl_does_not_take_is_told_in_one_line(monkeypatch, found, fits):
    versions = {"torchrl": "0.14.1", "tensordict": found}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch>=2.1", "tensordict<0.15.0,>=0.14.3"])
    if fits:
        return check_versions()
    with pytest.raises(ImportError, match=rf"torchrl 0.14.1 needs tensordict .*>=0.14.3.* and {found} is installed"):
        check_versions()


def test_a_nightly_build_is_taken_as_it_is(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    check_versions()


def test_an_unpinned_torchrl_is_taken_as_it_is(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch", "tensordict"])
    check_versions()
