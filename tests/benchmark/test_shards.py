"""Shares of a benchmark: templates of the documentation, and processes that share a folder."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import short_track
from mkdocs.utils.yaml import yaml_load

from fedjax_fair.benchmark import report, run_cells, runner
from fedjax_fair.benchmark.commands import parse_shard

PAGE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
(SBATCH,) = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", PAGE, re.DOTALL)
(MANIFEST,) = re.findall(r"```yaml\n(apiVersion: batch.*?)```", PAGE, re.DOTALL)
NUM_SHARDS = 2


@pytest.fixture
def typed(tmp_path):
    """Returns a function that runs a command with programs that only print their arguments."""
    for name, text in {"fedjax-fair": 'echo "$@"', "srun": 'exec "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def run(command, **environment):
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command, env=environment | {"PATH": path}, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    return run


def verify_shares(commands):
    """Verifies that commands differ in their shares only, which are all of the work once."""
    places = {command.index("--shard") + 1 for command in commands}
    (place,) = places
    shares = [parse_shard(command[place]) for command in commands]
    planned = [runner.plan("standard", Path("f"), shard=share).units for share in shares]
    every = runner.plan("standard", Path("f")).units
    assert sorted(unit.folder for units in planned for unit in units) == sorted(
        unit.folder for unit in every
    )
    others = {(*command[:place], *command[place + 1 :]) for command in commands}
    ((*words,),) = others
    assert words == [
        *("benchmark", "standard", "--shard", "--data.dir", "/shared/data"),
        *("--output", "/shared/benchmarks"),
    ]


def test_the_job_array_has_all_shares(typed, tmp_path):
    script = tmp_path / "benchmark.sbatch"
    script.write_text(SBATCH)
    lines = SBATCH.splitlines()
    head = [line for line in lines if line.startswith("#SBATCH ")]
    # Slurm reads options only before the first command.
    assert lines[1 : len(head) + 1] == head
    options = dict(re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line).groups() for line in head)
    assert {"job-name", "cpus-per-task", "mem", "time", "output"} <= set(options)
    first, last = map(int, options["array"].split("-"))
    verify_shares(
        [typed(["bash", str(script)], SLURM_ARRAY_TASK_ID=str(i)) for i in range(first, last + 1)]
    )


def test_the_indexed_job_has_all_shares(typed):
    job = yaml_load(MANIFEST)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    pod = spec["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert pod["restartPolicy"] in ("OnFailure", "Never")
    (container,) = pod["containers"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    command = [*container["command"], *container["args"]]
    verify_shares([typed(command, JOB_COMPLETION_INDEX=str(i)) for i in range(spec["completions"])])


@pytest.mark.integration
def test_processes_that_share_a_folder_have_the_cells_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write_figures", lambda *_: None)
    commands = [["benchmark", "--shard", f"{i}/{NUM_SHARDS}"] for i in (1, 2)]
    started = [short_track.start(tmp_path, [command]) for command in commands]
    folders = [tmp_path / "whole", tmp_path / "benchmarks" / "embedded"]
    with short_track.finished(folders[0], short_track.make_track()):
        report.write(folders[0])
    outcomes = [short_track.finish(process)[0] for process in started]
    assert [(outcome.status, outcome.err) for outcome in outcomes] == [(0, "")] * 2
    expected = run_cells.read(folders[0] / "cells.jsonl")
    shutil.rmtree(folders[1] / "report", ignore_errors=True)
    report.write(folders[1])
    assert run_cells.read(folders[1] / "cells.jsonl") == expected
    assert {cell["method"] for cell in expected} == set(short_track.METHODS) - {"fedbn"}
    for name in ("results.csv", "ranking.csv", "cells.csv"):
        one, other = (folder / "report" / name for folder in folders)
        assert one.read_text() == other.read_text()
    assert (
        runner.failures(runner.failed_units(folders[1]))
        == runner.failures(runner.failed_units(folders[0]))
        != []
    )


@pytest.mark.integration
@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or not shutil.which("taskset"),
    reason="needs two cores, and taskset to use one of them",
)
def test_cells_are_equal_on_one_core_and_on_all(tmp_path):
    methods = ["fedavg", "local_converged"]
    prefix = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    process = short_track.start(tmp_path, [["benchmark", "--methods", *methods]], prefix=prefix)
    folders = [tmp_path / "benchmarks" / "embedded", tmp_path / "all"]
    with short_track.finished(folders[1], short_track.make_track(methods)):
        assert short_track.finish(process)[0].status == 0
    one, other = (run_cells.read(folder / "cells.jsonl") for folder in folders)
    assert len(one) == len(other) > 0
    for mine, expected in zip(one, other, strict=True):
        for phase in {"validation", "test"} & mine.keys():
            assert mine.pop(phase) == pytest.approx(expected.pop(phase), rel=1e-5)
        assert mine == expected
