"""Programs that tests of devices and processes run in separate processes.

* ``compare FIRST LAST MESH ...`` prints the distance of meshes of eight devices, or of three cores,
  from one device, for some of the methods below.
* ``evaluations MESH ...`` prints it for an evaluation.
* ``frozen MESH ...`` prints it for networks of which a part is frozen.
* ``people MESH ...`` prints it for results with counts of people, and how many variables have them.
* ``runs MESH COUNT ...`` prints it for ``fit`` with ``COUNT`` runs, each with a partition if
  ``own`` follows the number, as on a GPU if ``gpu`` does.
* ``resume METHOD SEEDS MODEL MESH ...`` prints it for runs that resume on one mesh after another.
* ``states METHOD SEEDS MESH ...`` prints the distance of the states of all clients too, and the
  bytes of the last mesh and of its first device.
* ``in_place MESH RUNS ...`` prints the temporaries of a chunk for two numbers of clients, and the
  copies as large as the store, by method; also for the mesh of a machine that is not available.
* ``states_together FOLDER`` is one of several processes that train with states of clients.
* ``memory`` prints the memory of one device of a mesh.
* ``fit FOLDER ROUNDS`` is one of several processes; ``command FOLDER ROUNDS ARGUMENTS`` runs the
  command line first.
"""

import itertools
import json
import os
import re
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from conftest import linear_model, make_federation, with_people
from people_federation import make_people
from test_conformance import AGGREGATORS, PAIRS, SELECTORS, SOLVERS, model_of, schedule_of

import fedjax_fair as ff
from experiments.benchmarks.devices import collective_bytes
from fedjax_fair.app.cli import main
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.data.federated import partition_arrays, stack, with_partition_arrays
from fedjax_fair.evaluation.clients import evaluate
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel import processes
from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.parallel.mesh import client_mesh, over_mesh, shard_data
from fedjax_fair.planning import machines
from fedjax_fair.planning.plan import place, place_data
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_runs import CompiledRuns
from fedjax_fair.training.jitted import make_functions
from fedjax_fair.training.stacked import stack_trees
from fedjax_fair.training.train_options import TrainOptions

SIZES = tuple(int(size) for size in np.random.default_rng(1).integers(1, 12, 19))
FEDERATION = make_federation(sizes=SIZES)
WITH_GROUPS = with_people(FEDERATION)._replace(groups=np.arange(19, dtype=np.int32) % 3)
"""With the groups of clients and of people that some roles need, and more to evaluate."""

UNIFORM = "cell_weighted, reweighing", "cell_weighted, global reweighing", "hetlora"
"""Solvers with an aggregator of their own that are compared with faults."""
METHODS = (
    ("power_of_choice", "sgd, momentum, decay and prox", "q_fedavg"),
    ("subtrunc", "sgd", "mean by cohort"),
    ("unionfl, by updates", "sgd", "mean"),
    ("by_size", "sgd", "mean with a server optimizer"),
    ("power_of_choice, minibatch", "sgd with replacement", "tilted"),
    ("power_of_choice, reported", "sgd", "fairfed"),
    ("oort", "sgd", "mean"),
    ("fedcor, in one dimension", "sgd", "mean"),
    ("clustered_by_similarity", "sgd", "equitable, of the last batch"),
    ("divfl", "sgd", "gifair"),
    ("divfl, greedy and stale", "sgd", "equitable"),
    ("divfl, every other round", "sgd", "mean by size"),
    ("unionfl", "sgd", "mean by size"),
    ("divfl, of reference clients", "sgd", "mean by cohort"),
    ("subtrunc, of reference clients", "sgd", "mean"),
    ("agnostic", "sgd", "mean by cohort"),
    ("drfa", "sgd, momentum, decay and prox", "mean"),
    ("uniform", "scaffold", "scaffold_mean", "secure"),
    ("full", "sgd", "aaggff, in a silo"),
    ("full", "sgd", "fedpw"),
    ("uniform", "ifca", "ifca_mean", "secure"),
    ("uniform", "group_penalty", "fairfed, of accuracies"),
    ("by_size", "fedsa_lora", "mean"),
    ("by_size", "sgd", "lora_fair, of the cosine"),
    ("drfa", "sgd", "q_fedavg", "secure"),
    ("uniform", "sgd", "mean by size", "secure"),
    ("uniform", "sgd", "mean", "private"),
    ("by_size", "sgd", "mean by size", "top_k"),
    ("clustered_by_size", "sgd", "mean"),
    ("round_robin", "sgd", "mean by size"),
    ("rotation", "sgd", "mean"),
    ("submodular", "sgd", "mean"),
    ("by_size", "sgd", "fed_buff by size"),
    ("full", "sgd", "fed_stale_weight, exact"),
    *(
        ("uniform", "sgd", aggregator)
        for aggregator in (
            *("fltrust", "fair_fate", "median", "trimmed_mean", "krum", "geometric_median"),
            *("norm_clipping", "centered_clipping", "with_server_optimizer"),
            *("centered clipping with a server optimizer", "gifair with a server optimizer"),
            *("aaggff", "fedfa", "loss_gap", "shapfed", "fedlf", "fedmdfg", "fedheal", "fedfv"),
            *("fedmgda", "adafed", "fedex", "lora_fair"),
            *("fed_async", "fed_buff", "ca2fl", "fed_stale_weight", "area"),
        )
    ),
    *(
        ("uniform", solver, "mean")
        for solver in (
            *("ditto", "local", "fedper", "fedrep", "lg_fedavg", "fedbn", "fedbabu", "propfair"),
            *("pfedfair", "fine_tuned", "per_fedavg", "pfedme", "apfl"),
        )
    ),
    *(("by_size", *pair) for pair in PAIRS.items() if pair[0] not in UNIFORM),
    *(("uniform", solver, PAIRS[solver]) for solver in UNIFORM),
)
"""Every class of selectors, every aggregator and solver, and opaque updates."""
SEEDS = np.arange(3, 11, dtype=np.uint32)
COMMUNICATION = {
    "secure": {"aggregation": "secure"},
    "private": {"privacy": ff.communication.AdaptiveClipping(0.1), "aggregation": "secure"},
    "top_k": {"compression": ff.communication.TopK(0.3)},
}
FAULTS = [ff.faults.Dropout(0.2), ff.faults.Byzantine(0.3, "alie")]
"""Faults of clients with uniform selection."""


def run(names, data, mesh=None):
    """Six rounds of every seed: states without those of clients, info of rounds; the program."""
    selector, solver, aggregator, *communication = names
    combining = AGGREGATORS[aggregator]()
    has_faults = selector == "uniform" and not combining.needs_schedule
    round = ff.Round(
        model_of(names),
        SELECTORS[selector](),
        SOLVERS[solver](),
        combining,
        faults=FAULTS[: 1 if communication else 2] if has_faults else (),
        schedule=schedule_of(combining, data.num_clients),
        **(COMMUNICATION[communication[0]] if communication else {}),
    )

    def one_run(seed, data):
        start = round.init(jax.random.key(seed), data)
        state, info = ff.run(round, start, data, 6)
        # Each device has the rows of its clients; `states` compares them.
        return state._replace(key=jax.random.key_data(state.key), clients=()), info

    def program(seeds, data):
        return jax.lax.map(lambda seed: one_run(seed, data), seeds)

    if mesh is not None:
        program, data = over_mesh(program, mesh), shard_data(data, mesh)
    compiled = jax.jit(program).lower(SEEDS, data).compile()
    return *jax.device_get(compiled(SEEDS, data)), compiled.as_text() or ""


def mesh_named(name):
    return core_mesh(3) if name == "cores" else mesh_of(int(name) if name.isdigit() else name)


def compare(first, last, *meshes):
    for names in METHODS[int(first) : int(last)]:
        one, info, _ = run(names, WITH_GROUPS)
        for mesh in meshes:
            compare_to(mesh, names, one, info)


def compare_to(mesh, names, one, info):
    many, info_of_many, program = run(names, WITH_GROUPS, mesh_named(mesh))
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
        one = ff.fit(method, data, **options).dataset
        with tracing_for("gpu", 3) if "gpu" in case else nullcontext():
            many = ff.fit(method, data, **options, mesh=mesh).dataset
        largest = max(distance(one[name].values, many[name].values) for name in one)
        print(json.dumps({"case": case, "distance": largest}))
    sharded = shard_data(FEDERATION, mesh).train.features.addressable_shards
    copies = len({shard.data.unsafe_buffer_pointer() for shard in sharded})
    print(json.dumps({"cores": len(sharded), "copies": copies, "flags": os.environ["XLA_FLAGS"]}))


def evaluations(*meshes):
    """The distance of evaluations, including validation and custom metrics, from one device."""
    data, model = ff.data.hold_out(WITH_GROUPS._replace(validation=None), 0.4), linear_model()
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


def frozen(*meshes):
    """The distance of a frozen network, and of one with adapters, from one device."""
    network, key = ff.models.mlp(3, hidden=(5,)), jax.random.key(7)
    base = jax.device_get(network.init(key, FEDERATION.train.features[:1]))
    options = {"rounds": 2, "eval_every": 1, "seeds": range(3)}
    for solver, model in {
        "scaffold": ff.models.freeze(network, base, ("head",)),
        "ditto": ff.models.lora(network, base, rank=2, trainable=("head",)),
    }.items():
        method = make_stateful(solver).replace(model=model)
        one = ff.fit(method, FEDERATION, **options).dataset
        for name in meshes:
            many = ff.fit(method, FEDERATION, **options, mesh=mesh_named(name)).dataset
            largest = max(distance(one[each].values, many[each].values) for each in one)
            print(json.dumps({"mesh": name, "distance": largest}))


def people(*meshes):
    """The distance of results of two classes by group, also of personalized models."""
    data = ff.data.hold_out(make_people(sizes=SIZES), 0.3)
    method, options = make_stateful("ditto", 2), {"rounds": 2, "eval_every": 1, "seeds": range(3)}
    one = ff.fit(method, data, **options).dataset
    for name in meshes:
        many = ff.fit(method, data, **options, mesh=mesh_named(name)).dataset
        largest = {str(each): distance(one[each].values, many[each].values) for each in one}
        by_group = [each for each in largest if "sensitive_group" in each or "parity" in each]
        line = {"mesh": name, "distance": max(largest.values()), "by_group": by_group}
        print(json.dumps(line | {"largest": max(largest, key=largest.__getitem__)}))


def make_fedavg(learning_rate=0.1):
    return ff.Round(
        linear_model(),
        ff.selectors.Uniform(3),
        ff.solvers.SGD(learning_rate, 2, epochs=1),
        ff.aggregators.Mean(),
    )


SELECTED = {
    "fedavg": ff.selectors.Uniform(3),
    "oort": SELECTORS["oort"](),
    "fedcor": SELECTORS["fedcor, in one dimension"](),
}
"""Selectors, some with state, of runs that resume."""


def resume(name, seeds, model, *meshes):
    """The distance of runs that resume from mesh to mesh, two rounds on each, from one device.

    Compared are metrics, and variables of the last or the best round.
    """
    method, last = make_fedavg().replace(selector=SELECTED[name]), 2 * len(meshes)
    best = {"last": None, "best": most_accurate}[model]
    options = {"eval_every": 2, "seeds": range(int(seeds)), "best": best}
    one = ff.fit(method, FEDERATION, rounds=last, **options)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(meshes, 1):
            options |= {"mesh": mesh_named(name), "checkpoints": folder}
            many = ff.fit(method, FEDERATION, rounds=2 * number, **options)
    leaves = zip(jax.tree.leaves(one.variables), jax.tree.leaves(many.variables), strict=True)
    values = ((one.dataset[name].values, many.dataset[name].values) for name in one.dataset)
    largest = max(distance(*pair) for pair in (*leaves, *values))
    print(json.dumps({"distance": largest, "same": one.rounds.tolist() == many.rounds.tolist()}))


STATEFUL = ("fedavg", "scaffold", "ditto", "top_k", "ditto_bfloat16")
"""Methods whose states have to be updated in place, and one without for comparison."""


def make_stateful(name, num_classes=3):
    sgd, mean = ff.solvers.SGD(0.1, 2, epochs=1), ff.aggregators.Mean()
    solver, aggregator, compression = {
        "fedavg": (sgd, mean, None),
        "scaffold": (ff.solvers.Scaffold(sgd), ff.aggregators.ScaffoldMean(), None),
        "ditto": (ff.solvers.Ditto(sgd, 0.5), mean, None),
        "top_k": (sgd, mean, ff.communication.TopK(0.3)),
        "ditto_top_k": (ff.solvers.Ditto(sgd, 0.5), mean, ff.communication.TopK(0.3)),
    }[name.removesuffix("_bfloat16")]
    dtype = "bfloat16" if name.endswith("_bfloat16") else None
    settings = {"compression": compression, "client_state_dtype": dtype}
    selector = ff.selectors.Uniform(7)
    return ff.Round(linear_model(num_classes), selector, solver, aggregator, **settings)


def states(name, seeds, *meshes):
    """Compares as ``resume`` does, and also the states of clients in the last checkpoints."""
    method, last, seeds = make_stateful(name), 2 * len(meshes), range(int(seeds))
    options = {"eval_every": 2, "seeds": seeds}
    with tempfile.TemporaryDirectory() as one_folder, tempfile.TemporaryDirectory() as folder:
        one = ff.fit(method, FEDERATION, rounds=last, checkpoints=one_folder, **options)
        for number, mesh in enumerate(meshes, 1):
            options |= {"mesh": mesh_named(mesh), "checkpoints": folder}
            many = ff.fit(method, FEDERATION, rounds=2 * number, **options)
        kept = [saved_states(path, last) for path in (one_folder, folder)]
    values = [(one.dataset[name].values, many.dataset[name].values) for name in one.dataset]
    rows = list(zip(*map(jax.tree.leaves, kept), strict=True))
    with RunBatch(FEDERATION, tuple(seeds), options["mesh"]) as batch:
        functions = CompiledRuns(stack_trees([method]), batch, TrainOptions(4, 2, True, "raise"))
        arrays = jax.tree.leaves(functions.init().clients)
    line = {
        "distance": max(distance(*pair) for pair in values),
        "states": max(distance(*pair) for pair in rows),
        "shapes": [array.shape for array, _ in rows],
        "distinct": len(np.unique(rows[0][0][0], axis=0)),
        "bytes": sum(array.nbytes for array in arrays),
        "per_device": sum(array.addressable_shards[0].data.nbytes for array in arrays),
    }
    print(json.dumps(line))


def in_place(name, *runs):
    # A TPU copies rows that are shorter than its lanes to another layout, at both ends of a chunk.
    is_here = ":" not in name
    num_classes, compile_chunk = (3, chunk_on) if is_here else (40, chunk_for)
    for count, method in itertools.product(map(int, runs), STATEFUL):
        temporaries, copies = [], []
        for num_clients in (400, 2000):
            data = make_federation(sizes=(3,) * num_clients)
            chunk = compile_chunk(name, make_stateful(method, num_classes), data, count)
            temporaries.append(chunk.memory_analysis().temp_size_in_bytes)
            store = num_clients * 5 * num_classes / (8 if name == "8" else 1)
            copied = copied_sizes(chunk.as_text() or "")
            copies.append(sum(int(size >= store) for size in copied))
        line = {"method": method, "runs": count, "bytes": temporaries, "copies": copies}
        print(json.dumps(line), flush=True)


def chunk_on(name, method, data, count):
    """Two compiled rounds of a batch of runs on a mesh, or on one device."""
    mesh, stacked = None if name == "1" else mesh_named(name), stack_trees([method])
    with RunBatch(data, tuple(range(count)), mesh) as batch:
        init, step, _ = make_functions(
            stacked,
            batch.mesh,
            train_loss=False,
        )
        seeds, per_run = batch.place(stacked.per_run)
        state = init.lower((seeds, per_run), stacked.shared, batch.data).out_info
        return step.lower(state, per_run, stacked.shared, batch.data, 2).compile()


def chunk_for(name, method, data, count):
    """The same for a TPU that is not available, by its compiler."""
    machine, stacked = machines.find(name), stack_trees([method])
    machines.prepare(machine)
    init, step, _ = make_functions(stacked, train_loss=False)
    with tracing_for(machine.platform):
        placed = place_data(machine, None, data)
        runs = place(machine, (np.arange(count, dtype=np.uint32), stacked.per_run))
        state = place(machine, jax.eval_shape(init, runs, stacked.shared, placed))
        traced = step.trace(state, runs[1], stacked.shared, placed, 2)
    return traced.lower(lowering_platforms=(machine.platform,)).compile()


def copied_sizes(program):
    """Elements of every array of a type of stored states that a compiled program copies."""
    copies = re.findall(r"= \(?(?:f32|u16)\[([\d,]+)\]\S* (?:.*\) )?copy(?:-start)?\(", program)
    return [int(np.prod([int(size) for size in shape.split(",")])) for shape in copies]


def saved_states(folder, round):
    with ocp.CheckpointManager(Path(folder).absolute()) as manager:
        arguments = ocp.args.Composite(clients=ocp.args.StandardRestore())
        return jax.tree.map(np.asarray, manager.restore(round, args=arguments)["clients"])


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
            methods = stack_trees([make_fedavg(rate) for rate in rates[:runs].tolist()])
            programs = CompiledRuns(methods, batch, TrainOptions(4, 2, True, "raise"))
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
    arrays["train"]["order"] = np.roll(arrays["train"]["order"], by)
    return arrays


def fit(folder, rounds):
    folder, rounds = Path(folder), int(rounds)
    if not jax.distributed.is_initialized():
        processes.initialize()
    method, mesh = make_subtrunc(), client_mesh("all")
    options = {"eval_every": 2, "seeds": (0, 1), "mesh": mesh, "checkpoints": folder / "kept"}
    if jax.process_count() == 4:  # Stops after two rounds, and goes on from there.
        ff.fit(method, FEDERATION, rounds=2, **options)
    (folder / f"started-{jax.process_index()}").touch()
    results = ff.fit(method, FEDERATION, rounds=rounds, **options).dataset
    ff.results.save(results, folder / f"{jax.process_index()}.nc")


def resumed_ditto(checkpoints, mesh):
    """Four rounds of two seeds, resumed after two."""
    options = {"eval_every": 2, "seeds": (0, 1), "mesh": mesh, "checkpoints": checkpoints}
    ff.fit(make_stateful("ditto"), FEDERATION, rounds=2, **options)
    return ff.fit(make_stateful("ditto"), FEDERATION, rounds=4, **options)


def states_together(folder):
    """Distance of the personalized losses of a process from those of its evaluation."""
    processes.initialize()
    folder = Path(folder)
    fitted = resumed_ditto(folder / "kept", client_mesh("all"))
    ff.results.save(fitted.dataset, folder / f"{jax.process_index()}.nc")
    test, distances = FEDERATION.test, []
    for client in range(FEDERATION.num_clients):
        start, size = int(test.offsets[client]), int(test.sizes[client])
        rows = test.order[start : start + size]
        if not size:
            continue
        predicted = fitted.predict(test.features[rows], client=client)
        accuracy = (predicted == test.labels[rows]).mean(axis=1)
        measured = fitted.dataset.personalized_test_accuracy[:, -1, client]
        distances.append(np.abs(accuracy - measured.values).max())
    print(json.dumps({"distance": float(max(distances))}))


def command(folder, rounds, *arguments):
    assert main(arguments) == 0
    fit(folder, rounds)


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    globals()[name](*words)
