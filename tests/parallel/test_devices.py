"""Devices and processes: the selected clients and the model are those of one device.

Devices are forced on the host before JAX starts, hence the processes of their own.
"""

import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import QUICK_COMPILATION, linear_model, make_federation
from devices_program import (
    FEDERATION,
    METHODS,
    STATEFUL,
    copied_sizes,
    make_subtrunc,
    resumed_ditto,
    run,
    saved_states,
)
from jax.sharding import Mesh
from test_conformance import AGGREGATORS, SELECTORS, SOLVERS

import fedjax_fair as ff
from fedjax_fair.app.cli import main
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.sweep import sweep
from fedjax_fair.data.federated import stack
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.parallel.mesh import assign_clients, client_mesh, shard_data
from fedjax_fair.training.jitted import over_runs

QUICK = 2  # Methods that are compared every time.
SHARED = ("cores", "runs=2,clients=4")
MESHES = ("8", *SHARED)
OTHERS = ("runs=4,clients=2", "runs=8,clients=1")
PROGRAM = Path(__file__).with_name("devices_program.py")
COMMAND = [
    "-c",
    "import sys; from fedjax_fair.app.cli import main; sys.exit(main(sys.argv[1:]))",
    "run",
]
SMALL = [
    "--methods=fedavg",
    "--model.name=logistic",
    "--solver.steps=2",
    "--training.rounds=2",
    "--training.seeds=0",
    "--devices=all",
    "--distributed",
    "--output",
]


def start(*arguments, devices=1, **environment):
    flags = " ".join([f"--xla_force_host_platform_device_count={devices}", *QUICK_COMPILATION])
    root, tests = PROGRAM.parents[2], PROGRAM.parents[1]
    path = os.pathsep.join(map(str, (root, tests)))
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path} | environment
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=environment,
        cwd=root,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def start_together(count, *arguments):
    """Several processes that know of each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        start(
            *arguments,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES=str(count),
            JAX_PROCESS_ID=str(number),
        )
        for number in range(count)
    ]


def finish(process):
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return out


@cache
def printed(*arguments, devices=8):
    """Lines of a program on many devices."""
    lines = finish(start(PROGRAM, *arguments, devices=devices)).splitlines()
    return [json.loads(line) for line in lines]


def compared(*arguments):
    """Results of several devices for some methods."""
    lines = printed("compare", *arguments)
    return {(line["mesh"], *line["names"]): line for line in lines}


def test_all_roles_are_compared():
    selectors, solvers, aggregators = ({names[place] for names in METHODS} for place in range(3))
    assert (solvers, aggregators) == (set(SOLVERS), set(AGGREGATORS))
    # The settings of a selector follow its name.
    classes = ({name.partition(",")[0] for name in names} for names in (selectors, SELECTORS))
    assert set.__eq__(*classes)


ITERATED = {"loss_gap", "fedlf"}
"""Roles that minimize losses or norms of updates, up to the rounding of these."""


def assert_same(compared):
    # In one run two clients may be worth the same, and rounding decides which of them is chosen.
    assert len(compared["gaps"]) <= 1
    assert max(compared["gaps"], default=0) < 1e-6
    assert compared["finite"]
    # Sums over the cohort are taken in another order. Iterations amplify it.
    is_iterated = ITERATED & set(compared["names"])
    assert compared["distance"] < (1e-4 if is_iterated else 1e-5)
    assert compared["groups"] == groups(compared["mesh"])


def groups(mesh):
    """The devices between which something crosses, as compiled programs write them."""
    runs, clients = {"8": (1, 8), "cores": (1, 3)}.get(mesh) or map(int, re.findall(r"\d", mesh))
    rows = np.arange(runs * clients).reshape(runs, clients)
    written = "{" + ",".join(f"{{{','.join(map(str, row))}}}" for row in rows) + "}"
    return [written] if clients > 1 else []


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("names", METHODS[:QUICK], ids=" | ".join)
def test_several_devices_equal_one(names, mesh):
    assert_same(compared(0, QUICK, *MESHES)[mesh, *names])


def test_evaluations_on_several_devices_equal_one():
    for line in printed("evaluations", *MESHES):
        assert line["distance"] < 1e-5, line
        assert line["groups"] == groups(line["mesh"])


def test_frozen_networks_on_several_devices_equal_those_of_one():
    lines = printed("frozen", *SHARED)
    assert [line["mesh"] for line in lines] == [*SHARED, *SHARED]
    assert max(line["distance"] for line in lines) < 1e-5


def test_metrics_of_people_on_several_devices_equal_those_of_one():
    """Counts by label and prediction, and their differences, of global and personalized models."""
    lines = printed("people", *SHARED)
    assert [line["mesh"] for line in lines] == list(SHARED)
    for line in lines:
        assert line["distance"] < 1e-5, line
        assert {
            "sensitive_group_counts",
            "demographic_parity_difference",
            "client_demographic_parity_difference",
            "personalized_demographic_parity_difference",
        } <= set(line["by_group"])


def test_devices_communicate_the_documented_bytes():
    parameters, cohort, pool = 15, 3, 5
    # The update, losses, steps and whether all is finite; losses of the pool; losses and lengths
    # for q-FedAvg.
    documented = 4 * (parameters + 3 * cohort + pool + 2 * cohort)
    assert compared(0, QUICK, *MESHES)["8", *METHODS[0]]["bytes"] == documented


def test_a_mesh_of_one_device_changes_nothing():
    plain, *_ = run(METHODS[0], FEDERATION)
    sharded, *_ = run(METHODS[0], FEDERATION, client_mesh(1))
    np.testing.assert_array_equal(sharded.participation, plain.participation)
    # Parameters near zero are sums of larger updates, which two programs may round otherwise.
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), sharded, plain)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("names", METHODS[QUICK:], ids=" | ".join)
def test_several_devices_equal_one_for_other_roles(names, mesh):
    assert_same(compared(QUICK, len(METHODS), *MESHES)[mesh, *names])


@pytest.mark.slow
@pytest.mark.parametrize("mesh", OTHERS)
@pytest.mark.parametrize("names", METHODS, ids=" | ".join)
def test_other_groups_of_devices_equal_one(names, mesh):
    assert_same(compared(0, len(METHODS), *OTHERS)[mesh, *names])


@pytest.mark.parametrize(
    "arguments",
    [
        ("fedavg", "3", "last", "runs=2,clients=4", "runs=8,clients=1"),
        ("oort", "2", "last", "8", "1", "runs=2,clients=4"),
        pytest.param(("fedcor", "2", "last", "8", "1", "runs=2,clients=4"), marks=pytest.mark.slow),
        pytest.param(
            ("fedavg", "5", "best", "1", "runs=8,clients=1", "8", "runs=2,clients=4", "1"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=" ".join,
)
def test_runs_resume_on_another_mesh(arguments):
    """Also where groups of devices do not divide them."""
    (line,) = printed("resume", *arguments)
    assert line["same"]
    assert line["distance"] < 1e-5


@pytest.mark.parametrize(
    ("name", "seeds", "meshes"),
    [
        ("ditto_top_k", 2, ("2", "1", "4")),
        ("scaffold", 3, ("runs=2,clients=4", "8")),
        pytest.param("ditto", 3, ("runs=2,clients=4", "8"), marks=pytest.mark.slow),
        pytest.param("scaffold", 1, ("2", "1", "4"), marks=pytest.mark.slow),
        pytest.param("top_k", 3, ("runs=2,clients=4", "4"), marks=pytest.mark.slow),
        # An evaluation does not read residuals.
        pytest.param("ditto_top_k", 1, ("8", "2"), marks=pytest.mark.slow),
        ("ditto_top_k", 4, ("cores", "1", "cores")),
        pytest.param("scaffold", 1, ("cores", "2", "cores"), marks=pytest.mark.slow),
        pytest.param("ditto", 3, ("2", "cores"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_states_stay_with_their_clients_on_another_mesh(name, seeds, meshes):
    """Also of runs that resume; a device has the rows of its clients alone."""
    (line,) = printed("states", name, seeds, *meshes)
    assert line["distance"] < 1e-5
    assert line["states"] < 1e-5
    assert line["distinct"] > 10
    arrays = 2 if name == "ditto_top_k" else 1
    assert line["shapes"] == [[seeds, 19, 15]] * arrays
    # Cores that share a run have all rows.
    shares = (3 if seeds >= 3 else 1) if meshes[-1] == "cores" else int(meshes[-1])
    assert line["per_device"] * shares == line["bytes"]
    # Padded to the most clients of a device, or to a multiple of the cores.
    assert line["bytes"] < 2 * arrays * seeds * 19 * 15 * 4


def test_predictions_of_a_client_have_its_model_on_every_mesh():
    """The rows of states are in another order on devices with their own clients."""
    program = """
import jax, numpy as np
import fedjax_fair as ff
data = ff.data.load("digits", ff.data.classes_per_client(6, classes=3))
ditto = ff.Round(ff.models.logistic(10), ff.selectors.Uniform(4),
                 ff.solvers.Ditto(ff.solvers.SGD(0.1, 10, epochs=1)), ff.aggregators.Mean())
settings = {"rounds": 3, "eval_every": 3, "seeds": (0, 5), "train_loss": False}
one, two = (ff.fit(ditto, data, mesh=mesh, **settings)
            for mesh in (None, ff.parallel.client_mesh(2)))
kernels = [[jax.tree.leaves(fitted.variables_for(5, client=client))[-1] for client in range(6)]
           for fitted in (one, two)]
print(np.abs(np.subtract(*kernels)).max(), np.abs(kernels[0][0] - kernels[0][1]).max())
"""
    distance, between_clients = map(float, finish(start("-c", program, devices=2)).split())
    assert distance < 1e-5 < 1e-2 < between_clients


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", ["1", "cores", "8", pytest.param("v5e:1x1", marks=pytest.mark.foreign)]
)
def test_states_of_clients_are_updated_in_place(mesh):
    """No copy is as large as the states; temporaries grow as without states, up to some bytes."""
    if mesh == "v5e:1x1" and importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu")
    lines = printed("in_place", mesh, 1, 2, 3, devices={"cores": 3, "8": 8}.get(mesh, 1))
    assert len(lines) == 3 * len(STATEFUL)
    growths = {(line["method"], line["runs"]): np.ptp(line["bytes"]) for line in lines}
    for (method, runs), growth in growths.items():
        # Of 60 bytes of state per client and run, a device of eight has 7.5. A TPU has 1,024, or
        # half of it, and its compiler moves more or fewer of the arguments to the chip.
        limit = 1600 * (runs * 500 if mesh == "v5e:1x1" else 4)
        assert growth - growths["fedavg", runs] < limit, (method, runs, growths)
    assert all(line["copies"] == [0, 0] for line in lines)


def test_copies_of_a_compiled_program_are_counted():
    program = jax.jit(lambda rows: rows.at[0].set(1.0)).lower(np.zeros((7, 11), np.float32))
    assert 77 in copied_sizes(program.compile().as_text())
    started = "  %c = (f32[7,11]{1,0:T(8,128)S(1)}, f32[7,11]{1,0}, u32[]{:S(2)}) copy-start(%a)"
    others = "  %d = u16[3,2]{1,0} copy(%b)\n  %e = s32[9]{0} copy(%d)\n"
    assert copied_sizes(f"{started}\n{others}") == [77, 6]


def test_a_device_holds_its_share_of_the_runs():
    """A device of four groups holds what it would without the others, with its share."""
    one_group, four_groups = printed("memory")
    assert (one_group["runs"], one_group["shares"], one_group["last_group"]) == (2, [2], [0, 1])
    assert four_groups == {
        **one_group,
        "runs": 7,
        "last_group": [6, 7],
    }  # Neighbors, not every other.


@pytest.mark.parametrize(
    "runs",
    [("2own", "4"), pytest.param(("2", "3", "3own", "4own"), marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_runs_on_cores_equal_one_device(runs):
    *lines, last = printed("runs", "cores", *runs, devices=3)
    assert len(lines) == len(runs)
    for line in lines:
        # Sums are taken in another order where cores share a run, and rounding may differ where
        # each makes one: the loop over its runs is compiled for another length.
        assert line["distance"] < 1e-5, line
    assert (last["cores"], last["copies"]) == (3, 1)
    # XLA would end a process in which a core waits 40 s for another.
    assert "terminate_timeout_seconds=1000000" in last["flags"]


@pytest.mark.parametrize(
    "runs", [("4own gpu",), pytest.param(("2", "3own", "4"), marks=pytest.mark.slow)], ids=" ".join
)
def test_groups_of_one_device_equal_one(runs):
    """Also with a partition for each run, and in parallel as on accelerators."""
    *lines, _ = printed("runs", "runs=3,clients=1", *runs, devices=3)
    assert len(lines) == len(runs)
    for line in lines:
        assert line["distance"] < 1e-5, line


@pytest.mark.parametrize(
    ("platform", "mesh", "is_vmap"),
    [
        ("gpu", None, True),
        ("gpu", "alone", True),
        ("gpu", "shared", False),
        ("cpu", None, False),
        ("cpu", "alone", False),
    ],
)
def test_an_accelerator_vmaps_over_runs_that_it_does_not_share(platform, mesh, is_vmap):
    meshes = {None: None, "alone": client_mesh(1, runs=1), "shared": client_mesh(1)}
    data = FEDERATION if mesh is None else shard_data(FEDERATION, meshes[mesh])

    def function(run, data, store, shared):
        return run + data.train.sizes.sum(), store

    mapped = over_runs(function, meshes[mesh])
    with tracing_for(platform):
        program = jax.make_jaxpr(mapped)(np.arange(2, dtype=np.int32), data)
    assert ("scan" in str(program)) is not is_vmap


def test_the_command_line_uses_all_cores(tmp_path):
    """Two cores share one run of pooled examples and one of FedAvg, and end as one device does."""
    options = ["--methods", "fedavg", "centralized", *SMALL[1:-3], "--output"]
    folders = [tmp_path / "one", tmp_path / "two"]
    assert main(["run", *options, str(folders[0])]) == 0
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("needs two cores")
    finish(start(*COMMAND, *options, folders[1], devices=2))
    one, two = (ff.results.open(next(folder.iterdir())) for folder in folders)
    np.testing.assert_array_equal(one.cohort_clients, two.cohort_clients)
    np.testing.assert_allclose(one.test_loss, two.test_loss, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["run"], ["sweep", "learning_rate=0.02,0.1"]], ids=" ".join)
def test_the_command_line_divides_runs_among_groups(command, tmp_path):
    options = [*command, *SMALL[:-4], "--training.seeds", "0:3", "--output"]
    folders = [tmp_path / "one", tmp_path / "groups"]
    assert main([*options, str(folders[0]), "--devices=1"]) == 0
    program = [*COMMAND[:-1], *options, folders[1], "--devices=runs=2,clients=2"]
    finish(start(*program, devices=4))
    if command == ["run"]:
        folders = [next(folder.iterdir()) for folder in folders]
    one, many = (ff.results.open(folder / "results.nc") for folder in folders)
    assert one.sizes == many.sizes
    assert many.sizes["seed"] == 3
    np.testing.assert_array_equal(one.cohort_clients, many.cohort_clients)
    np.testing.assert_allclose(one.test_loss, many.test_loss, rtol=1e-5)


def assert_processes_equal_one(folder, count):
    options = {"rounds": 4, "eval_every": 2, "seeds": (0, 1)}
    expected = ff.fit(make_subtrunc(), FEDERATION, **options).dataset
    for number in range(count):
        found = ff.results.open(folder / f"{number}.nc")
        np.testing.assert_array_equal(found.cohort_clients, expected.cohort_clients)
        np.testing.assert_allclose(found.test_loss, expected.test_loss, rtol=1e-5)
        np.testing.assert_array_equal(found.participation, expected.participation)


def test_two_processes_and_their_command_line_equal_one(tmp_path):
    runs = tmp_path / "runs"
    arguments = ("command", tmp_path, 4, "run", *SMALL, runs)
    first, second = map(finish, start_together(2, PROGRAM, *arguments))
    (folder,) = runs.iterdir()
    assert str(folder) in first
    assert "Results" not in second
    assert ff.results.open(folder)["round"].values.tolist() == [0, 1, 2]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert_processes_equal_one(tmp_path, 2)


def test_states_of_clients_on_two_processes_equal_those_of_one(tmp_path):
    """Also in a run that resumes; each process has the personalized models of all clients."""
    expected = resumed_ditto(tmp_path / "one", None)
    for process in start_together(2, PROGRAM, "states_together", tmp_path):
        line = json.loads(finish(process).splitlines()[-1])  # Gloo prints the first one.
        assert line["distance"] < 1e-5
    for number in range(2):
        found = ff.results.open(tmp_path / f"{number}.nc")
        np.testing.assert_array_equal(found.cohort_clients, expected.dataset.cohort_clients)
        for name in ("test_loss", "personalized_test_loss", "personalized_test_accuracy"):
            np.testing.assert_allclose(found[name], expected.dataset[name], rtol=1e-5)
    states = [saved_states(tmp_path / name, 4) for name in ("one", "kept")]
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), *states)
    assert len(np.unique(states[0]["float32"][0], axis=0)) > 10


@pytest.mark.slow
def test_four_processes_resume(tmp_path):
    for process in start_together(4, PROGRAM, "fit", tmp_path, 4):
        finish(process)
    assert_processes_equal_one(tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("dies", [0, 1])
def test_a_dead_process_ends_the_others(dies, tmp_path):
    pair = start_together(2, PROGRAM, "fit", tmp_path, 10**6)
    while not all((tmp_path / f"started-{number}").exists() for number in range(2)):
        assert all(process.poll() is None for process in pair)
        time.sleep(0.5)
    time.sleep(5)
    pair[dies].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    pair[1 - dies].communicate(timeout=120)
    assert pair[1 - dies].returncode != 0
    assert time.monotonic() - killed < 60
    pair[dies].communicate()


def test_one_distributed_process_is_an_error():
    alone = start(*COMMAND, "--distributed")
    _, errors = alone.communicate(timeout=600)
    assert alone.returncode == 2
    assert "expected Slurm" in errors.splitlines()[-1]


@pytest.mark.parametrize("seed", range(20))
def test_loads_are_within_a_third_of_the_best(seed):
    sizes = np.random.default_rng(seed).integers(1, 20, 7)
    loads = np.bincount(assign_clients(sizes, 3), weights=sizes, minlength=3)
    best = min(
        np.bincount(assigned, weights=sizes, minlength=3).max()
        for assigned in itertools.product(range(3), repeat=7)
    )
    assert best <= loads.max() <= 4 / 3 * best


def test_a_device_holds_the_examples_of_its_clients():
    mesh = client_mesh(1)
    sharded = shard_data(FEDERATION, mesh)
    for before, after in ((FEDERATION.train, sharded.train), (FEDERATION.test, sharded.test)):
        rows = after.order[np.arange(len(before.order))]
        np.testing.assert_array_equal(after.features[rows], before.features[before.order])
        np.testing.assert_array_equal(after.labels[rows], before.labels[before.order])
        np.testing.assert_array_equal(after.offsets, before.offsets)


def test_several_processes_are_one_group(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert client_mesh("all").axis_names == ("clients",)
    with pytest.raises(ValueError, match="runs=1"):
        client_mesh("all", runs=1)


def test_invalid_meshes_are_errors():
    with pytest.raises(ValueError, match="cores=1000"):
        core_mesh(1000)
    with pytest.raises(ValueError, match="cores=0"):
        core_mesh(0)
    with pytest.raises(ValueError, match="devices=1000"):
        client_mesh(1000)
    with pytest.raises(ValueError, match="devices=1"):
        client_mesh(1, runs=2)
    with pytest.raises(ValueError, match="runs=0"):
        client_mesh(1, runs=0)
    with pytest.raises(ValueError, match="axes"):
        shard_data(FEDERATION, Mesh(np.array(jax.devices()[:1]), ("rows",)))
    two = stack([make_federation(sizes=(3, 4)), make_federation(sizes=(3, 4))])
    with pytest.raises(ValueError, match="partitions"):
        shard_data(two, client_mesh(1))
    pooled = ff.Centralized(linear_model(), ff.solvers.SGD(0.1, 2, steps=1))
    with pytest.raises(ValueError, match="mesh:"):
        ff.fit(pooled, FEDERATION, rounds=1, mesh=client_mesh(1))
    with pytest.raises(ValueError, match="distributed=True"):
        sweep(Config(distributed=True))
