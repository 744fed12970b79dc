"""Programs that tests of devices and processes run in separate processes.

* ``compare FIRST LAST MESH ...`` prints the distance of meshes of eight devices, or of three cores,
  from one device, for some of the methods below.
* ``evaluations MESH ...`` prints it for an evaluation.
* ``runs MESH COUNT ...`` prints it for ``fit`` with so many runs, each with a partition if ``own``
  follows the number, as on a GPU if ``gpu`` does.
* ``resume SEEDS MODEL MESH ...`` prints it for runs that resume on one mesh after another.
* ``memory`` prints the memory of one device of a mesh.
* ``fit FOLDER ROUNDS`` is one of several processes; ``command FOLDER ROUNDS ARGUMENTS`` runs the
  command line first.
"""

import json
import os
import re
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np
from conftest import linear_model, make_federation
from test_conformance import AGGREGATORS, SELECTORS, SOLVERS

import fedjax_fair as ff
from experiments.benchmarks.devices import collective_bytes
from fedjax_fair.app.cli import main
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.client_evaluation import evaluate
from fedjax_fair.data.federated import partition_arrays, stack, with_partition_arrays
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel import processes
from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.parallel.mesh import client_mesh, over_mesh, shard_data
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_functions import CompiledFunctions
from fedjax_fair.training.options import TrainOptions
from fedjax_fair.training.split import split

SIZES = tuple(int(size) for size in np.random.default_rng(1).integers(1, 12, 19))
FEDERATION = make_federation(sizes=SIZES)._replace(groups=np.arange(19, dtype=np.int32) % 3)

METHODS = (
    ("power_of_choice", "sgd, momentum, decay and prox", "q_fedavg"),
    ("subtrunc", "sgd", "mean by cohort"),
    ("unionfl, by updates", "sgd", "mean"),
    ("by_size", "sgd", "mean with a server optimizer"),
    ("power_of_choice, minibatch", "sgd with replacement", "tilted"),
    ("power_of_choice, reported", "sgd", "fairfed"),
    ("clustered_by_similarity", "sgd", "equitable, of the last batch"),
    ("divfl", "sgd", "gifair"),
    ("divfl, greedy and stale", "sgd", "equitable"),
    ("divfl, every other round", "sgd", "mean by size"),
    ("unionfl", "sgd", "mean by size"),
    ("divfl, of reference clients", "sgd", "mean by cohort"),
    ("subtrunc, of reference clients", "sgd", "mean"),
    ("agnostic", "sgd", "mean by cohort"),
    ("drfa", "sgd, momentum, decay and prox", "mean"),
    ("uniform", "sgd", "fltrust"),
    ("uniform", "sgd", "median"),
    ("uniform", "sgd", "trimmed_mean"),
    ("uniform", "sgd", "krum"),
    ("uniform", "sgd", "geometric_median"),
    ("uniform", "sgd", "norm_clipping"),
    ("uniform", "sgd", "centered_clipping"),
    ("drfa", "sgd", "q_fedavg", "secure"),
    ("uniform", "sgd", "mean by size", "secure"),
    ("uniform", "sgd", "mean", "private"),
    ("by_size", "sgd", "mean by size", "top_k"),
)
"""Every aggregator, every selector that measures clients, and opaque updates."""
SEEDS = np.arange(3, 11, dtype=np.uint32)
COMMUNICATION = {
    "secure": {"aggregation": "secure"},
    "private": {"privacy": ff.communication.AdaptiveClipping(0.1), "aggregation": "secure"},
    "top_k": {"compression": ff.communication.TopK(0.3)},
}
FAULTS = [ff.faults.Dropout(0.2), ff.faults.Byzantine(0.3, "alie")]
"""Faults of clients with uniform selection."""


def run(names, data, mesh=None):
    """Six rounds of every seed: the states without keys, the info of the rounds; the program."""
    selector, solver, aggregator, *communication = names
    round = ff.Round(
        linear_model(),
        SELECTORS[selector](),
        SOLVERS[solver](),
        AGGREGATORS[aggregator](),
        faults=FAULTS[: 1 if communication else 2] if selector == "uniform" else (),
        **(COMMUNICATION[communication[0]] if communication else {}),
    )

    def one_run(seed, data):
        start = round.init(jax.random.key(seed), data)
        state, info = ff.run(round, start, data, 6)
        return state._replace(key=jax.random.key_data(state.key)), info

    def program(seeds, data):
        return jax.lax.map(lambda seed: one_run(seed, data), seeds)

    if mesh is not None:
        program, data = over_mesh(program, mesh), shard_data(data, mesh)
    compiled = jax.jit(program).lower(SEEDS, data).compile()
    return *jax.device_get(compiled(SEEDS, data)), compiled.as_text() or ""


def mesh_named(name):
    return core_mesh(3) if name == "cores" else mesh_of(int(name) if name.isdigit() else name)


def compare(first, last, *meshes):
    for names in METHODS[first:last]:
        one, info, _ = run(names, FEDERATION)
        for mesh in meshes:
            compare_to(mesh, names, one, info)


def compare_to(mesh, names, one, info):
    many, info_of_many, program = run(names, FEDERATION, mesh_named(mesh))
    differ = (info.clients != info_of_many.clients).any(axis=2)
    same = ~differ.any(axis=1)

    def gap(run):
        """The distance of objectives where the cohorts of a run first differ."""
        place = run, differ[run].argmax()
        return distance(*(each.selector["objective"][place] for each in (info, info_of_many)))

    both = (jax.tree.leaves(part) for part in ((one, info), (many, info_of_many)))
    line = {
        "mesh": mesh,
        "gaps": [gap(run) for run in np.flatnonzero(~same)],
        "distance": max(distance(a[same], b[same]) for a, b in zip(*both, strict=True)),
        "finite": bool(info.finite.all()),
        "bytes": collective_bytes(program)[0],
        "groups": device_groups(program),
    }
    print(json.dumps({"names": names} | line))


def device_groups(program):
    """The groups of devices that collectives of a compiled program are among."""
    groups = re.findall(r"replica_groups=({{.*?}})", program)
    assert len(groups) == collective_bytes(program)[1]
    return sorted(set(groups))


def distance(one, many):
    """The largest difference, over the larger of one and the value; infinite values are equal."""
    equal = (one == many) | (np.isnan(one) & np.isnan(many))
    one, many = np.where(equal, 0.0, one), np.where(equal, 0.0, many)
    return float(np.max(np.abs(one - many) / np.maximum(1, np.abs(one)), initial=0))


def make_subtrunc():
    return ff.Round(
        linear_model(),
        ff.selectors.SubTrunc(3, 0.5),
        ff.solvers.SGD(0.1, 2, epochs=1),
        ff.aggregators.Mean("num_examples"),
    )


def runs(name, *cases):
    """The largest difference that a mesh makes to some runs, with or without own partitions."""
    method, mesh = make_subtrunc(), mesh_named(name)
    for case in cases:
        count, own = int(case[0]), "own" in case
        # Two runs for three cores share each other's work; of four, one core makes two.
        data = FEDERATION
        if own:
            data = stack([with_partition_arrays(data, rolled(data, by)) for by in range(count)])
        options = {"rounds": 4, "eval_every": 2, "seeds": range(count)}
        one = ff.fit(method, data, **options)
        with tracing_for("gpu", 3) if "gpu" in case else nullcontext():
            many = ff.fit(method, data, **options, mesh=mesh)
        largest = max(distance(one[name].values, many[name].values) for name in one)
        print(json.dumps({"case": case, "distance": largest}))
    sharded = shard_data(FEDERATION, mesh).train.features.addressable_shards
    copies = len({shard.data.unsafe_buffer_pointer() for shard in sharded})
    print(json.dumps({"cores": len(sharded), "copies": copies, "flags": os.environ["XLA_FLAGS"]}))


def evaluations(*meshes):
    """The distance of evaluations, including validation and custom metrics, from one device."""
    data, model = ff.data.hold_out(FEDERATION, 0.4), linear_model()
    keys = jax.random.split(jax.random.key(0), 4)
    variables = jax.vmap(lambda key: model.init(key, FEDERATION.train.features[:1]))(keys)
    own = [ff.metrics.predictions.auc(3), ff.metrics.predictions.macro_f1(3)]
    idle = np.zeros(19, np.int32)

    def program(variables, data):
        def one_run(variables):
            return evaluate(model, variables, data, idle, idle[:3], custom=own)

        return jax.lax.map(one_run, variables)

    one = jax.jit(program)(variables, data)
    assert len(one.custom) == 4
    assert not np.isnan(one.custom["validation_auc"]).all()
    for name in meshes:
        mesh = mesh_named(name)
        sharded, own_variables = shard_data(data, mesh), jax.device_get(variables)
        compiled = jax.jit(over_mesh(program, mesh)).lower(own_variables, sharded).compile()
        many = compiled(own_variables, sharded)
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True)
        largest = max(distance(*map(np.asarray, pair)) for pair in pairs)
        groups = device_groups(compiled.as_text() or "")
        print(json.dumps({"mesh": name, "distance": largest, "groups": groups}))


def make_fedavg(learning_rate=0.1):
    return ff.Round(
        linear_model(),
        ff.selectors.Uniform(3),
        ff.solvers.SGD(learning_rate, 2, epochs=1),
        ff.aggregators.Mean(),
    )


def resume(seeds, model, *meshes):
    """The distance of runs that resume from mesh to mesh, two rounds on each, from one device.

    Compared are metrics, and variables of the last or the best round.
    """
    method, last = make_fedavg(), 2 * len(meshes)
    best = {"last": None, "best": most_accurate}[model]
    options = {"eval_every": 2, "seeds": range(seeds), "best": best}
    one = ff.train(method, FEDERATION, rounds=last, **options)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(meshes, 1):
            options |= {"mesh": mesh_named(name), "checkpoints": folder}
            many = ff.train(method, FEDERATION, rounds=2 * number, **options)
    leaves = zip(jax.tree.leaves(one.variables), jax.tree.leaves(many.variables), strict=True)
    values = ((one.dataset[name].values, many.dataset[name].values) for name in one.dataset)
    largest = max(distance(*pair) for pair in (*leaves, *values))
    print(json.dumps({"distance": largest, "same": one.rounds.tolist() == many.rounds.tolist()}))


def most_accurate(evaluation):
    return evaluation.summaries["accuracy_mean_clients"]


def memory():
    """The runs and the bytes, without records, on the first device of a mesh.

    As many runs are divided among as many groups of two devices.
    """
    rates = np.linspace(0.05, 0.2, 8, dtype=np.float32)
    for runs, devices in ((2, "2"), (7, "runs=4,clients=2")):
        mesh, seeds = mesh_named(devices), tuple(range(runs))
        with RunBatch(FEDERATION, seeds, mesh) as batch:
            methods = split([make_fedavg(rate) for rate in rates[:runs].tolist()])
            programs = CompiledFunctions(methods, batch, TrainOptions(4, 2, True, "raise"))
            with tracing_for("gpu"):  # Where what is recorded goes to a host.
                num_bytes = programs.memory().total
        first = [leaf.addressable_shards[0].data for leaf in jax.tree.leaves(programs.init())]
        line = {
            "runs": runs,
            "shares": sorted({leaf.shape[0] for leaf in first}),
            "bytes": num_bytes,
            "last_group": [device.id for device in np.atleast_2d(mesh.devices)[-1]],
        }
        print(json.dumps(line))


def rolled(data, by):
    """Partition arrays with the training examples rotated by some positions."""
    arrays = partition_arrays(data)
    return arrays._replace(train=(np.roll(arrays.train[0], by), *arrays.train[1:]))


def fit(folder, rounds):
    if not jax.distributed.is_initialized():
        processes.initialize()
    method, mesh = make_subtrunc(), client_mesh("all")
    options = {"eval_every": 2, "seeds": (0, 1), "mesh": mesh, "checkpoints": folder / "kept"}
    if jax.process_count() == 4:  # Stops after two rounds, and goes on from there.
        ff.fit(method, FEDERATION, rounds=2, **options)
    (folder / f"started-{jax.process_index()}").touch()
    results = ff.fit(method, FEDERATION, rounds=rounds, **options)
    ff.results.save(results, folder / f"{jax.process_index()}.nc")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["compare", first, last, *meshes]:
            compare(int(first), int(last), *meshes)
        case ["runs", mesh, *cases]:
            runs(mesh, *cases)
        case ["evaluations", *meshes]:
            evaluations(*meshes)
        case ["resume", seeds, model, *meshes]:
            resume(int(seeds), model, *meshes)
        case ["memory"]:
            memory()
        case ["fit", folder, rounds]:
            fit(Path(folder), int(rounds))
        case ["command", folder, rounds, *arguments]:
            assert main(arguments) == 0
            fit(Path(folder), int(rounds))
