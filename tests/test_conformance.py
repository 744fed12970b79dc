"""One battery that every role passes; a new factory joins by getting a line here.

``test_nothing_is_left_out`` fails for a public factory without one.
"""

from functools import partial
from inspect import ismodule

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import make_federation

from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.numerics.sketch import count_sketch
from fedjax_fair.simulate import make_round, run
from fedjax_fair.submodular import modular

SELECTORS = {
    "uniform": partial(selectors.uniform, 3),
    "by_size": partial(selectors.by_size, 3),
    "full": selectors.full,
    "round_robin": partial(selectors.round_robin, 3),
    "power_of_choice": partial(selectors.power_of_choice, 3, 5),
    "power_of_choice, minibatch": partial(
        selectors.power_of_choice, 3, 5, variant="cpow", batch_size=2
    ),
    "power_of_choice, reported": partial(selectors.power_of_choice, 3, 5, variant="rpow"),
    "clustered_by_size": partial(selectors.clustered_by_size, 3),
    "clustered_by_similarity": partial(selectors.clustered_by_similarity, 3),
    "divfl": partial(selectors.divfl, 3, candidates=4),
    "divfl, greedy and stale": partial(selectors.divfl, 3, candidates=None, info="stale"),
    "divfl, every other round": partial(
        selectors.divfl, 3, candidates=4, info=selectors.gradients.refresh_every(2)
    ),
    "divfl, sketched": partial(
        selectors.divfl, 3, candidates=4, info=selectors.gradients.fresh(count_sketch(4))
    ),
    "divfl, of a pool": partial(
        selectors.divfl,
        3,
        candidates=None,
        pool=4,
        info=selectors.gradients.stale(count_sketch(4)),
    ),
    "subtrunc": partial(selectors.subtrunc, 3, 0.5, candidates=4),
    "subtrunc, of a pool": partial(selectors.subtrunc, 3, 0.5, candidates=2, pool=4),
    "unionfl": partial(selectors.unionfl, 3, 0.5, 2, candidates=4),
    "unionfl, of a pool": partial(selectors.unionfl, 3, 0.5, 2, candidates=None, pool=4),
    "unionfl, by updates": partial(
        selectors.unionfl, 3, candidates=4, info=selectors.gradients.updates(0.1)
    ),
    "submodular": partial(
        selectors.submodular, lambda context: modular(context.losses(context.variables)), 3
    ),
    "agnostic": partial(selectors.agnostic, 0.1),
    "agnostic, drawn": partial(selectors.agnostic, 0.1, cohort_size=3, local_steps=2),
}
SOLVERS = {
    "sgd": partial(solvers.sgd, 0.1, 2, epochs=1),
    "sgd, momentum, decay and prox": partial(
        solvers.sgd, 0.1, 2, steps=3, momentum=0.9, weight_decay=0.01, prox=0.1
    ),
    "sgd with replacement": partial(solvers.sgd, 0.1, 2, steps=3, replacement=True),
}
AGGREGATORS = {
    "mean": aggregators.mean,
    "mean by size": partial(aggregators.mean, "size"),
    "mean by cohort": partial(aggregators.mean, "cohort"),
    "mean with a server optimizer": partial(
        aggregators.mean, server_optimizer=optax.sgd(0.5, momentum=0.9)
    ),
    "equitable": partial(aggregators.equitable, 2),
    "equitable, of the last batch": partial(
        aggregators.equitable, "eigengap", layer="logits", examples="last_batch"
    ),
    "fairfed": partial(aggregators.fairfed, 0.5),
    "gifair": partial(aggregators.gifair, 0.5),
    "q_fedavg": partial(aggregators.q_fedavg, 1.0, 0.1),
    "tilted": partial(aggregators.tilted, 1.0),
}
BASELINE = ("uniform", "sgd", "mean")
COMBINATIONS = (
    [(name, *BASELINE[1:]) for name in SELECTORS]
    + [(BASELINE[0], name, BASELINE[2]) for name in SOLVERS if name != "sgd"]
    + [(*BASELINE[:2], name) for name in AGGREGATORS if name != "mean"]
)


def test_nothing_is_left_out():
    for package, cases in (
        (selectors, SELECTORS),
        (solvers, SOLVERS),
        (aggregators, AGGREGATORS),
    ):
        factories = {name for name in package.__all__ if not ismodule(getattr(package, name))}
        assert factories <= {name.split(maxsplit=1)[0].rstrip(",") for name in cases}


@pytest.fixture
def federation():
    """One whose groups are known, for the roles that want to know them."""
    return make_federation()._replace(groups=np.array([0, 1, 0, 2, 1, 0], np.int32))


@pytest.fixture(params=COMBINATIONS, ids=" | ".join)
def round(request, model):
    selector, solver, aggregator = request.param
    return make_round(model, SELECTORS[selector](), SOLVERS[solver](), AGGREGATORS[aggregator]())


@pytest.fixture
def start(round, federation):
    return round.init(jax.random.key(0), federation)


def assert_close(actual, expected):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), actual, expected)


def plain(state):
    return state._replace(key=jax.random.key_data(state.key))


def test_compiled_equals_eager(round, start, federation):
    eager, eager_info = round.step(start, federation)
    compiled, compiled_info = jax.jit(round.step)(start, federation)
    assert_close(plain(compiled), plain(eager))
    assert_close(compiled_info, eager_info)


def test_vmap_over_keys_equals_a_loop(round, federation):
    keys = jax.random.split(jax.random.key(1), 3)
    step = jax.jit(lambda key: round.step(round.init(key, federation), federation))
    together = jax.jit(jax.vmap(step))(keys)
    for index, key in enumerate(keys):
        state, info = step(key)
        batch_state, batch_info = jax.tree.map(lambda leaf, index=index: leaf[index], together)
        assert_close(plain(batch_state), plain(state))
        assert_close(batch_info, info)


def test_state_keeps_its_structure_and_types(round, start, federation):
    after, _ = jax.eval_shape(round.step, start, federation)
    chex.assert_trees_all_equal_structs(after, start)
    chex.assert_trees_all_equal_shapes_and_dtypes(plain_shapes(after), plain_shapes(start))
    # Checkpoints cannot hold them.
    assert all(leaf.size for leaf in jax.tree.leaves(after))


def plain_shapes(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


def test_rounds_and_partitions_do_not_retrace(round, start, federation):
    chex.clear_trace_counter()
    step = jax.jit(chex.assert_max_traces(round.step, n=1))
    state, _ = step(start, federation)
    rolled = federation.train._replace(order=np.roll(federation.train.order, 1))
    step(state, federation._replace(train=rolled))


def test_the_cohort_is_valid_and_its_weights_sum_to_one(round, start, federation):
    _, info = jax.jit(run, static_argnums=(0, 3))(round, start, federation, 5)
    assert info.clients.dtype == jnp.int32
    assert (info.clients >= 0).all()
    assert (info.clients < federation.num_clients).all()
    assert (info.weights >= 0).all()
    np.testing.assert_allclose(info.weights.sum(axis=1), 1, rtol=1e-6)
    assert info.finite.all()


def test_the_model_moves(round, start, federation):
    after, _ = round.step(start, federation)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), after.variables, start.variables)
    assert all(jax.tree.leaves(moved.params))
