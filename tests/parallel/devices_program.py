"""Programs that tests of many devices and processes run in processes of their own.

``compare FIRST LAST`` prints, for some of the methods below, how far eight devices and three cores
are from one, ``runs COUNT ...`` how far so many runs are that cores compute, each with a partition
of its own if the word ``own`` follows its number. ``fit FOLDER ROUNDS`` is one of several
processes, and so is ``command FOLDER ROUNDS ARGUMENTS``, which runs the command line first.
``measured`` is an evaluation.
"""

import json
import os
import sys
from pathlib import Path

import jax
import numpy as np
from conftest import linear_model, make_federation
from test_conformance import AGGREGATORS, SELECTORS, SOLVERS

import fedjax_fair as ff
from experiments.benchmarks.devices import collective_bytes
from fedjax_fair.app.cli import main
from fedjax_fair.client_evaluation import evaluate
from fedjax_fair.data.federated import ownership, stack, with_ownership
from fedjax_fair.parallel import processes
from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.parallel.mesh import client_mesh, over_mesh, shard_federation

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
    ("divfl, of points", "sgd", "mean by cohort"),
    ("subtrunc, of points", "sgd", "mean"),
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
"""Every aggregator, every selector that measures clients, and what hides updates."""
UPLOADS = {
    "secure": {"aggregation": "secure"},
    "private": {"privacy": ff.uploads.adaptive_privacy(0.1), "aggregation": "secure"},
    "top_k": {"compression": ff.uploads.top_k(0.3)},
}
FAULTS = [ff.faults.dropout(0.2), ff.faults.byzantine(0.3, "little")]
"""What goes wrong with clients whose selector measures nothing."""


def run(names, data, mesh=None):
    """Six rounds: the state without its key, and the info of the rounds; collective bytes."""
    selector, solver, aggregator, *upload = names
    round = ff.make_round(
        linear_model(),
        SELECTORS[selector](),
        SOLVERS[solver](),
        AGGREGATORS[aggregator](),
        faults=FAULTS[: 1 if upload else 2] if selector == "uniform" else (),
        **(UPLOADS[upload[0]] if upload else {}),
    )

    def program(seed, data):
        start = round.init(jax.random.key(seed), data)
        state, info = ff.run(round, start, data, 6)
        return state._replace(key=jax.random.key_data(state.key)), info

    if mesh is not None:
        program, data = over_mesh(program, mesh), shard_federation(data, mesh)
    compiled = jax.jit(program).lower(np.uint32(3), data).compile()
    moved, _ = collective_bytes(compiled.as_text() or "")
    return *jax.device_get(compiled(np.uint32(3), data)), moved


def compare(first, last):
    meshes = client_mesh(8), core_mesh(3)
    for names in METHODS[first:last]:
        one, info, _ = run(names, FEDERATION)
        for mesh in meshes:
            compare_to(mesh, names, one, info)


def compare_to(mesh, names, one, info):
    many, info_of_many, moved = run(names, FEDERATION, mesh)
    leaves = zip(jax.tree.leaves((one, info)), jax.tree.leaves((many, info_of_many)), strict=True)
    found = {
        "mesh": mesh.axis_names[0],
        "same": bool(np.array_equal(info.clients, info_of_many.clients)),
        "apart": max(distance(*pair) for pair in leaves),
        "finite": bool(info.finite.all()),
        "moved": moved,
    }
    print(json.dumps({"names": names} | found))


def distance(one, many):
    """The largest difference, over the larger of one and the value; infinite values are equal."""
    equal = (one == many) | (np.isnan(one) & np.isnan(many))
    one, many = np.where(equal, 0.0, one), np.where(equal, 0.0, many)
    return float(np.max(np.abs(one - many) / np.maximum(1, np.abs(one)), initial=0))


def runs(cases):
    """The largest difference that cores make to some runs, with or without own partitions."""
    method = ff.make_round(
        linear_model(),
        ff.selectors.subtrunc(3, 0.5),
        ff.solvers.sgd(0.1, 2, epochs=1),
        ff.aggregators.mean("size"),
    )
    mesh = core_mesh(3)
    for count, own in cases:
        # Two runs for three cores share each other's work; of four, one core makes two.
        data = FEDERATION
        if own:
            data = stack([with_ownership(data, rolled(data, by)) for by in range(count)])
        options = {"rounds": 4, "eval_every": 2, "seeds": range(count)}
        one, many = ff.fit(method, data, **options), ff.fit(method, data, **options, mesh=mesh)
        apart = max(distance(one[name].values, many[name].values) for name in one)
        print(json.dumps({"runs": count, "own": own, "apart": apart}))
    sharded = shard_federation(FEDERATION, mesh).train.features.addressable_shards
    copies = len({shard.data.unsafe_buffer_pointer() for shard in sharded})
    print(json.dumps({"cores": len(sharded), "copies": copies, "flags": os.environ["XLA_FLAGS"]}))


def measured():
    """How far an evaluation, validation and metrics of predictions included, is from one device."""
    data, model = ff.data.hold_out(FEDERATION, 0.4), linear_model()
    variables = model.init(jax.random.key(0), FEDERATION.train.features[:1])
    own = [ff.metrics.predictions.auc(3), ff.metrics.predictions.macro_f1(3)]
    idle = np.zeros(19, np.int32)

    def program(variables, data):
        return evaluate(model, variables, data, idle, idle[:3], own=own)

    one = jax.jit(program)(variables, data)
    assert len(one.own) == 4
    assert not np.isnan(one.own["validation_auc"]).all()
    for mesh in (client_mesh(8), core_mesh(3)):
        sharded = shard_federation(data, mesh)
        many = jax.jit(over_mesh(program, mesh))(variables, sharded)
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True)
        apart = max(distance(*map(np.asarray, pair)) for pair in pairs)
        print(json.dumps({"mesh": mesh.axis_names[0], "apart": apart}))


def rolled(data, by):
    """Who owns what if examples go round by some places."""
    owned = ownership(data)
    return owned._replace(train=(np.roll(owned.train[0], by), *owned.train[1:]))


def fit(folder, rounds):
    if not jax.distributed.is_initialized():
        processes.initialize()
    method = ff.make_round(
        linear_model(), ff.selectors.subtrunc(3, 0.5), ff.solvers.sgd(0.1, 2, epochs=1),
        ff.aggregators.mean("size"),
    )  # fmt: skip
    mesh = client_mesh("all")
    options = {"eval_every": 2, "seeds": (0, 1), "mesh": mesh, "checkpoints": folder / "kept"}
    if jax.process_count() == 4:  # Stops after two rounds, and goes on from there.
        ff.fit(method, FEDERATION, rounds=2, **options)
    (folder / f"started-{jax.process_index()}").touch()
    results = ff.fit(method, FEDERATION, rounds=rounds, **options)
    ff.results.save(results, folder / f"{jax.process_index()}.nc")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["compare", first, last]:
            compare(int(first), int(last))
        case ["runs", *cases]:
            runs([(int(case.removesuffix("own")), case.endswith("own")) for case in cases])
        case ["measured"]:
            measured()
        case ["fit", folder, rounds]:
            fit(Path(folder), int(rounds))
        case ["command", folder, rounds, *arguments]:
            assert main(arguments) == 0
            fit(Path(folder), int(rounds))
