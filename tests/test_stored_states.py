"""Memory of the states of clients, which can be stored as the bits of bfloat16."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, make_federation

import fedjax_fair as ff
from fedjax_fair import aggregators, communication, solvers
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.training import compiled_runs

DATA = jax.tree.map(jnp.asarray, make_federation())
KEY = jax.random.key(4)
SGD = solvers.SGD(0.2, 2, steps=3)


def select_repeatedly(key, state, context):
    clients = jnp.array([2, 0, 2], jnp.int32)
    return ff.Cohort(clients, jnp.full(3, 1 / 3)), state, {}


def state_after(num_rounds, solver=SGD, aggregator=None, num_classes=3, **settings):
    round = Round(
        linear_model(num_classes),
        ff.Selector.from_functions(select_repeatedly),
        solver,
        aggregator or aggregators.Mean(),
        **settings,
    )
    return jax.jit(lambda key: run(round, round.init(key, DATA), DATA, num_rounds)[0])(KEY)


def rows_of(state):
    clients = jnp.arange(DATA.num_clients)
    return jax.vmap(lambda client: state.clients.read(DATA.train, client))(clients)


def rounded(tree):
    return jax.tree.map(lambda leaf: np.float32(leaf.astype(jnp.bfloat16)), jax.device_get(tree))


class Mixed(solvers.SGD):
    """Keeps arrays of several types, one of which has the type of the bits."""

    def init(self, key, variables, client):
        return {
            "count": jnp.zeros((), jnp.int32),
            "code": jnp.full(3, 12345 + client.id, jnp.uint16),
            "drawn": jax.random.normal(key, (2, 5)),
        }

    def solve(self, key, variables, client):
        state = client.state | {
            "count": client.state["count"] + 1,
            "code": client.state["code"] + jnp.uint16(1),
            "drawn": 3 * client.state["drawn"],
        }
        return super().solve(key, variables, client)._replace(state=state)


@pytest.mark.parametrize("num_rounds", [0, 1])
def test_only_arrays_of_float32_are_rounded(num_rounds):
    """Each time that they are stored, to the nearest bfloat16."""
    states = [
        state_after(num_rounds, Mixed(0.2, 2, steps=3), client_state_dtype=dtype)
        for dtype in (None, "bfloat16")
    ]
    exact, stored = (jax.device_get(rows_of(state).state) for state in states)
    first = rounded(rows_of(state_after(0, Mixed(0.2, 2, steps=3))).state["drawn"])
    was_drawn = np.isin(np.arange(DATA.num_clients), [0, 2])[:, None, None]
    expected = rounded(jnp.where(was_drawn, 3**num_rounds * first, first))
    chex.assert_trees_all_equal(stored, exact | {"drawn": expected})
    assert not np.array_equal(exact["drawn"], expected)
    saved = [tree_bytes(state.clients) // DATA.num_clients for state in states]
    assert saved == [4 + 3 * 2 + 10 * 4, 4 + 3 * 2 + 10 * 2]


def test_personalized_models_follow_the_rounded_state():
    """The first round starts from it; the global path of Ditto does not depend on it."""
    solver = solvers.Ditto(SGD, 0.5)
    exact, stored = (
        state_after(3, solver, client_state_dtype=dtype) for dtype in (None, "bfloat16")
    )
    chex.assert_trees_all_equal(stored.variables, exact.variables)
    assert 2 * tree_bytes(stored.clients) == tree_bytes(exact.clients)
    models, exact_models = rows_of(stored).state, rows_of(exact).state
    chex.assert_trees_all_equal(jax.device_get(models), rounded(models))
    chex.assert_trees_all_close(models, exact_models, atol=0.03)


def test_residuals_of_a_repeated_client_are_added_before_they_are_rounded():
    exact, stored = (
        state_after(1, compression=communication.TopK(0.3), client_state_dtype=dtype)
        for dtype in (None, "bfloat16")
    )
    residual = rows_of(exact).residual
    assert (np.asarray(residual)[[0, 2]] != 0).any(axis=1).all()
    np.testing.assert_array_equal(rows_of(stored).residual, rounded(residual))


def test_scaffold_keeps_its_invariant_up_to_rounding():
    state = state_after(
        6, solvers.Scaffold(SGD), aggregators.ScaffoldMean(), client_state_dtype="bfloat16"
    )
    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), rows_of(state).state)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(mean))
    chex.assert_trees_all_close(state.aggregator, mean, atol=2**-7 * largest)


@pytest.mark.parametrize(
    ("solver", "compression"),
    [(solvers.Ditto(SGD, 0.5), None), (SGD, communication.TopK(0.3))],
    ids=["state", "residual"],
)
def test_padding_of_rows_on_a_tpu_changes_nothing(solver, compression):
    settings = {"num_classes": 40, "compression": compression}
    here = state_after(2, solver, **settings)
    with tracing_for("tpu"):
        there = state_after(2, solver, **settings)
        rows = rows_of(there)
    widths = [array.shape[1] for state in (here, there) for array in state.clients.arrays.values()]
    assert widths == [200, 256]
    chex.assert_trees_all_close((there.variables, rows), (here.variables, rows_of(here)), atol=1e-5)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(rows))


def test_another_type_is_an_error():
    with pytest.raises(ValueError, match="client_state_dtype="):
        state_after(0, client_state_dtype="float16")


@pytest.mark.parametrize("runs", [1, 2])
def test_states_beyond_the_memory_are_refused_before_compilation(runs, monkeypatch, as_users_call):
    """With their bytes; those of two runs do not fit into the memory for one."""
    round = Round(
        linear_model(),
        ff.selectors.Uniform(2),
        solvers.Ditto(SGD, 0.5),
        aggregators.Mean(),
    )
    one_run = DATA.num_clients * (3 * 4 + 3) * 4
    monkeypatch.setattr(compiled_runs, "total_memory", lambda: one_run * runs - 1)
    # Nothing compiles if this is replaced.
    monkeypatch.setattr(compiled_runs.RunBatch, "compile", None)
    said = rf"states of 6 clients in {runs} runs need {one_run * runs} bytes .* most the "
    with pytest.raises(ValueError, match=said) as raised:
        ff.fit(round, make_federation(), rounds=2, seeds=range(runs))
    assert "\n" not in str(raised.value)
