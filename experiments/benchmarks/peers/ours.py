"""The same with this library, compiled rounds and all, on all cores or an accelerator."""

import sys

import jax
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.peers.networks import NETWORKS
from experiments.benchmarks.peers.programs.shared.workloads import CANDIDATES, LAM, B, serve
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.parallel.cores import default_core_mesh
from fedjax_fair.parallel.mesh import over_mesh, shard_data


def selector_of(workload):
    """The selector of a workload."""
    if workload.selector == "divfl":
        return ff.selectors.DivFL(workload.cohort_size, candidates=CANDIDATES)
    if workload.selector == "subtrunc":
        return ff.selectors.SubTrunc(workload.cohort_size, LAM, B, candidates=CANDIDATES)
    return ff.selectors.Uniform(workload.cohort_size)


def make(workload, path):
    mesh = default_core_mesh()
    arrays = dict(np.load(path))
    data = ff.data.from_arrays(
        arrays["train_x"],
        arrays["train_y"],
        list(arrays["parts"]),
        test_features=arrays["test_x"],
        test_labels=arrays["test_y"],
        test_client_indices=np.array_split(np.arange(len(arrays["test_y"])), workload.clients),
    )
    data = ff.data.on_device(data) if mesh is None else shard_data(data, mesh)
    model = NETWORKS[workload.network]()
    round = ff.Round(
        model,
        selector_of(workload),
        ff.solvers.SGD(workload.learning_rate, workload.batch_size, steps=workload.steps),
        ff.aggregators.Mean(),
        clients_per_batch=int(sys.argv[1]) if len(sys.argv) > 1 else None,
    )

    # The start comes out of a program as later states do, which then share one compilation.
    def begin(parameters, data):
        state = round.init(jax.random.key(0), data)
        return state._replace(variables=started(state.variables, parameters))

    def some_rounds(state, data):
        return ff.run(round, state, data, workload.rounds)[0]

    def accuracy(variables, data):
        return client_performance(model, variables, data.test).accuracy.mean()

    def loss(variables, data):
        return client_performance(model, variables, data.test).loss.mean()

    parameters = {name: values for name, values in arrays.items() if name.startswith("layer")}

    def compiled(function):
        return jax.jit(function if mesh is None else over_mesh(function, mesh))

    state = compiled(begin)(parameters, data)
    advance, measure = compiled(some_rounds), compiled(accuracy)

    def train():
        nonlocal state
        state = jax.block_until_ready(advance(state, data))
        if workload.evaluation:
            jax.block_until_ready(measure(state.variables, data))

    measure_loss = compiled(loss)
    return (
        train,
        lambda: measure(state.variables, data),
        lambda: measure_loss(state.variables, data),
    )


def started(variables, arrays):
    """The variables, with the parameters of the file."""
    names = sorted(name for name in arrays if name.startswith("layer"))
    tree = jax.tree.structure(variables.params)
    return variables._replace(params=jax.tree.unflatten(tree, [arrays[name] for name in names]))


if __name__ == "__main__":
    serve(make)
