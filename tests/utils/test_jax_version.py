"""Versions of JAX that are too old or too new."""

import tomllib
from pathlib import Path

import jax
import pytest

from fedjax_fair.utils.jax_version import FIRST_UNTESTED, OLDEST, check_jax


def test_bounds_are_those_of_the_installation():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf8"))
    oldest, untested = (".".join(map(str, each)) for each in (OLDEST, FIRST_UNTESTED))
    for name in ("jax", "jaxlib"):
        assert f"{name}>={oldest},<{untested}" in project["project"]["dependencies"]
    assert OLDEST <= jax.__version_info__ < FIRST_UNTESTED


@pytest.mark.parametrize("version", [(0, 8, 1), (0, 10, 2), (0, 12, 9)])
def test_tested_versions_pass(version):
    check_jax(version)


@pytest.mark.parametrize("version", [(0, 4, 38), (0, 7, 2), (0, 8, 0)])
def test_an_older_version_is_refused_with_the_command(version):
    with pytest.raises(ImportError, match=r"expected 0\.8\.1 or newer; pip install 'jax>=0\.8\.1,"):
        check_jax(version)


@pytest.mark.parametrize("version", [(0, 13, 0), (0, 20, 1), (1, 0, 0)])
def test_a_newer_version_is_one_warning(version):
    with pytest.warns(
        UserWarning, match=r"newer than the tested versions; .*'jax>=0\.8\.1,<0\.13'"
    ):
        check_jax(version)
    check_jax(version)  # Once.
