"""Options that the package asks XLA for are those that the installed version has."""

import jax
import pytest

from fedjax_fair.benchmark import compute
from fedjax_fair.utils import xla_options

REMOVED = {"xla_cpu_use_fusion_emitters": False}


def compile_with(options):
    jax.jit(lambda x: x + 1).lower(0.0).compile(options)


@pytest.mark.parametrize("options", [compute._CPU_OPTIONS, xla_options.BRIEF_CPU_OPTIONS])
def test_the_installed_version_knows_all_options_of_the_package(options):
    assert options
    compile_with(options)


def test_options_are_left_out_exactly_where_the_installed_version_refuses_them():
    assert REMOVED.keys() == xla_options._REMOVED.keys()
    for name, value in REMOVED.items():
        if xla_options.known({name: value}):
            compile_with({name: value})
        else:
            with pytest.raises(jax.errors.JaxRuntimeError, match=name):
                compile_with({name: value})


def test_an_option_is_known_until_the_version_that_removed_it(monkeypatch):
    monkeypatch.setattr(xla_options, "_REMOVED", {"old": (0, 11, 1)})
    kept = []
    for version in ((0, 8, 1), (0, 11, 0), (0, 11, 1), (0, 12, 0)):
        monkeypatch.setattr(jax, "__version_info__", version)
        kept.append(tuple(xla_options.known({"old": 1, "new": 2})))
    assert kept == [("old", "new"), ("old", "new"), ("new",), ("new",)]


def test_flags_of_the_environment_decide_before_the_package(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3 --xla_b=1")
    options = {"xla_backend_optimization_level": 1, "xla_backend": 2, "xla_b": 3, "xla_c": 4}
    assert xla_options.undecided(options) == {"xla_backend": 2, "xla_c": 4}
