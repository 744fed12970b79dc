"""Recompilation: none for equal methods and other hyperparameters, but for changed code."""

import gc
import subprocess
import sys
import types
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compilations import compilations
from conftest import make_federation

from fedjax_fair import aggregators, models, selectors, server_optimizers, solvers
from fedjax_fair.roles import Cohort, Selector
from fedjax_fair.rounds.round import Round
from fedjax_fair.training import executable_cache, fit
from fedjax_fair.training.inspection import is_installed
from fedjax_fair.utils.tree import Number

FEDERATION = make_federation()._replace(groups=np.array([0, 1, 0, 2, 1, 0], np.int32))


def counted(call):
    """The number of compilations of a call, and its result."""
    with compilations() as compiled:
        result = call()
    return len(compiled), result


def make_round(selector=None, solver=None, aggregator=None):
    return Round(
        models.logistic(3),
        selector or selectors.Uniform(3),
        solver or solvers.SGD(0.1, 2, epochs=1),
        aggregator or aggregators.Mean(),
    )


def run(method, seed=0, rounds=2):
    return fit(method, FEDERATION, rounds=rounds, seeds=(seed,), eval_every=1).dataset


def test_equal_methods_and_other_hyperparameters_and_seeds_compile_nothing():
    def make(mu, rate):
        return make_round(
            selectors.SubTrunc(3, mu),
            solvers.SGD(rate, 2, epochs=1, prox=mu),
            aggregators.QFedAvg(mu, learning_rate=rate),
        )

    first = run(make(0.5, 0.1))
    gc.collect()  # Executables outlive the methods.
    again, same = counted(lambda: run(make(0.5, 0.1)))
    assert again == 0
    assert same.identical(first)
    assert counted(lambda: run(make(0.5, 0.1), seed=4))[0] == 0
    others, other = counted(lambda: run(make(0.25, 0.2)))
    assert others == 0
    assert not other.equals(first)
    jax.clear_caches()
    assert counted(lambda: run(make(0.5, 0.1)))[0] == 0  # Executables stay.
    jax.clear_caches()
    executable_cache.clear()
    compiled, alone = counted(lambda: run(make(0.25, 0.2)))
    assert compiled > 0  # Compilations are counted.
    assert alone.identical(other)  # Hyperparameters are not constants.


def test_a_batch_of_other_hyperparameters_compiles_nothing_and_equals_single_runs():
    def make(mu):
        return make_round(solver=solvers.SGD(0.1, 2, epochs=1, prox=mu))

    def together(numbers):
        methods = [make(mu) for mu in numbers]
        return fit(methods, FEDERATION, rounds=2, seeds=(0, 0, 1), eval_every=1).dataset

    together((0.0, 0.1, 1.0))
    again, runs = counted(lambda: together((0.0, 0.2, 2.0)))
    assert again == 0
    alone = run(make(0.2))
    np.testing.assert_array_equal(runs.test_accuracy[1], alone.test_accuracy[0])
    np.testing.assert_allclose(runs.test_loss[1], alone.test_loss[0], rtol=1e-6)


def test_a_second_prediction_and_evaluation_compile_nothing():
    fitted = fit(make_round(), FEDERATION, rounds=1)

    def use():
        return fitted.predict(FEDERATION.test.features[:4]), fitted.evaluate(FEDERATION)

    use()
    assert counted(use)[0] == 0


class Loudest(Selector):
    """The custom selector of the guides."""

    cohort_size: int
    penalty: Number = 0.0

    def select(self, key, state, context):
        sizes = context.sizes.astype(jnp.float32)
        _, clients = jax.lax.top_k(
            context.losses(context.variables) - self.penalty * sizes, self.cohort_size
        )
        weights = jnp.full(self.cohort_size, 1 / self.cohort_size, jnp.float32)
        return Cohort(clients, weights), state, {}


def test_code_that_is_not_installed_reuses_executables_of_equal_text():
    def make(number):
        solver = solvers.SGD(lambda round: 0.1, 2, epochs=1, prox=number)
        return make_round(Loudest(3, number), solver)

    first = run(make(0.5))
    again, same = counted(lambda: run(make(0.5)))
    assert again == 0
    assert same.identical(first)
    assert counted(lambda: run(make(0.25)))[0] == 0


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda rate: server_optimizers.FedAdam(rate),
        lambda rate: server_optimizers.FedAvgM(0.5, beta1=rate),
        lambda rate: server_optimizers.Optax(optax.rmsprop, rate),
        lambda rate: server_optimizers.Optax(jax.tree_util.Partial(optax.sgd, momentum=rate), 0.5),
    ],
    ids=["rate", "beta1", "optax", "momentum of optax"],
)
def test_numbers_of_server_optimizers_compile_nothing(make_optimizer):
    def make(number):
        return make_round(
            aggregator=aggregators.WithServerOptimizer(aggregators.Mean(), make_optimizer(number))
        )

    first = run(make(0.5))
    others, other = counted(lambda: run(make(0.25)))
    assert others == 0
    assert not other.equals(first)


def test_an_equal_optax_optimizer_compiles_nothing():
    def make(momentum):
        optimizer = server_optimizers.Optax(partial(optax.sgd, momentum=momentum), 0.5)
        return make_round(aggregator=aggregators.WithServerOptimizer(aggregators.Mean(), optimizer))

    first = run(make(0.5))
    again, same = counted(lambda: run(make(0.5)))
    assert again == 0
    assert same.identical(first)
    others, other = counted(lambda: run(make(0.75)))
    assert others > 0  # Its hyperparameters are constants.
    assert not other.equals(first)


def cohorts(method):
    return run(method, rounds=1).cohort_clients.values.ravel().tolist()


def module_of(helper, name):
    """The globals of a notebook whose selector calls a helper."""
    notebook = {"helper": helper} | ({} if name is None else {"__name__": name})
    exec(
        "import jax.numpy as jnp\n"
        "from fedjax_fair.roles import Cohort, Selector\n"
        "class Chosen(Selector):\n"
        "    cohort_size: int\n"
        "    def select(self, key, state, context):\n"
        "        clients = (helper(context) + context.round) % context.num_clients\n"
        "        weights = jnp.full(self.cohort_size, 1 / self.cohort_size, jnp.float32)\n"
        "        return Cohort(clients, weights), state, {}\n",
        notebook,
    )
    return notebook


@pytest.mark.parametrize("name", ["notebook", None])
def test_a_helper_that_is_defined_again_counts(name):
    notebook = module_of(lambda context: jnp.arange(2, dtype=jnp.int32), name)
    selector = notebook["Chosen"](2)
    assert cohorts(make_round(selector)) == [0, 1]
    notebook["helper"] = lambda context: jnp.array([3, 4], jnp.int32)
    assert cohorts(make_round(selector)) == [3, 4]


def test_a_helper_of_a_models_loss_counts_too():
    notebook = types.ModuleType("notebook")
    exec("def loss(outputs, labels):\n    return helper(outputs)\n", notebook.__dict__)
    notebook.helper = lambda outputs: outputs.sum(axis=-1) * 0 + 1
    round = make_round().replace(model=models.logistic(3).replace(loss=notebook.loss))
    assert (run(round, rounds=1).test_loss[0, -1].dropna("client") == 1).all()
    notebook.helper = lambda outputs: outputs.sum(axis=-1) * 0 + 2
    assert (run(round, rounds=1).test_loss[0, -1].dropna("client") == 2).all()


@pytest.mark.parametrize("kind", ["callback", "array"])
def test_callbacks_and_captured_arrays_compile_again(kind):
    """The text does not contain them."""

    def choosing(ids):
        captured = np.asarray(ids, np.int32)

        def select(key, state, context):
            clients = jnp.asarray(captured)
            if kind == "callback":
                shape = jax.ShapeDtypeStruct(captured.shape, captured.dtype)
                clients = jax.pure_callback(lambda round: captured, shape, context.round)
            weights = jnp.full(len(captured), 0.5, jnp.float32)
            return Cohort((clients + context.round) % 6, weights), state, {}

        return Selector.from_functions(select)

    for ids in ([0, 1], [2, 3], [0, 1]):
        assert cohorts(make_round(choosing(ids))) == ids


def test_settings_of_jax_are_part_of_what_is_compiled():
    highest = run(make_round())
    with jax.default_matmul_precision("float32"):
        assert counted(lambda: run(make_round()))[0] > 0
    assert run(make_round()).identical(highest)


def test_which_code_is_installed():
    assert is_installed(make_round())
    optimizer = server_optimizers.Optax(optax.adam, 0.1)
    wrapped = aggregators.WithServerOptimizer(aggregators.Mean(), optimizer)
    assert is_installed(make_round(aggregator=wrapped))
    assert is_installed((jnp.tanh, jax.nn.relu, np.sum, len, sys))
    assert not is_installed(make_round(Loudest(2)))
    assert not is_installed(make_round(solver=solvers.SGD(lambda round: 0.1, 2, epochs=1)))
    assert not is_installed(make_round().replace(model=models.logistic(3).replace(loss=counted)))
    assert not is_installed(jax.jit(counted))
    assert not is_installed(jax.custom_jvp(counted))
    assert not is_installed((jnp.tanh, (counted,)))
    assert not is_installed(selectors.DivFL(2, gradients=selectors.gradients.Fresh(counted)))
    assert not is_installed(jax.tree_util.Partial(counted, 1))
    assert not is_installed(optax.GradientTransformation(counted, counted))


def test_a_python_if_on_a_traced_field_is_explained():
    class Cheap(Loudest):
        def select(self, key, state, context):
            if self.penalty > 0:
                return super().select(key, state, context)
            return selectors.Uniform(self.cohort_size).select(key, state, context)

    with pytest.raises(
        ValueError, match=r"`if self\.penalty > 0:` needs .*Cheap\.penalty.*jnp\.where"
    ):
        run(make_round(Cheap(2, 0.5)))


def test_a_python_if_on_another_traced_value_is_explained():
    def select(key, state, context):
        return () if context.round > 0 else None

    with pytest.raises(ValueError, match=r"`return .* None` needs the value of a traced array"):
        run(make_round(Selector.from_functions(select)))


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            [make_round(), make_round(selectors.Uniform(2))],
            r"Round\.selector\.cohort_size:",
        ),
        ([make_round()], "method:"),
        ([make_round(), "fedavg"], "method:"),
        (
            [make_round(), make_round(selectors.Full())],
            r"Round\.selector:",
        ),
    ],
)
def test_methods_of_different_structure_are_an_error(methods, message):
    with pytest.raises(ValueError, match=message):
        fit(methods, FEDERATION, rounds=1, seeds=(0, 1))


PROGRAM = """
import fedjax_fair as ff
ff.enable_compilation_cache({folder!r})
data = ff.data.load("digits", ff.data.iid(5))
method = ff.Round(ff.models.logistic(10), ff.selectors.Uniform(2),
                  ff.solvers.SGD(0.1, 10, steps=1), ff.aggregators.Mean())
print(float(ff.fit(method, data, rounds=1).dataset.accuracy_mean_clients[0, -1]))
"""


def test_executables_are_cached_on_disk_on_request(tmp_path):
    program = PROGRAM.format(folder=str(tmp_path / "programs"))

    def outcome():
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        return done.stdout, {file.name for file in (tmp_path / "programs").iterdir()}

    import os

    from fedjax_fair import enable_compilation_cache

    before = os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    try:
        first, again = outcome(), outcome()
    finally:
        if before is not None:
            os.environ["JAX_COMPILATION_CACHE_DIR"] = before
    kept = {name for name in first[1] if name.endswith("-cache")}
    assert kept
    assert again[0] == first[0]
    assert {name for name in again[1] if name.endswith("-cache")} == kept
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="folder"):
        enable_compilation_cache(tmp_path / "file")
