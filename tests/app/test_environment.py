"""Environment variables and locales of a command."""

import json
import os
import re
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-c", "from fedjax_fair.app.cli import program; program()"]
RUN = ["run", "digits", "--methods=fedavg", "--training.rounds=2", "--training.eval-every=1"]


def run(*words, **environment):
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        encoding="utf8",
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "JAX_PLATFORMS",
            "nonsense",
            "JAX_PLATFORMS='nonsense': none of these devices can be used",
        ),
        ("JAX_PLATFORMS", "cuda", "JAX_PLATFORMS='cuda': none of these devices can be used"),
        ("JAX_ENABLE_X64", "maybe", "invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'"),
        ("JAX_DEBUG_NANS", "1", "JAX_DEBUG_NANS=True: expected False, because metrics"),
        ("JAX_DISABLE_JIT", "1", "JAX_DISABLE_JIT=True: expected False, because training needs"),
    ],
)
def test_settings_of_jax_that_cannot_be_used_are_named_in_one_line(
    variable, value, message, tmp_path
):
    ended = run(*RUN, "--output", tmp_path, **{variable: value})
    if value == "cuda" and ended.returncode == 0:
        pytest.skip("a GPU is available")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"fedjax-fair: {message}")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_continues_with_its_settings_of_jax_and_any_number_of_devices(tmp_path):
    """Its folder cannot be written in the encoding of the terminal."""
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    started = run(*RUN, "--output", tmp_path / "é 日本", **ascii_only)
    assert (started.returncode, started.stderr) == (0, "")
    (folder,) = (tmp_path / "é 日本").iterdir()
    assert "\\xe9 \\u65e5\\u672c" in started.stdout
    settings = json.loads((folder / "env.json").read_text("utf8"))["settings"]
    assert settings["JAX_THREEFRY_PARTITIONABLE"] == "True"

    before = (folder / "results.nc").read_bytes()
    other = run("resume", folder, JAX_THREEFRY_PARTITIONABLE="0")
    assert other.returncode == 2
    expected = "JAX_THREEFRY_PARTITIONABLE=False: the checkpoints in .* are of a run with True"
    assert other.stderr.count("\n") == 1
    assert re.search(expected, other.stderr)
    assert (folder / "results.nc").read_bytes() == before

    flags = "--xla_force_host_platform_device_count=3 " + os.environ.get("XLA_FLAGS", "")
    more = run("resume", folder, "--training.rounds=3", XLA_FLAGS=flags)
    assert (more.returncode, more.stderr) == (0, "")
