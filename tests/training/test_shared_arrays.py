"""Arrays of a method that all runs share, such as the parameters of a pretrained network."""

import re
from concurrent.futures import Future

import jax
import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.parallel.mesh import client_mesh
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_runs import CompiledRuns
from fedjax_fair.training.memory_estimate import Memory
from fedjax_fair.training.stacked import stack_trees
from fedjax_fair.training.train_options import TrainOptions

DATA = ff.data.load("digits", ff.data.iid(5))
NETWORK = ff.models.mlp(10, hidden=(33,))
BASE = jax.device_get(NETWORK.init(jax.random.key(7), DATA.train.features[:1]))
FROZEN = ff.models.freeze(NETWORK, BASE, ("head",))
ADAPTED = ff.models.lora(NETWORK, BASE, rank=2, trainable=("head",))
DITTO = ff.solvers.Ditto(ff.solvers.SGD(0.1, 10, steps=2))
OPTIONS = TrainOptions(rounds=2, eval_every=1, train_loss=False, on_nonfinite="raise")


def make(model, solver=None):
    solver = solver or ff.solvers.SGD(0.1, 10, steps=2)
    return ff.Round(model, ff.selectors.Uniform(2), solver, ff.aggregators.Mean())


@pytest.fixture
def recorded(monkeypatch):
    """Records the executables of ``fit``, and the arrays that they are called with."""
    compile, executables, passed = RunBatch.compile, [], []

    def recording(*arguments):
        future, replaced = compile(*arguments), Future()
        executables.append(executable := future.result())

        def call(*given):
            passed.extend(jax.tree.leaves(given))
            return executable(*given)

        call.memory_analysis = executable.memory_analysis
        replaced.set_result(call)
        return replaced

    monkeypatch.setattr(RunBatch, "compile", recording)
    return executables, passed


@pytest.mark.parametrize("mesh", [None, client_mesh(1), core_mesh(1)])
def test_they_are_on_the_devices_before_a_call(recorded, mesh):
    for method in (make(ff.models.pretrained(NETWORK, BASE)), make(FROZEN, DITTO)):
        ff.fit(method, DATA, rounds=2, eval_every=1, seeds=(0, 1), mesh=mesh)
        shapes = {leaf.shape for leaf in jax.tree.leaves(BASE)}
        passed = [leaf for leaf in recorded[1] if getattr(leaf, "shape", None) in shapes]
        assert passed
        assert not [leaf for leaf in passed if isinstance(leaf, np.ndarray)]
        recorded[1].clear()


def test_no_program_has_a_copy_for_each_client_or_run(recorded):
    """Rounds and evaluations, also of personalized models, with clients and runs in parallel."""
    repeated = {}
    for name, model in {"whole": NETWORK, "frozen": FROZEN, "adapters": ADAPTED}.items():
        recorded[0].clear()
        with tracing_for("gpu"):
            ff.fit(make(model, DITTO), DATA, rounds=2, eval_every=2, seeds=(0, 1, 2))
        text = "".join(executable.as_text() for executable in recorded[0])
        shapes = re.findall(r"f32\[([0-9,]+)\]", text)
        # Of the frozen kernel, also transposed, with axes of clients or runs on either side.
        repeated[name] = re.findall(r"\d,(?:64,33|33,64)|(?:64,33|33,64),\d", " ".join(shapes))
    assert repeated["whole"]
    assert not repeated["frozen"]
    assert not repeated["adapters"]


def test_methods_with_the_same_network_share_them():
    model = ff.models.pretrained(NETWORK, BASE)
    methods = [make(model), make(model, ff.solvers.SGD(0.2, 10, steps=2, prox=0.1))]
    with RunBatch(DATA, (0, 1)) as batch:
        one, other = (batch.place_shared(stack_trees([method])).shared for method in methods)
        assert {id(x) for x in one if np.ndim(x)} == {id(x) for x in other if np.ndim(x)}
        memory = CompiledRuns(stack_trees(methods[:1]), batch, OPTIONS).memory()
    assert memory.model == tree_bytes(BASE)


def test_they_leave_less_room_for_runs():
    memory = Memory(data=10, states=20, temporaries=20, model=40)
    assert memory.max_runs(4, 90) == 4
    assert memory.max_runs(4, 100) == 5
    assert memory.max_runs(4, 50) == 0
