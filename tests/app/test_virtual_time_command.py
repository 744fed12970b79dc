"""Virtual time on the command line."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from compilations import compilations

from fedjax_fair import aggregators, results, schedules, sweep, timing
from fedjax_fair.app.build import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.memory import IN_FLIGHT, min_memory
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import (
    Config,
    DataConfig,
    ModelConfig,
    ScheduleConfig,
    SelectorConfig,
    SolverConfig,
    TimingConfig,
    TrainingConfig,
)
from fedjax_fair.training.executable_cache import clear

SPEEDS = (
    "device_class,share,seconds_per_task,seconds_per_example\nphone,0.4,1,0.05\nlaptop,0.6,1,0.01\n"
)
SMALL = [
    "--data.clients=10",
    "--model.name=logistic",
    "--solver.steps=2",
    "--training.rounds=4",
    "--training.eval-every=2",
    "--training.seeds=0",
    "--quiet",
]
CONFIG = presets.resolve(
    Config(
        methods=("fedavg", "fedasync", "fedbuff"),
        data=DataConfig(clients=10),
        model=ModelConfig(name="logistic"),
        solver=SolverConfig(steps=2),
        timing=TimingConfig(table="synthetic", jitter=0.2),
        training=TrainingConfig(rounds=4, eval_every=2, seeds=(0, 1)),
    )
)


@pytest.fixture
def speeds(tmp_path, monkeypatch):
    """A table in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "speeds.csv").write_text(SPEEDS)


def run(*options):
    return main(["run", "digits", *SMALL, *options])


def only_run(parent):
    (folder,) = parent.iterdir()
    return RunFolder(folder)


def test_methods_have_their_schedules():
    rounds = build(replace(CONFIG, schedule=ScheduleConfig(deadline=60.0, max_staleness=4))).rounds
    times = timing.from_table(
        {
            "device_class": ["slow", "fast"],
            "share": [0.4, 0.6],
            "seconds_per_task": [1, 1],
            "seconds_per_example": [0.05, 0.01],
        },
        10,
    ).replace(jitter=0.2)
    assert {name: round.schedule for name, round in rounds.items()} == {
        "fedavg": schedules.Synchronous(times, deadline=60.0),
        "fedasync": schedules.Asynchronous(times, buffer_size=1, max_staleness=4),
        "fedbuff": schedules.Asynchronous(times, buffer_size=3, max_staleness=4),
    }
    plain = build(replace(CONFIG, methods=("fedavg",), timing=TimingConfig())).rounds
    assert plain["fedavg"].schedule is None


def test_settings_in_a_name_are_of_one_method():
    methods = "fedbuff:exponent=0,buffer_size=5", "fedavg:jitter=0.5"
    buffered, averaged = build(replace(CONFIG, methods=methods)).rounds.values()
    assert buffered.aggregator == aggregators.FedBuff(staleness=aggregators.Polynomial(0.0))
    assert (buffered.schedule.buffer_size, buffered.schedule.times.jitter) == (5, 0.2)
    assert averaged.schedule.times.jitter == 0.5


def test_a_pair_with_an_asynchronous_method_is_asynchronous():
    (round,) = build(replace(CONFIG, methods=("power_of_choice+fedbuff",))).rounds.values()
    assert type(round.selector).__name__ == "PowerOfChoice"
    assert isinstance(round.schedule, schedules.Asynchronous)


def test_concurrency_is_the_cohort_size_of_asynchronous_methods():
    config = replace(
        CONFIG, schedule=ScheduleConfig(concurrency=7), selector=SelectorConfig(cohort_size=4)
    )
    rounds = build(config).rounds
    sizes = {name: round.selector.cohort_size for name, round in rounds.items()}
    assert sizes == {"fedavg": 4, "fedasync": 7, "fedbuff": 7}


def test_groups_have_the_devices_of_their_rows():
    data = DataConfig(partition="planted_clusters", clusters="digits", partition_per_seed=True)
    times = TimingConfig(table="synthetic", assign="group")
    ready = build(replace(CONFIG, data=data, timing=times))
    for round in ready.rounds.values():
        for groups in ready.data.groups:
            np.testing.assert_array_equal(round.schedule.times.device_class, groups)


def test_clients_are_named_and_online_as_in_files(speeds, tmp_path):
    table = tmp_path / "clients.csv"
    rows = [f"{client},{0.01 * (client + 1)}" for client in reversed(range(10))]
    table.write_text("\n".join(["client,seconds_per_example", *rows]))
    intervals = tmp_path / "intervals.csv"
    rows = [f"{client},{client},{client + 20}" for client in range(10)]
    intervals.write_text("\n".join(["client,online,offline", *rows]))
    times = TimingConfig(table=str(table), online=str(intervals), period=100)
    (round,) = build(replace(CONFIG, methods=("fedavg",), timing=times)).rounds.values()
    found = round.schedule.times
    np.testing.assert_allclose(found.seconds_per_example, 0.01 * np.arange(1, 11), rtol=1e-6)
    expected = timing.Online.from_intervals([[(i, i + 20)] for i in range(10)], period=100)
    jax.tree.map(np.testing.assert_array_equal, found.online, expected)


MISTAKES = {
    "no times": (["--methods=fedbuff"], "fedbuff needs the times of clients; add --timing.table"),
    "buffer": (
        ["--methods=fedbuff", "--timing.table=speeds.csv", "--schedule.buffer-size=12"],
        "buffer_size=12: expected at most 10, the cohort size of the selector",
    ),
    "fedasync": (
        ["--methods=fedasync", "--timing.table=speeds.csv", "--schedule.buffer-size=3"],
        "buffer_size=3: FedAsync updates the model with every result; expected 1",
    ),
    "concurrency": (
        ["--methods=fedbuff", "--timing.table=speeds.csv", "--schedule.concurrency=11"],
        "schedule.concurrency=11: expected at most 10, the number of clients",
    ),
    "two sizes": (
        [
            *("--methods=fedbuff", "--timing.table=speeds.csv"),
            *("--schedule.concurrency=5", "--selector.cohort-size=5"),
        ],
        "--selector.cohort-size has no effect: fedbuff does not use it",
    ),
    "no table": (["--schedule.deadline=5"], "--schedule.deadline has no effect without --timing."),
    "jitter": (["--timing.jitter=1"], "--timing.jitter has no effect without --timing.table"),
    "synchronous": (
        ["--timing.table=speeds.csv", "--schedule.buffer-size=3"],
        "--schedule.buffer-size has no effect: fedavg does not use it",
    ),
    "missing": (["--timing.table=no.csv"], "no.csv': no such file; expected a CSV file, or synth"),
    "missing intervals": (
        ["--timing.table=speeds.csv", "--timing.online=no.csv"],
        "no.csv': no such file; expected a CSV file.",
    ),
    "period": (
        ["--timing.table=speeds.csv", "--timing.period=5"],
        "timing.period=5: expected none without timing.online",
    ),
    "group": (["--timing.table=speeds.csv", "--timing.assign=group"], "the data has no groups"),
    "size": (
        [
            *("--timing.table=speeds.csv", "--timing.assign=size"),
            *("--data.partition=dirichlet", "--data.partition-per-seed", "--training.seeds=0,1"),
        ],
        "sizes of shape [2, 10]: expected [10], equal in the partitions of all seeds",
    ),
    "of clients": (
        ["--timing.table=clients.csv", "--timing.assign=size"],
        "timing.assign='size' has no effect, because each row of clients.csv is a client",
    ),
    "speed": (["--timing.table=negative.csv"], "line 2: seconds_per_example=-0.05: expected"),
    "rounds": (
        ["--timing.table=speeds.csv", "--faults.period=4"],
        "faults: Diurnal counts rounds; with a schedule use timing.Online",
    ),
    "privacy": (
        ["--methods=fedbuff", "--timing.table=speeds.csv", "--communication.clipping-norm=1"],
        "privacy: no guarantee is known for arrivals",
    ),
    "secure": (
        ["--methods=ca2fl", "--timing.table=speeds.csv", "--communication.aggregation=secure"],
        "CA2FL needs vectors of single clients",
    ),
    "centralized": (
        ["--methods", "centralized", "fedavg", "--timing.table=speeds.csv"],
        "centralized training has no clients; remove --timing.",
    ),
    "end": (
        ["--timing.table=speeds.csv", "--schedule.until-seconds=0"],
        "schedule.until_seconds=0.0: expected a number > 0",
    ),
    "responses": (
        ["--timing.table=speeds.csv", "--schedule.num-responses=11"],
        "num_responses=11: expected at most 10, the clients of a round",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_line(mistake, speeds, tmp_path, capsys):
    (tmp_path / "negative.csv").write_text(SPEEDS.replace("0.05", "-0.05"))
    rows = [f"{client},0.1" for client in range(10)]
    (tmp_path / "clients.csv").write_text("\n".join(["client,seconds_per_example", *rows]))
    options, message = MISTAKES[mistake]
    methods = [] if "--methods" in " ".join(options) else ["--methods=fedavg"]
    assert run(*methods, *options) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


METHODS = ["--methods", "fedavg", "fedbuff", "ca2fl"]


def test_a_run_of_several_kinds_ends_at_a_time(speeds, tmp_path, capsys, without_figures):
    options = ["--timing.table=speeds.csv", "--training.rounds=40", "--schedule.until-seconds=12"]
    options += ["--training.seeds=0,1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # The log agrees with the results.
        assert run(*METHODS, *options) == 0
    assert "virtual seconds" in " ".join(capsys.readouterr().out.split())
    folder = only_run(tmp_path / "runs")
    dataset = results.open(folder.results)
    times = dataset.virtual_time.transpose("algorithm", "seed", "round").values
    lengths = np.isfinite(times).sum(axis=2)[:, 0]
    ends = times[range(3), :, lengths - 1].min(axis=1)
    assert (ends >= 12).all()
    # It is the first evaluation after that time.
    assert (times[range(3), :, lengths - 2].min(axis=1) < 12).all()
    assert lengths[0] < lengths[1]
    assert folder.ended_methods(12.0) == {"fedavg", "fedbuff", "ca2fl"}
    assert folder.ended_methods(float(ends.min()) + 0.01) < {"fedavg", "fedbuff", "ca2fl"}
    assert folder.ended_methods(None) == set()

    assert main(["show", str(folder.path)]) == 0
    assert "Unfinished" not in capsys.readouterr().out
    assert main(["resume", str(folder.path), "--quiet"]) == 0
    assert "continues" not in capsys.readouterr().out
    xr.testing.assert_identical(results.open(folder.results), dataset)
    assert main(["compare", str(folder.path)]) == 2
    assert "compare with --at-seconds T" in capsys.readouterr().err
    assert main(["compare", str(folder.path), "--at-seconds=10"]) == 0
    assert "at 10 virtual seconds" in " ".join(capsys.readouterr().out.split())


def test_a_resumed_run_has_the_same_times_only(speeds, tmp_path, capsys, without_figures):
    options = ["--methods=fedbuff", "--timing.table=speeds.csv"]
    for output in ("whole", "parts"):
        assert run(*options, f"--output={output}") == 0
    whole, parts = (only_run(tmp_path / name) for name in ("whole", "parts"))
    longer = ["--quiet", "--training.rounds=8"]
    assert main(["resume", str(whole.path), *longer]) == 0

    file = tmp_path / "speeds.csv"
    capsys.readouterr()
    for old, new, message in (
        ("0.05", "0.06", "schedule.times.seconds_per_example=float32[10]"),
        ("phone", "tablet", "schedule.times.class_names.0='tablet'"),
    ):
        file.write_text(SPEEDS.replace(old, new))
        assert main(["resume", str(parts.path), *longer]) == 2
        assert message in capsys.readouterr().err
    file.unlink()
    assert main(["resume", str(parts.path), *longer]) == 2
    assert "speeds.csv': no such file" in capsys.readouterr().err
    file.write_text(SPEEDS)
    assert main(["resume", str(parts.path), *longer]) == 0
    one, other = (results.open(folder.results) for folder in (whole, parts))
    xr.testing.assert_identical(one, other)


def test_a_sweep_of_jitters_compiles_once(tmp_path):
    config = replace(CONFIG, methods=("fedbuff",), training=TrainingConfig(rounds=4, seeds=(0,)))
    clear()
    jax.clear_caches()  # After many compilations of other tests, the end of a sweep clears them.
    with compilations() as compiled:
        found = sweep(config, jitter=[0.1, 0.3, 0.6])
    num_compiled = len(compiled)
    with compilations() as compiled:
        again = sweep(config, jitter=[0.2, 0.4, 0.8])
    assert num_compiled > 0
    assert compiled == []
    for swept in (found, again):
        ends = swept.virtual_time.isel(round=-1).values.ravel()
        assert len(set(ends)) == 3


def test_models_in_flight_are_counted_and_refused():
    config = replace(CONFIG, methods=("fedbuff",), schedule=ScheduleConfig(concurrency=7))
    ready = build(config)
    needed = min_memory(ready.rounds["fedbuff"], config, 2, ready.data, None)
    ((subject, size),) = [each for each in needed.items() if each[0].startswith(IN_FLIGHT)]
    model = 4 * (64 * 10 + 10)
    assert "7 models" in subject
    assert size == 2 * 7 * model
    assert size == max(needed.values())
    build(config, memory=size)
    with pytest.raises(ValueError, match=r"schedule\.concurrency: 7 models .* need .* for fedbuff"):
        build(config, memory=size - 1)
    bounded = replace(config, schedule=ScheduleConfig(concurrency=7, max_staleness=2))
    needed = min_memory(build(bounded).rounds["fedbuff"], bounded, 2, ready.data, None)
    assert any(subject.startswith(f"{IN_FLIGHT}3 models") for subject in needed)


def test_dry_runs_and_plans_state_the_models_in_flight(speeds, capsys, wide_terminal):
    options = [*SMALL[:-1], "--methods", "fedavg", "fedbuff", "--timing.table=speeds.csv"]
    assert main(["run", "digits", *options, "--dry-run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "models in flight 0.0 MB, 10 models that clients were sent in 1 runs of fedbuff" in shown
    assert main(["plan", "digits", *options]) == 0
    assert "models in flight at most 0.0 MB" in " ".join(capsys.readouterr().out.split())
    assert main(["run", "digits", *SMALL[:-1], "--methods=fedavg", "--dry-run"]) == 0
    assert "in flight" not in capsys.readouterr().out


def test_the_preset_is_the_setting_of_the_first_example():
    """Ten clients, four of which are slow and hold other digits; tasks of 3.9 and 15.2 s."""
    ready = build(presets.resolve(presets.PRESETS["speed"].config))
    for round in ready.rounds.values():
        times = round.schedule.times.replace(jitter=0.0)
        assert times.class_names == ("slow", "fast")
        np.testing.assert_array_equal(times.device_class, ready.data.groups[0])
        examples = round.solver.num_examples(jnp.asarray(ready.data.train.sizes[0]), None)
        tasks = [times.milliseconds(jax.random.key(0), i, examples[i], 0, 0) for i in range(10)]
        assert tasks == [15200] * 4 + [3860] * 6


def test_other_methods_drop_settings_of_the_preset(capsys):
    assert main(["run", "speed", "--methods=centralized", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "jitter" not in shown
    assert "until_seconds" not in shown
    assert main(["run", "speed", "--methods=fedavg", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "until_seconds = 304.0" in shown
    assert "buffer_size" not in shown
