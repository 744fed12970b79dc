"""A sample of the clients to be represented: its law, its error, and the choice it leads to."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation

from fedjax_fair import selectors
from fedjax_fair.roles import ClientGradients
from fedjax_fair.selectors import representative_selector
from fedjax_fair.selectors.gradients import Fresh, RefreshEvery, Stale, Updates
from fedjax_fair.submodular import facility_location_from_features

CLIENTS, POOL, REFERENCES = 30, 7, 10
FAMILY = {
    "divfl": selectors.DivFL,
    "subtrunc": lambda k, **options: selectors.SubTrunc(k, 0.7, **options),
    "unionfl": lambda k, **options: selectors.UnionFL(k, 0.3, 2, **options),
}
LAST = np.arange(CLIENTS, dtype=np.int32) % 4


@cache
def family(name, references):
    return FAMILY[name](4, pool=POOL, num_reference_clients=references)


@cache
def examples():
    return make_federation(sizes=(2,) * CLIENTS).train


def clients_of(seed):
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(CLIENTS, 5)) * rng.gamma(1.0, size=(CLIENTS, 1))
    return gradients.astype(np.float32), rng.gamma(1.0, size=CLIENTS).astype(np.float32)


def context_of(gradients, losses, available=None):
    known = ClientGradients(jnp.asarray(losses), jnp.asarray(gradients))
    return make_context(examples(), gradients=known, round=5)._replace(available=available)


@cache
def compiled(name, references, selector=family):
    """Selection in round 5 as one program."""
    chosen = selector(name, references)
    state = ((), jnp.asarray(LAST) if name == "unionfl" else (), ())
    return jax.jit(
        lambda key, gradients, losses, available=None: chosen.select(
            key, state, context_of(gradients, losses, available)
        )
    )


@partial(jax.jit, static_argnames=("references", "size", "count"))
def drawn(keys, references=REFERENCES, size=POOL, count=CLIENTS):
    """The clients outside of a pool that represent the others, of each key."""
    pool = jnp.arange(size, dtype=jnp.int32) * 3 + 1
    return jax.vmap(
        lambda key: representative_selector._sample_references(
            key, pool, references, count
        ).clients[size:]
    )(keys)


def keys_of(seed, count):
    return jax.random.split(jax.random.key(seed), count)


def test_reference_clients_are_uniform_outside_of_the_pool_and_without_repetition():
    draws = np.asarray(drawn(keys_of(0, 2000)))
    pool, others = np.arange(POOL) * 3 + 1, CLIENTS - POOL
    counts = np.bincount(draws.ravel(), minlength=CLIENTS)
    assert draws.shape == (2000, REFERENCES)
    assert (np.diff(np.sort(draws)) > 0).all()
    assert not counts[pool].any()
    share = REFERENCES / others
    deviation = np.sqrt(2000 * share * (1 - share))
    assert abs(np.delete(counts, pool) - 2000 * share).max() < 4.5 * deviation
    # Two clients are drawn together as often as independence of repetition allows.
    together = ((draws == 0).any(axis=1) & (draws == 29).any(axis=1)).sum()
    pair = share * (REFERENCES - 1) / (others - 1)
    assert abs(together - 2000 * pair) < 4.5 * np.sqrt(2000 * pair * (1 - pair))


def test_as_many_references_as_there_are_take_every_other_client_once():
    for references in (CLIENTS - POOL, CLIENTS):
        draw = np.asarray(drawn(keys_of(1, 1), references))[0]
        assert sorted(draw) == sorted(set(range(CLIENTS)) - set(range(1, 3 * POOL, 3)))


@pytest.mark.parametrize("name", ["divfl", "subtrunc"])
def test_as_many_references_as_clients_choose_as_no_references_do(name):
    for seed in range(5):
        key, clients = jax.random.key(seed), clients_of(seed)
        cohort, _, info = compiled(name, None)(key, *clients)
        sampled, _, info_sampled = compiled(name, CLIENTS)(key, *clients)
        assert sampled.clients[:2].tolist() == cohort.clients[:2].tolist()
        assert info_sampled.pop("standard_error") == 0
        assert info_sampled.keys() == info.keys()
        for key in ("objective", "representation", "representation_bound", "num_nonfinite"):
            np.testing.assert_allclose(info_sampled[key], info[key], rtol=1e-4)


def test_with_a_pool_of_all_clients_no_others_are_sampled():
    @jax.jit
    def both(*clients):
        context, key = context_of(*clients), jax.random.key(0)
        settings = {"pool": CLIENTS}, {"pool": CLIENTS, "num_reference_clients": REFERENCES}
        state = ((), (), ())
        return [selectors.DivFL(4, **own).select(key, state, context)[::2] for own in settings]

    (exact, known), (cohort, info) = both(*clients_of(0))
    assert cohort.clients[:3].tolist() == exact.clients[:3].tolist()
    assert info.keys() == known.keys()
    np.testing.assert_allclose(info["objective"], known["objective"], rtol=1e-5)


def greedy_in_numpy(gradients, pool, others, k, extra):
    """Runs exact greedy in float64 on a weighted sample: participants, gains and value."""
    rows = gradients[np.concatenate([pool, others])].astype(float)
    weights = np.repeat([1, (CLIENTS - POOL) / len(others)], [POOL, len(others)]) / CLIENTS
    distances = np.linalg.norm(rows[:, None] - rows[None, :POOL], axis=-1)
    best, chosen, gains = distances.max(axis=1), [], []
    for _ in range(k):
        gain = weights @ np.maximum(0, best[:, None] - distances) + extra(chosen)
        gain[chosen] = -np.inf
        chosen.append(int(gain.argmax()))
        gains.append(np.sort(gain)[:-3:-1])
        best = np.minimum(best, distances[:, chosen[-1]])
    return pool[chosen], np.array(gains), weights @ (distances.max(axis=1) - best)


@jax.jit
@jax.vmap
def sampled(seed):
    """The clients that a selector with this seed reads: of the pool, then references."""
    key_pool, key = jax.random.split(jax.random.key(seed))
    context = context_of(*clients_of(0))
    pool = representative_selector._pool(key_pool, context, POOL)
    key_references = jax.random.split(key)[0]
    return representative_selector._sample_references(
        key_references, pool, REFERENCES, CLIENTS
    ).clients


@pytest.mark.parametrize("name", FAMILY)
def test_the_choice_is_that_of_greedy_on_the_weighted_sample(name):
    decided = 0
    for seed, clients in enumerate(np.asarray(sampled(np.arange(6)))):
        gradients, losses = clients_of(seed)
        pool, others = clients[:POOL], clients[POOL:]
        utility, union = np.log1p(losses[pool]), LAST[pool] >= 3

        def extra(chosen, utility=utility, union=union):
            total = utility[chosen].sum()
            return {
                "divfl": np.zeros(POOL),
                "subtrunc": 0.7 * (np.minimum(1.1, total + utility) - min(1.1, total)),
                "unionfl": -0.3 * union,
            }[name]

        participants, gains, value = greedy_in_numpy(gradients, pool, others, 4, extra)
        cohort, _, info = compiled(name, REFERENCES)(jax.random.key(seed), gradients, losses)
        if (gains[:, 0] - gains[:, 1]).min() > 1e-4:  # No tie that rounding could decide.
            decided += 1
            assert cohort.clients.tolist() == participants.tolist()
            np.testing.assert_allclose(info["representation"], value, rtol=1e-4)
            np.testing.assert_allclose(info["objective"], gains[:, 0].sum(), rtol=1e-4)
            added = float(info.get("bonus", 0)) - float(info.get("penalty", 0))
            np.testing.assert_allclose(value + added, gains[:, 0].sum(), rtol=1e-4)
    assert decided >= 3


def test_gains_are_unbiased_with_the_documented_error():
    gradients, _ = clients_of(0)
    pool = jnp.arange(POOL, dtype=jnp.int32) * 3 + 1
    others = np.setdiff1d(np.arange(CLIENTS), np.asarray(pool))

    # From the empty set, and from two participants.
    def gains(function):
        return jnp.stack([function.gains(function.init()), function.gains(with_two(function))])

    def with_two(function):
        return function.add(function.add(function.init(), jnp.int32(2)), jnp.int32(5))

    @jax.jit
    def estimates(keys):
        def one(key):
            sample = representative_selector._sample_references(key, pool, REFERENCES, CLIENTS)
            rows = jnp.asarray(gradients)[sample.clients]
            return gains(facility_location_from_features(rows, sample.items, None, sample.weights))

        exact = gains(facility_location_from_features(jnp.asarray(gradients), pool))
        return jax.vmap(one)(keys), exact

    draws = 4000
    found, exact = (np.asarray(result, float) for result in estimates(keys_of(3, draws)))
    distances = np.linalg.norm(gradients[:, None] - gradients[None, np.asarray(pool)], axis=-1)
    best = np.stack([distances.max(axis=1), distances[:, [2, 5]].min(axis=1)])
    gain = np.maximum(0, best[:, :, None] - distances[None])[:, others]
    count = len(others)
    error = count * np.sqrt((1 - REFERENCES / count) * gain.var(axis=1, ddof=1) / REFERENCES)
    np.testing.assert_allclose(
        exact[0],
        np.maximum(0, best[0][:, None] - distances).sum(axis=0),
        rtol=1e-4,
    )
    off = found.mean(axis=0) - exact
    assert (abs(off) <= 4.5 * error / np.sqrt(draws) + 1e-3).all()
    # The standard deviation of these draws is known to about one part in ninety.
    some = error > 1e-2
    np.testing.assert_allclose(found.std(axis=0)[some], error[some], rtol=0.06)
    assert some.sum() >= 10


@cache
def forced(name, references):
    return FAMILY[name](4, pool=4, num_reference_clients=references)


def test_info_is_unbiased_with_the_stated_error():
    # With four clients available the pool is these, and so is the cohort, whatever is sampled.
    gradients, losses = clients_of(1)
    available = np.isin(np.arange(CLIENTS), [3, 11, 20, 26])
    exact, _, known = compiled("divfl", None, forced)(
        jax.random.key(0), gradients, losses, available
    )
    choose = jax.vmap(compiled("divfl", REFERENCES, forced), in_axes=(0, None, None, None))
    draws = 8000
    cohort, _, info = choose(keys_of(4, draws), gradients, losses, available)
    clients = np.sort(cohort.clients)
    assert (clients == np.array([3, 11, 20, 26])).all()
    order = np.argsort(cohort.clients, axis=1)
    shares = np.take_along_axis(np.asarray(cohort.weights, np.float64), order, axis=1)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    assert shares.min() >= 1 / CLIENTS - 1e-6  # Each represents itself.
    expected = np.asarray(exact.weights)[np.argsort(exact.clients)]
    bound, stated = (
        np.asarray(info[name], np.float64) for name in ("representation_bound", "standard_error")
    )
    for found, right in (
        (shares, expected),
        (bound, known["representation_bound"]),
        (np.asarray(info["representation"], np.float64), known["representation"]),
    ):
        error = found.std(axis=0) / np.sqrt(draws)
        assert (abs(found.mean(axis=0) - right) <= 4.5 * error + 1e-6).all()
    np.testing.assert_allclose(np.mean(stated**2), bound.var(), rtol=0.06)


def test_clients_that_are_not_available_represent_others_but_are_not_chosen():
    gradients, losses = clients_of(2)
    available = np.zeros(CLIENTS, bool)
    available[[2, 9, 17, 21, 28]] = True  # Fewer than the pool.
    for seed in range(5):
        key = jax.random.key(seed)
        cohort, _, _ = compiled("divfl", REFERENCES)(key, gradients, losses, jnp.asarray(available))
        assert available[np.asarray(cohort.clients)].all()


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_client_that_is_not_finite_represents_nothing_and_is_named(name, what):
    named = 0
    for seed in range(4):
        gradients, losses = clients_of(seed)
        (losses if what == "loss" else gradients[:, 2])[7] = np.nan
        cohort, _, info = compiled(name, REFERENCES)(jax.random.key(seed), gradients, losses)
        assert 7 not in cohort.clients
        assert all(np.isfinite(value) for value in info.values())
        found = (int(info["num_nonfinite"]), int(info["first_nonfinite_client"]))
        assert found in [(1, 7), (0, -1)]
        named += found[0]
    assert named  # It is among those that some round reads.


def test_only_the_sample_is_read():
    seen = []

    def gradients(variables, clients=None, project=None):
        seen.append(clients)
        return ClientGradients(jnp.ones(clients.shape), jnp.eye(clients.shape[0]))

    context = context_of(*clients_of(0))._replace(gradients=gradients)
    select = family("divfl", REFERENCES).select
    jax.eval_shape(lambda key: select(key, ((), (), ()), context), jax.random.key(0))
    assert [read.shape for read in seen] == [(POOL + REFERENCES,)]


@pytest.mark.parametrize(
    "source", [Fresh(), Stale(), RefreshEvery(5), Updates(0.1)], ids=lambda source: ""
)
def test_sources_read_some_clients_as_they_read_all(source):
    context = context_of(*clients_of(2))
    memory = source.init(context)
    some = np.array([4, 20, 9], np.int32)
    every, after = source.read(memory, context)
    read, after_some = source.read(memory, context, jnp.asarray(some))
    jax.tree.map(lambda all, few: np.testing.assert_array_equal(all[some], few), every, read)
    jax.tree.map(np.testing.assert_array_equal, after, after_some)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", FAMILY)
def test_references_that_can_not_be_are_refused(name):
    for references in (0, -3, 1.5, True, "all"):
        with pytest.raises(
            ValueError, match=f"num_reference_clients={references!r}: expected an integer >= 1"
        ):
            FAMILY[name](2, pool=3, num_reference_clients=references)
    with pytest.raises(ValueError, match="num_reference_clients"):
        FAMILY[name](2, num_reference_clients=5)
    few = FAMILY[name](2, pool=3, num_reference_clients=31)
    with pytest.raises(ValueError, match="num_reference_clients"):
        few.init(context_of(*clients_of(0)))
