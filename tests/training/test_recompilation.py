"""What compiles again, and what must: equal methods, other numbers, and code that has changed."""

import gc
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import make_federation

from fedjax_fair import aggregators, models, selectors, solvers
from fedjax_fair.base import Cohort, Selector
from fedjax_fair.simulate import Round
from fedjax_fair.training import executables, fit, fit_batch, train
from fedjax_fair.training.inspection import is_installed
from fedjax_fair.tree import Number

COMPILED = []
FEDERATION = make_federation()._replace(groups=np.array([0, 1, 0, 2, 1, 0], np.int32))


def setup_module():
    jax.monitoring.register_event_duration_secs_listener(count)


def teardown_module():
    jax.monitoring.unregister_event_duration_listener(count)


def count(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(duration)


def compiled(call):
    """How many programs a call compiles, and what it returns."""
    gc.collect()
    before = len(COMPILED)
    result = call()
    return len(COMPILED) - before, result


def of(selector=None, solver=None, aggregator=None):
    return Round(
        models.logistic(3),
        selector or selectors.Uniform(3),
        solver or solvers.SGD(0.1, 2, epochs=1),
        aggregator or aggregators.Mean(),
    )


def run(method, seed=0, rounds=2):
    return fit(method, FEDERATION, rounds=rounds, seeds=(seed,), eval_every=1)


METHODS = {
    "unionfl and equitable": (
        lambda mu, rate: of(
            selectors.UnionFL(3, mu=mu), solvers.SGD(rate, 2, epochs=1), aggregators.Equitable(2)
        )
    ),
    "uniform and mean": lambda mu, rate: of(solver=solvers.SGD(rate, 2, epochs=1, prox=mu)),
    "subtrunc and q_fedavg": (
        lambda mu, rate: of(
            selectors.SubTrunc(3, mu),
            solvers.SGD(rate, 2, epochs=1),
            aggregators.QFedAvg(mu, learning_rate=rate),
        )
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_equal_method_compiles_nothing_nor_do_other_numbers_and_seeds(name):
    make = METHODS[name]
    first = run(make(0.5, 0.1))
    again, same = compiled(lambda: run(make(0.5, 0.1)))
    assert again == 0
    assert same.identical(first)
    assert compiled(lambda: run(make(0.5, 0.1), seed=4))[0] == 0
    others, other = compiled(lambda: run(make(0.25, 0.2)))
    assert others == 0
    assert not other.equals(first)
    jax.clear_caches()
    executables.clear()
    assert compiled(lambda: run(make(0.5, 0.1)))[0] > 0  # Which shows that they are counted.


def test_other_numbers_give_what_they_give_alone():
    """Not what the program was first compiled for."""
    make = METHODS["uniform and mean"]
    run(make(0.5, 0.1))
    reused = run(make(0.25, 0.2))
    jax.clear_caches()
    executables.clear()
    assert run(make(0.25, 0.2)).identical(reused)


def test_a_batch_of_other_numbers_compiles_nothing_and_equals_runs_alone():
    make = METHODS["uniform and mean"]

    def together(numbers):
        methods = [make(mu, 0.1) for mu in numbers]
        return fit_batch(methods, FEDERATION, rounds=2, seeds=(0, 0, 1), eval_every=1)

    together((0.0, 0.1, 1.0))
    again, runs = compiled(lambda: together((0.0, 0.2, 2.0)))
    assert again == 0
    alone = run(make(0.2, 0.1))
    np.testing.assert_array_equal(runs.test_accuracy[1], alone.test_accuracy[0])
    np.testing.assert_allclose(runs.test_loss[1], alone.test_loss[0], rtol=1e-6)


def test_what_was_trained_predicts_and_is_evaluated_without_compiling_again():
    fitted = train(of(), FEDERATION, rounds=1)

    def use():
        return fitted.predict(FEDERATION.test.features[:4]), fitted.evaluate(FEDERATION)

    use()
    assert compiled(use)[0] == 0


class Loudest(Selector):
    """The selector of somebody's own of the guides."""

    cohort_size: int
    penalty: Number = 0.0

    def select(self, key, state, context):
        sizes = context.sizes.astype(jnp.float32)
        _, clients = jax.lax.top_k(
            context.losses(context.variables) - self.penalty * sizes, self.cohort_size
        )
        weights = jnp.full(self.cohort_size, 1 / self.cohort_size, jnp.float32)
        return Cohort(clients, weights), state, {}


@pytest.mark.parametrize(
    "make",
    [
        lambda number: of(Loudest(3, number)),
        lambda number: of(solver=solvers.SGD(lambda round: 0.1, 2, epochs=1, prox=number)),
    ],
    ids=["class", "schedule"],
)
def test_code_that_is_not_installed_reuses_programs_of_equal_text(make):
    first = run(make(0.5))
    again, same = compiled(lambda: run(make(0.5)))
    assert again == 0
    assert same.identical(first)
    assert compiled(lambda: run(make(0.25)))[0] == 0


def test_an_optimizer_of_optax_made_anew_reuses_programs_of_equal_text():
    def make(momentum):
        return of(aggregator=aggregators.Mean(server_optimizer=optax.sgd(0.5, momentum)))

    first = run(make(0.5))
    again, same = compiled(lambda: run(make(0.5)))
    assert again == 0
    assert same.identical(first)
    others, other = compiled(lambda: run(make(0.75)))
    assert others > 0  # Its numbers are part of the program.
    assert not other.equals(first)


def cohorts(method):
    return run(method, rounds=1).cohort_clients.values.ravel().tolist()


def module_of(helper, name):
    """Globals such as those of a notebook: a selector calls a helper that may be defined again."""
    notebook = {"helper": helper} | ({} if name is None else {"__name__": name})
    exec(
        "import jax.numpy as jnp\n"
        "from fedjax_fair.base import Cohort, Selector\n"
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
    assert cohorts(of(selector)) == [0, 1]
    notebook["helper"] = lambda context: jnp.array([3, 4], jnp.int32)
    assert cohorts(of(selector)) == [3, 4]


def test_a_helper_of_a_models_loss_counts_too():
    notebook = types.ModuleType("notebook")
    exec("def loss(outputs, labels):\n    return helper(outputs)\n", notebook.__dict__)
    notebook.helper = lambda outputs: outputs.sum(axis=-1) * 0 + 1
    round = of().replace(model=models.logistic(3).replace(loss=notebook.loss))
    assert (run(round, rounds=1).test_loss[0, -1].dropna("client") == 1).all()
    notebook.helper = lambda outputs: outputs.sum(axis=-1) * 0 + 2
    assert (run(round, rounds=1).test_loss[0, -1].dropna("client") == 2).all()


@pytest.mark.parametrize("kind", ["callback", "array"])
def test_functions_called_back_and_captured_arrays_count(kind):
    """They look alike in a program's text, or not at all."""

    def choosing(ids):
        captured = np.asarray(ids, np.int32)

        def select(key, state, context):
            clients = jnp.asarray(captured)
            if kind == "callback":
                shape = jax.ShapeDtypeStruct(captured.shape, captured.dtype)
                clients = jax.pure_callback(lambda round: captured, shape, context.round)
            weights = jnp.full(len(captured), 0.5, jnp.float32)
            return Cohort((clients + context.round) % 6, weights), state, {}

        return Selector.from_functions(lambda context: (), select)

    for ids in ([0, 1], [2, 3], [0, 1]):
        assert cohorts(of(choosing(ids))) == ids


def test_settings_of_jax_are_part_of_what_is_compiled():
    highest = run(of())
    with jax.default_matmul_precision("float32"):
        assert compiled(lambda: run(of()))[0] > 0
    assert run(of()).identical(highest)


def test_which_code_is_installed():
    assert is_installed(of())
    assert is_installed(of(aggregator=aggregators.Mean(server_optimizer=optax.adam(0.1))))
    assert is_installed((jnp.tanh, jax.nn.relu, np.sum, len, sys))
    assert not is_installed(of(Loudest(2)))
    assert not is_installed(of(solver=solvers.SGD(lambda round: 0.1, 2, epochs=1)))
    assert not is_installed(of().replace(model=models.logistic(3).replace(loss=count)))
    assert not is_installed(jax.jit(count))
    assert not is_installed(jax.custom_jvp(count))
    assert not is_installed((jnp.tanh, (count,)))
    assert not is_installed(selectors.DivFL(2, gradients=selectors.gradients.Fresh(count)))
    assert not is_installed(jax.tree_util.Partial(count, 1))
    assert not is_installed(optax.GradientTransformation(count, count))


def test_a_python_if_on_a_number_is_explained():
    class Cheap(Loudest):
        def select(self, key, state, context):
            if self.penalty > 0:
                return super().select(key, state, context)
            return selectors.Uniform(self.cohort_size).select(key, state, context)

    with pytest.raises(
        ValueError, match=r"`if self\.penalty > 0:` needs .*Cheap\.penalty.*jnp\.where"
    ):
        run(of(Cheap(2, 0.5)))


def test_other_errors_of_tracing_are_left_alone():
    def select(key, state, context):
        return () if context.round > 0 else None

    with pytest.raises(jax.errors.TracerBoolConversionError):
        run(of(Selector.from_functions(lambda context: (), select)))


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([of(), of(selectors.Uniform(2))], r"Round\.selector\.cohort_size: 3 and 2 differ"),
        ([of()], "methods: expected one for each of 2 seeds, got 1"),
        ([of(), "fedavg"], "methods: one of them is a str"),
        ([of(), of(selectors.Full())], r"Round\.selector: Uniform.* and Full.* differ"),
    ],
)
def test_methods_that_cannot_be_a_batch_are_refused(methods, message):
    with pytest.raises(ValueError, match=message):
        fit_batch(methods, FEDERATION, rounds=1, seeds=(0, 1))


PROGRAM = """
import fedjax_fair as ff
ff.enable_compilation_cache({folder!r})
data = ff.data.load("digits", ff.data.iid(5))
method = ff.Round(ff.models.logistic(10), ff.selectors.Uniform(2),
                  ff.solvers.SGD(0.1, 10, steps=1), ff.aggregators.Mean())
print(float(ff.fit(method, data, rounds=1).accuracy_mean_clients[0, -1]))
"""


def test_compiled_programs_are_kept_on_disk_on_request(tmp_path):
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
    with pytest.raises(ValueError, match="expected a folder, found a file"):
        enable_compilation_cache(tmp_path / "file")
