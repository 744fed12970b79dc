"""SubTrunc, UnionFL and DivFL: golden values, limits that coincide, and a second implementation."""

import itertools
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.roles import ClientGradients, Cohort, LocalResult, Variables
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.selectors import representative_selector
from fedjax_fair.selectors.gradients import GradientSource, RefreshEvery, Stale, Updates

LINE = np.array([[0.0], [1.0], [10.0], [11.0]], np.float32)
FAMILY = {
    "divfl": selectors.DivFL,
    "subtrunc": lambda k, **options: selectors.SubTrunc(k, 0.7, **options),
    "unionfl": lambda k, **options: selectors.UnionFL(k, 0.3, 2, **options),
}


def context_of(gradients, losses=None, round=0):
    losses = np.zeros(len(gradients), np.float32) if losses is None else losses
    known = ClientGradients(jnp.asarray(losses, jnp.float32), jnp.asarray(gradients, jnp.float32))
    return make_context(examples_of(len(gradients)), gradients=known, round=round)


@cache
def examples_of(count):
    return make_federation(sizes=(2,) * count).train


@cache
def family(name, cohort_size, **options):
    return FAMILY[name](cohort_size, **options)


@cache
def compiled(selector):
    """Selection as one program, of the first round or from a given state."""

    def select(key, state, gradients, losses, round):
        context = context_of(gradients, losses, round)
        state = selector.init(context) if state is None else state
        return selector.select(key, state, context)

    return jax.jit(select)


def choose(selector, context, state=None, seed=0):
    losses, gradients = context.gradients(None)
    return compiled(selector)(jax.random.key(seed), state, gradients, losses, context.round)


def random_clients(seed, count=12, width=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)), rng.gamma(1.0, size=count)


def test_the_golden_line():
    cohort, _, info = choose(selectors.DivFL(2, candidates="all", scale="sum"), context_of(LINE))
    assert cohort.clients.tolist() == [1, 2]
    assert info["objective"] == 40
    assert info["representation_bound"] * 4 == 2


def test_the_golden_line_with_a_penalty_for_the_last_choice():
    selector = selectors.UnionFL(2, 3.0, 1, candidates="all", scale="sum")
    only_one = np.array([-100, 0, -100, -100], np.int32)
    context = context_of(LINE, round=1)
    cohort, _, info = choose(selector, context, ((), only_one, ()))
    assert cohort.clients.tolist() == [2, 0]
    assert info["repeated"] == 0


@pytest.mark.parametrize("candidates", ["all", 4])
def test_without_their_terms_all_select_equally(candidates):
    family = (
        (selectors.DivFL(4, candidates=candidates), None),
        (selectors.SubTrunc(4, 0.0, candidates=candidates), None),
        (selectors.UnionFL(4, 0.0, 5, candidates=candidates), ((), jnp.full(12, 2, jnp.int32), ())),
    )

    @jax.jit
    def all_choose(gradients, losses, seed):
        context = context_of(gradients, losses, round=3)
        return [choose(selector, context, state, seed)[0].clients for selector, state in family]

    for seed in range(20):
        chosen = [clients.tolist() for clients in all_choose(*random_clients(seed), seed)]
        assert chosen[0] == chosen[1] == chosen[2]


@partial(jax.jit, static_argnames=("phi", "scale"))
def subtrunc_chooses(gradients, losses, lam, b, phi, scale):
    selector = selectors.SubTrunc(5, lam, b, phi=phi, candidates="all", scale=scale)
    return choose(selector, context_of(gradients, losses))


@jax.jit
def unionfl_chooses(gradients, last, mu, window):
    selector = selectors.UnionFL(4, mu, window, candidates="all")
    return choose(selector, context_of(gradients, round=7), ((), last, ()))


def assert_greedy(
    chosen, gradients, factor, bonus=lambda total: 0.0, phi=None, penalty=None, pool=None
):
    """Checks in float64 that each selection is the best, or as good as the best.

    Two clients who are each other's nearest gain the same once all others are represented, so that
    rounding may decide between them.
    """
    count = len(gradients)
    phi = np.zeros(count) if phi is None else phi
    penalty = np.zeros(count) if penalty is None else penalty
    distances = np.linalg.norm(gradients[:, None] - gradients[None], axis=-1)
    nearest, total = distances.max(axis=1), 0.0
    for place, selection in enumerate(chosen):
        gains = np.full(count, -np.inf)
        for e in set(range(count) if pool is None else pool) - set(chosen[:place]):
            closer = np.maximum(0, nearest - distances[:, e]).sum()
            extra = bonus(total + phi[e]) - bonus(total)
            gains[e] = factor * closer + extra - penalty[e]
        assert gains[selection] >= gains.max() - 1e-6 * distances.max()
        nearest, total = np.minimum(nearest, distances[:, selection]), total + phi[selection]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lam=st.floats(0, 3, width=32, allow_subnormal=False),
    b=st.floats(0, 6, width=32, allow_subnormal=False),
    phi=st.sampled_from(["log1p", "identity"]),
    scale=st.sampled_from(["mean", "sum"]),
)
def test_subtrunc_equals_the_specification(seed, lam, b, phi, scale):
    gradients, losses = random_clients(seed)
    cohort, _, info = subtrunc_chooses(gradients, losses, lam, b, phi, scale)
    utility = np.log1p(losses) if phi == "log1p" else losses
    chosen = cohort.clients.tolist()
    assert_greedy(
        chosen,
        gradients,
        1 / 12 if scale == "mean" else 1,
        bonus=lambda total: lam * min(b, total),
        phi=utility,
    )
    bonus = lam * min(b, utility[chosen].sum())
    np.testing.assert_allclose(info["bonus"], bonus, rtol=1e-5, atol=1e-30)
    before = np.cumsum(utility[chosen]) - utility[chosen]
    np.testing.assert_allclose(info["unsaturated"], np.mean(before < b), rtol=1e-6)
    np.testing.assert_allclose(
        info["objective"], info["representation"] + info["bonus"], rtol=1e-5, atol=1e-6
    )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), mu=st.floats(0, 3, width=32), window=st.integers(1, 6))
def test_unionfl_equals_the_specification(seed, mu, window):
    gradients, _ = random_clients(seed)
    rng = np.random.default_rng(seed)
    history = [rng.choice(12, 3, replace=False) for _ in range(7)]
    last = np.array(selectors.UnionFL(4).init(context_of(gradients))[1])
    for round, clients in enumerate(history):
        last[clients] = round
    cohort, _, info = unionfl_chooses(gradients, last, mu, window)
    union = np.isin(np.arange(12), np.concatenate(history[-window:]))
    chosen = cohort.clients.tolist()
    assert_greedy(chosen, gradients, 1 / 12, penalty=mu * union)
    assert info["repeated"] == union[chosen].sum()


def test_the_window_holds_the_last_cohorts_only():
    gradients, _ = random_clients(0)
    selector = selectors.UnionFL(3, 100.0, 2, candidates="all")

    @jax.jit
    def six_rounds(gradients):
        def step(state, round):
            context = context_of(gradients)._replace(round=round)
            cohort, state, info = selector.select(jax.random.key(0), state, context)
            return selector.observe(state, cohort, None, context), (cohort.clients, info)

        start = selector.init(context_of(gradients))
        return jax.lax.scan(step, start, jnp.arange(6, dtype=jnp.int32))[1]

    clients, info = six_rounds(gradients)
    cohorts = [set(row) for row in clients.tolist()]
    for round in range(6):
        assert not cohorts[round] & set().union(*cohorts[max(0, round - 2) : round])
    assert (info["repeated"] == 0).all()
    # Four disjoint threes would cover all twelve; with a window of two the third before returns.
    assert cohorts[3] == cohorts[0]


@pytest.mark.parametrize("name", FAMILY)
def test_permuting_clients_permutes_the_choice(name):
    # Of two, because the last of many may tie.
    selector = family(name, 2, candidates="all")
    choose_on = jax.jit(lambda *known: choose(selector, context_of(*known))[0].clients)
    for seed in range(10):
        gradients, losses = random_clients(seed)
        order = np.random.default_rng(seed).permutation(12)
        chosen, moved = choose_on(gradients, losses), choose_on(gradients[order], losses[order])
        assert order[moved].tolist() == chosen.tolist()


@pytest.mark.parametrize("name", FAMILY)
def test_the_bounds_of_the_representation_hold(name):
    for seed in range(10):
        gradients, losses = random_clients(seed)
        cohort, _, info = choose(family(name, 4), context_of(gradients, losses), seed=seed)
        chosen = np.asarray(cohort.clients)
        mean = gradients.mean(axis=0)
        close = {"rtol": 1e-4, "atol": 1e-6}
        np.testing.assert_allclose(
            info["approximation_error"],
            np.linalg.norm(gradients[chosen].mean(axis=0) - mean),
            **close,
        )
        nearest = np.linalg.norm(gradients[:, None] - gradients[chosen][None], axis=-1)
        shares = np.bincount(nearest.argmin(axis=1), minlength=4) / 12
        np.testing.assert_allclose(cohort.weights, shares, rtol=1e-6)
        np.testing.assert_allclose(
            info["representation_error"],
            np.linalg.norm(shares @ gradients[chosen] - mean),
            **close,
        )
        np.testing.assert_allclose(
            info["representation_bound"], nearest.min(axis=1).mean(), **close
        )
        assert info["representation_error"] <= info["representation_bound"] * (1 + 1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {"candidates": "all"}) for name in FAMILY),
        ("divfl", {"candidates": 3}),
        ("subtrunc", {"candidates": "all", "pool": 12}),
        ("unionfl", {"candidates": "all", "gradients": "stale"}),
    ],
)
def test_nonfinite_clients_are_excluded_and_named(name, options):
    # In a cohort of all clients, the last one is selected if no other is left.
    for bad, what in itertools.product((np.nan, np.inf), ("loss", "gradient")):
        gradients, losses = random_clients(5)
        (losses if what == "loss" else gradients[:, 2])[7] = bad
        cohort, _, info = choose(family(name, 12, **options), context_of(gradients, losses))
        assert sorted(cohort.clients[:-1].tolist()) == [i for i in range(12) if i != 7]
        assert cohort.clients[-1] == 7
        assert (info["num_nonfinite"], info["first_nonfinite_client"]) == (1, 7)
        assert all(np.isfinite(value) for value in info.values())


@pytest.mark.parametrize("pool", [None, 12])
def test_stored_gradients_recover_from_nonfinite_values(pool):
    gradients, losses = random_clients(5)
    spoiled = gradients.copy()
    spoiled[7, 2] = np.inf
    selector = selectors.DivFL(11, candidates="all", pool=pool, gradients="stale")
    cohort = Cohort(jnp.array([3, 7], jnp.int32), jnp.full(2, 0.5))

    @jax.jit
    def choices(gradients, spoiled, losses):
        good, bad = context_of(gradients, losses), context_of(spoiled, losses)
        states = [selector.init(good)]
        for context in (bad, good):
            states.append(selector.observe(states[-1], cohort, None, context))
        return [selector.select(jax.random.key(0), state, good)[::2] for state in states]

    (first, _), (without, info), (again, _) = choices(gradients, spoiled, losses)
    assert sorted(without.clients.tolist()) == [i for i in range(12) if i != 7]
    assert (info["num_nonfinite"], info["first_nonfinite_client"]) == (1, 7)
    assert all(np.isfinite(value) for value in info.values())
    assert 7 in first.clients
    assert again.clients.tolist() == first.clients.tolist()


def test_nonfinite_clients_do_not_affect_others():
    gradients, losses = random_clients(6)
    options = {"candidates": "all", "scale": "sum"}
    gradients[4] = np.nan
    chosen, _, _ = choose(selectors.SubTrunc(4, 0.5, **options), context_of(gradients, losses))
    rest = np.delete(np.arange(12), 4)
    alone, _, _ = choose(
        selectors.SubTrunc(4, 0.5, **options), context_of(gradients[rest], losses[rest])
    )
    assert rest[alone.clients].tolist() == chosen.clients.tolist()


class Recomputed(GradientSource):
    """A source that lets nothing be kept that was computed of its gradients."""

    source: GradientSource

    def init(self, context):
        return self.source.init(context)

    def read(self, memory, context, clients=None):
        return self.source.read(memory, context, clients)

    def observe(self, memory, cohort, results, context):
        return self.source.observe(memory, cohort, results, context)


@pytest.mark.parametrize("source", [Stale(), Updates(0.1), RefreshEvery(2)])
def test_kept_distances_are_those_of_all_gradients(source):
    """In six rounds with other gradients, of which every second one has dropouts."""
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(6, 12, 5)).astype(np.float32)
    losses = rng.gamma(1.0, size=(6, 12)).astype(np.float32)
    responded = np.array([[True] * 3, [True, False, True]] * 3)

    @jax.jit
    def rounds_with(gradients, losses, responded):
        def step(state, values):
            gradients, losses, responded, round = values
            context = context_of(gradients, losses)._replace(round=round)
            cohort, state, info = selector.select(jax.random.key(0), state, context)
            cohort = cohort._replace(responded=responded)
            update = Variables({"w": jnp.where(responded[:, None], gradients[:3], 0)}, {})
            results = LocalResult(update, losses[:3], jnp.full(3, 2, jnp.int32))
            return selector.observe(state, cohort, results, context), (cohort.clients, info)

        start = selector.init(context_of(gradients[0], losses[0]))
        rounds = jnp.arange(6, dtype=jnp.int32)
        return jax.lax.scan(step, start, (gradients, losses, responded, rounds))

    runs = []
    for kept in (source, Recomputed(source)):
        selector = selectors.UnionFL(3, 0.1, 2, candidates="all", gradients=kept)
        rounds_with.clear_cache()
        runs.append(rounds_with(gradients, losses, responded))
    (state, (clients, info)), (expected_state, (expected_clients, expected)) = runs
    if source.updates_only_responders:
        memory, _, distances = state
        kept = np.asarray(memory.gradient, np.float64)
        direct = np.linalg.norm(kept[:, None] - kept, axis=-1)
        np.testing.assert_allclose(distances, direct, rtol=1e-5)
    assert expected_state[2] == ()
    np.testing.assert_array_equal(clients, expected_clients)
    for name, values in expected.items():
        np.testing.assert_allclose(info[name], values, rtol=1e-4, atol=1e-6)


def test_the_table_of_gradients_is_renewed_in_its_place(model):
    data = make_federation(sizes=(3,) * 50)
    selector = selectors.DivFL(3, gradients="stale")
    round = Round(model, selector, solvers.SGD(0.1, 2, steps=3), aggregators.Mean())
    state = jax.eval_shape(round.init, jax.random.key(0), data)
    shape = state.selector[0].gradient.shape
    rounds = jax.jit(run, static_argnums=(0, 3), donate_argnums=1)
    program = rounds.lower(round, state, data, 4).compile().as_text()
    table = rf"= f32\[{shape[0]},{shape[1]}\]\S* "
    assert re.search(table + r"(fusion|scatter)\(", program)
    assert not re.search(table + r"copy\(", program)


# A pool of candidates.


@partial(jax.jit, static_argnums=1)
def draw_pools(seeds, pool):
    context = context_of(jnp.zeros((12, 1)), jnp.zeros(12))

    def draw(seed):
        key, _ = jax.random.split(jax.random.key(seed))
        return representative_selector._pool(key, context, pool)

    return jax.vmap(draw)(seeds)


def drawn(seeds, pool):
    """Who is in the pools that a selector draws with these seeds, ``[seeds, pool]``."""
    return np.asarray(draw_pools(np.arange(seeds), pool))


@pytest.mark.parametrize("name", FAMILY)
def test_a_pool_of_all_clients_chooses_as_no_pool_does(name):
    @jax.jit
    def both(gradients, losses):
        context = context_of(gradients, losses)
        pools = (family(name, 4, candidates="all", pool=pool) for pool in (None, 12))
        return [choose(selector, context)[::2] for selector in pools]

    for seed in range(10):
        (exact, info), (pooled, info_pooled) = both(*random_clients(seed))
        # Later ones may be each other's nearest, so that rounding decides; they are worth the same.
        assert pooled.clients[:2].tolist() == exact.clients[:2].tolist()
        assert info.keys() == info_pooled.keys()
        for key in ("objective", "representation", "representation_bound"):
            np.testing.assert_allclose(info_pooled[key], info[key], rtol=1e-4)


@pytest.mark.parametrize("name", FAMILY)
def test_nonfinite_clients_of_a_pool_represent_no_others(name):
    # With four clients available the pool is these, and so is the cohort.
    available = np.isin(np.arange(12), [1, 4, 7, 10])
    last = jnp.zeros(12, jnp.int32)
    state = ((), last if name == "unionfl" else (), ())
    selector = family(name, 4, candidates="all", pool=4)

    @jax.jit
    def choose_on(gradients, losses):
        context = context_of(gradients, losses)._replace(available=jnp.asarray(available))
        return selector.select(jax.random.key(0), state, context)[::2]

    for seed in range(5):
        gradients, losses = random_clients(seed)
        gradients[7] = np.nan
        cohort, info = choose_on(gradients, losses)
        chosen = np.asarray(cohort.clients)
        assert sorted(chosen) == [1, 4, 7, 10]
        finite, members = np.delete(np.arange(12), 7), chosen[chosen != 7]
        distances = np.linalg.norm(gradients[finite, None] - gradients[members], axis=-1)
        counts = np.bincount(members[distances.argmin(axis=1)], minlength=12)
        np.testing.assert_allclose(cohort.weights, counts[chosen] / 11, rtol=1e-6)
        np.testing.assert_allclose(
            info["representation_bound"], distances.min(axis=1).mean(), rtol=1e-4
        )


@pytest.mark.parametrize("name", FAMILY)
def test_nonfinite_clients_do_not_define_the_phantom(name):
    @jax.jit
    def both(gradients, losses):
        context = context_of(gradients, losses)
        pools = (family(name, 4, candidates="all", pool=pool) for pool in (None, 12))
        return [choose(selector, context)[2] for selector in pools]

    for seed in range(5):
        gradients, losses = random_clients(seed)
        gradients += 5  # Masked rows are zeros, which are now far from the others.
        gradients[7] = np.nan
        info, info_pooled = both(gradients, losses)
        for key in ("objective", "representation"):
            np.testing.assert_allclose(info_pooled[key], info[key], rtol=1e-3)


@pytest.mark.parametrize("pool", [None, 4])
@pytest.mark.parametrize("name", FAMILY)
def test_nonfinite_members_of_a_cohort_represent_no_client(name, pool):
    # Of four clients that are available one is not finite: its masked gradient, zeros, is close to
    # those of many clients.
    available = np.isin(np.arange(12), [1, 4, 7, 10])
    state = ((), jnp.zeros(12, jnp.int32) if name == "unionfl" else (), ())
    selector = family(name, 4, candidates="all", pool=pool)

    @jax.jit
    def choose_on(gradients, losses):
        context = context_of(gradients, losses)._replace(available=jnp.asarray(available))
        return selector.select(jax.random.key(0), state, context)[::2]

    finite = np.delete(np.arange(12), 7)
    for seed in range(5):
        gradients, losses = random_clients(seed)
        gradients[7] = np.nan
        cohort, info = choose_on(gradients, losses)
        chosen = np.asarray(cohort.clients)
        assert {1, 4, 10} < set(chosen.tolist())
        distances = np.linalg.norm(gradients[finite, None] - gradients, axis=-1)
        to_pool = distances[:, [1, 4, 10] if pool else finite].max(axis=1)
        to_members = distances[:, chosen[chosen != 7]].min(axis=1)
        expected = np.maximum(to_pool - to_members, 0).sum() / 12
        np.testing.assert_allclose(info["representation"], expected, rtol=1e-3)


@pytest.mark.parametrize("name", FAMILY)
def test_greedy_among_the_pool_represents_all_clients(name):
    last = jnp.arange(12, dtype=jnp.int32) % 4
    state = ((), last if name == "unionfl" else (), ())
    selector = family(name, 4, candidates="all", pool=7)
    choose_on = jax.jit(lambda key, *known: selector.select(key, state, context_of(*known, 5)))
    for seed, pool in enumerate(drawn(10, 7)):
        gradients, losses = random_clients(seed)
        cohort, _, info = choose_on(jax.random.key(seed), gradients, losses)
        chosen = cohort.clients.tolist()
        assert_greedy(
            chosen,
            gradients,
            1 / 12,
            bonus=(lambda total: 0.7 * min(1.1, total)) if name == "subtrunc" else lambda total: 0,
            phi=np.log1p(losses),
            penalty=0.3 * (np.asarray(last) >= 3) if name == "unionfl" else None,
            pool=pool,
        )
        distances = np.linalg.norm(gradients[:, None] - gradients[pool], axis=-1)
        participants = np.isin(pool, chosen)
        representation = (distances.max(axis=1) - distances[:, participants].min(axis=1)).mean()
        np.testing.assert_allclose(info["representation"], representation, rtol=1e-4)


def test_pools_are_uniform_and_without_repetition():
    pools = drawn(300, 7)
    assert (np.diff(pools) > 0).all()
    # Five standard deviations of a count.
    counts = np.bincount(pools.ravel(), minlength=12)
    assert abs(counts - 175).max() < 5 * np.sqrt(300 * 7 / 12 * 5 / 12)
    assert len(np.unique(pools[:10], axis=0)) == 10


def test_candidates_are_drawn_from_the_pool():
    context = context_of(random_clients(1)[0])
    stochastic, greedy = (
        selectors.DivFL(4, candidates=candidates, pool=7) for candidates in (2, "all")
    )

    @jax.jit
    @jax.vmap
    def select(seed):
        key, state = jax.random.key(seed), ((), (), ())
        return [one.select(key, state, context)[0].clients for one in (stochastic, greedy)]

    cohorts, greedily = select(np.arange(10))
    for chosen, pool in zip(cohorts.tolist(), drawn(10, 7), strict=True):
        assert np.isin(chosen, pool).all()
        assert len(set(chosen)) == 4
    assert (np.sort(cohorts) != np.sort(greedily)).any()


def test_settings_are_traced():
    gradients, losses = random_clients(2)
    context = context_of(gradients, losses, round=3)

    @jax.jit
    def sweep(lam, b, mu, window):
        trunc, _, _ = choose(selectors.SubTrunc(4, lam, b, candidates="all"), context)
        union, _, _ = choose(
            selectors.UnionFL(4, mu, window, candidates="all"),
            context,
            ((), jnp.arange(12, dtype=jnp.int32) % 4, ()),
        )
        return trunc.clients, union.clients

    values = list(itertools.product((0.0, 2.0), (0.5, 9.0), (0.0, 1.0), (1, 3)))
    together = jax.vmap(sweep)(*map(np.array, zip(*values, strict=True)))
    for i, (lam, b, mu, window) in enumerate(values):
        trunc, union = sweep(lam, b, mu, window)
        np.testing.assert_array_equal(together[0][i], trunc)
        np.testing.assert_array_equal(together[1][i], union)
    assert len(np.unique(together[0], axis=0)) > 1
    assert len(np.unique(together[1], axis=0)) > 1


@pytest.mark.usefixtures("as_users_call")
def test_bad_settings_are_named():
    for message, make in {
        "cohort_size=3: expected an integer >= 1 and <= 2": lambda: selectors.DivFL(3, pool=2),
        "candidates=6: expected an integer >= 1 and <= 5": lambda: selectors.DivFL(
            3, pool=5, candidates=6
        ),
    }.items():
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", FAMILY)
def test_more_than_there_are_is_refused_before_a_round_begins(name):
    context = context_of(LINE)
    with pytest.raises(ValueError, match="cohort_size=5"):
        family(name, 5).init(context)
    with pytest.raises(ValueError, match="candidates=9"):
        family(name, 2, candidates=9).init(context)
    with pytest.raises(ValueError, match="pool=9"):
        family(name, 2, candidates="all", pool=9).init(context)
