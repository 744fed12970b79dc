"""A missing extra is one line that names it; a cache that cannot be used does not end a command."""

import importlib.util

import jax
import pytest

import fedjax_fair as ff
from fedjax_fair.app import cli
from fedjax_fair.training.executable_cache import enable_compilation_cache

PRIVACY = ff.communication.DifferentialPrivacy(clipping_norm=1.0, noise_multiplier=1.0)


def spend(privacy):
    return ff.communication.epsilon(
        privacy, ff.selectors.Uniform(2), num_clients=9, rounds=2, delta=1e-5
    )


def without(package, find_spec=importlib.util.find_spec):
    return lambda name, *parent: None if name == package else find_spec(name, *parent)


@pytest.mark.parametrize("privacy", [PRIVACY, PRIVACY.replace(noise_multiplier=2.0)])
def test_a_missing_extra_is_named(privacy, monkeypatch):
    assert spend(privacy) > 0
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'fedjax-fair\[privacy\]'"):
        spend(privacy)
    assert spend(PRIVACY.replace(noise_multiplier=0.0)) == float("inf")


def test_a_command_without_the_extra_ends_before_training(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", without("dp_accounting"))
    command = "run digits --methods fedavg --communication.clipping-norm 1"
    command += " --communication.noise-multiplier 1 --aggregator.weights uniform"
    assert cli.main([*command.split(), "--output", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "expected the package dp_accounting; pip install 'fedjax-fair[privacy]'" in line
    assert not list(tmp_path.glob("*/metrics.jsonl"))


@pytest.fixture
def settings():
    names = (
        "jax_compilation_cache_dir",
        "jax_enable_compilation_cache",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield lambda: {name: getattr(jax.config, name) for name in names}
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("from_environment", [False, True])
@pytest.mark.parametrize(
    ("folder", "is_read"), [("/proc/sys", True), ("/proc/none", False), ("{file}/none", False)]
)
def test_a_cache_without_permission_is_a_warning(
    folder, is_read, from_environment, settings, tmp_path, monkeypatch
):
    """Not even the user root can write there."""
    (tmp_path / "file").touch()
    folder = folder.format(file=tmp_path / "file")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", folder if from_environment else "other")
    with pytest.warns(UserWarning, match=f"folder='{folder}': new functions are not kept"):
        enable_compilation_cache(None if from_environment else folder)
    assert settings()["jax_enable_compilation_cache"] is is_read
    assert settings()["jax_persistent_cache_min_compile_time_secs"] == float("inf")


def test_a_cache_of_the_environment_keeps_its_settings(settings, tmp_path, monkeypatch):
    before = settings()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "new"))
    assert enable_compilation_cache() == tmp_path / "new"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs://bucket/programs")
    enable_compilation_cache()
    assert settings() == before


def test_damaged_files_of_the_cache_are_one_line(monkeypatch):
    cli._printed_once.clear()
    damaged = "Error reading persistent compilation cache entry for 'jit_{}': incorrect header"
    first, second = (cli._format_warning(damaged.format(name)) for name in ("init", "step"))
    assert first.startswith("fedjax-fair: warning: Error reading")
    assert f"delete {jax.config.jax_compilation_cache_dir}" in first
    assert not second
    assert cli._format_warning("another") == "fedjax-fair: warning: another\n"
