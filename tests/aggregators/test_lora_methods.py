"""Federated methods of low-rank adapters: identities, limits and references in NumPy."""

from functools import cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import NUM_CLASSES, linear_model, make_context, make_federation
from jaxtyping import PyTree

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, models, selectors, solvers
from fedjax_fair.aggregators.flexlora import low_rank
from fedjax_fair.roles import Cohort, LocalResult, Selector, Variables
from fedjax_fair.rounds.round import Round

DATA = make_federation()
SIZES = np.asarray(DATA.train.sizes)
SHARES = SIZES / SIZES.sum()
ADAPTED = ("body/Dense_0/kernel", "head/kernel")
SIDES = {"body/Dense_0/kernel": (4, 5), "head/kernel": (5, NUM_CLASSES)}
SGD = solvers.SGD(0.3, 4, steps=5)


class Only(Selector):
    """Always selects the same clients."""

    clients: PyTree

    def select(self, key, state, context):
        clients = jnp.asarray(self.clients, jnp.int32)
        return Cohort(clients, jnp.full(len(clients), 1 / len(clients))), state, {}


@cache
def network():
    return models.mlp(NUM_CLASSES, hidden=(5,))


@cache
def base():
    return network().init(jax.random.key(0), DATA.train.features[:1])


def adapted(rank=2, alpha=4.0, **settings):
    return models.lora(network(), base(), rank=rank, alpha=alpha, **settings)


def whole_cohort(model, solver, aggregator, **settings):
    return Round(model, selectors.Full(), solver, aggregator, **settings)


def states(round, num_rounds, key=1, start=None):
    """Returns the states before and after each round, and the info of the rounds."""
    step = jax.jit(round.step)
    found, infos = [round.init(jax.random.key(key), DATA) if start is None else start], []
    for _ in range(num_rounds):
        state, info = step(found[-1], DATA)
        found.append(state)
        infos.append(info)
    return found, infos


def products(model, variables):
    """Returns the change of each target kernel, in float64."""
    merged, before = model.merge(variables).params, base().params
    found = {}
    for path in ADAPTED:
        *layers, name = path.split("/")
        new, old = merged, before
        for layer in (*layers, name):
            new, old = new[layer], old[layer]
        found[path] = np.asarray(new, np.float64) - np.asarray(old, np.float64)
    return found


def clients_products(round):
    """Returns a function of a state to the changes of clients that each train alone."""

    @jax.jit
    def train(client, state):
        alone = round.replace(selector=Only((client,)), aggregator=aggregators.Mean())
        return alone.step(state, DATA)[0].variables

    def of_state(state):
        trained = [train(jnp.int32(client), state) for client in range(len(SIZES))]
        return [products(round.model, variables) for variables in trained]

    return of_state


def mean_products(found):
    return {
        path: np.average([one[path] for one in found], axis=0, weights=SHARES) for path in ADAPTED
    }


def relative_error(actual, expected):
    error = sum(np.sum((actual[path] - expected[path]) ** 2) for path in ADAPTED)
    return np.sqrt(error / sum(np.sum(expected[path] ** 2) for path in ADAPTED))


# Aggregators alone, on factors of three clients.


def draw_factors(rank=2, num_clients=3, seed=0):
    rng = np.random.default_rng(seed)
    return {
        path: (
            rng.normal(size=(num_clients, rows, rank)),
            rng.normal(size=(num_clients, rank, columns)),
        )
        for path, (rows, columns) in SIDES.items()
    }


WEIGHTS = np.array([5, 3, 1]) / 9


def combine(aggregator, factors):
    """Returns the new factors, their error and the aggregation, in the precision of factors."""
    clients = jnp.array([2, 0, 3])  # Of 5, 3 and 1 examples.
    num_clients = next(iter(factors.values()))[0].shape[0]
    clients = clients[:num_clients]
    pairs = {path: {"a": jnp.asarray(a), "b": jnp.asarray(b)} for path, (a, b) in factors.items()}
    start = jax.tree.map(lambda leaf: leaf[0] + 1, pairs)  # The global factors.
    updates = jax.tree.map(lambda leaf, old: leaf - old[None], pairs, start)
    cohort = Cohort(clients, jnp.full(num_clients, 1 / num_clients))
    context = make_context(DATA.train, Variables({"adapters": start}, {}))
    results = LocalResult(
        Variables({"adapters": updates}, {}),
        jnp.zeros(num_clients),
        jnp.ones(num_clients, jnp.int32),
    )
    if aggregator.compute_weights is not None:
        weights = aggregator.compute_weights((), cohort, context)
        total = context.weighted_sum(weights, results.update)
        results = results._replace(weighted_sum=total)
    update, _, aggregation = aggregator.aggregate((), cohort, results, context)
    new = jax.tree.map(jnp.add, start, update.params["adapters"])
    return {path: (np.asarray(p["a"]), np.asarray(p["b"])) for path, p in new.items()}, aggregation


def reference_mean(factors, weights=WEIGHTS):
    return {path: np.einsum("k,kir,kro->io", weights, a, b) for path, (a, b) in factors.items()}


def averaged(factors):
    return {
        path: (np.tensordot(WEIGHTS, a, 1), np.tensordot(WEIGHTS, b, 1))
        for path, (a, b) in factors.items()
    }


def times(factors):
    return {path: a @ b for path, (a, b) in factors.items()}


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def test_fedex_has_the_mean_of_the_products(double):
    factors = draw_factors()
    new, aggregation = combine(aggregators.FedEx(), factors)
    for path, expected in reference_mean(factors).items():
        a, b = new[path]
        np.testing.assert_allclose(a, averaged(factors)[path][0], rtol=1e-12)
        np.testing.assert_allclose(b, averaged(factors)[path][1], rtol=1e-12)
        total = a @ b + aggregation.state_update["residual"][path]
        np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("aggregator", [aggregators.FedIT, aggregators.FedEx])
def test_the_error_of_averaged_factors_is_that_of_their_product(double, aggregator):
    factors = draw_factors()
    _, aggregation = combine(aggregator(), factors)
    expected = relative_error(times(averaged(factors)), reference_mean(factors))
    np.testing.assert_allclose(aggregation.info["error"], expected, rtol=1e-12)


@pytest.mark.parametrize("shared", [0, 1])
def test_a_common_factor_leaves_no_residual(shared):
    """In float32, exactly: of a power of two of clients, whose mean does not round."""
    factors = {
        path: tuple(
            np.repeat(one[:1], 2, 0) if index == shared else one for index, one in enumerate(pair)
        )
        for path, pair in draw_factors(num_clients=2).items()
    }
    factors = jax.tree.map(np.float32, factors)
    _, aggregation = combine(aggregators.FedEx("uniform"), factors)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(aggregation.state_update))
    assert aggregation.info["error"] == 0


@pytest.mark.parametrize("ranks", [(2, 2, 2), (1, 2, 1)])
def test_flexlora_is_a_singular_value_decomposition_of_the_mean_product(double, ranks):
    factors = draw_factors()
    for a, b in factors.values():
        for client, rank in enumerate(ranks):
            a[client, :, rank:], b[client, rank:] = 0, 0
    new, aggregation = combine(aggregators.FlexLoRA(), factors)
    best, means = {}, reference_mean(factors)
    for path, mean in means.items():
        u, values, vt = np.linalg.svd(mean, full_matrices=False)
        best[path] = (u[:, :2] * values[:2]) @ vt[:2]
        a, b = new[path]
        np.testing.assert_allclose(a @ b, best[path], rtol=1e-10, atol=1e-10)
        # A client of rank 1 gets the best factors of rank 1.
        first = values[0] * np.outer(u[:, 0], vt[0])
        np.testing.assert_allclose(a[:, :1] @ b[:1], first, rtol=1e-10, atol=1e-10)
        largest = a[np.abs(a).argmax(0), range(2)]
        assert (largest > 0).all()
    error = aggregation.info["error"]
    np.testing.assert_allclose(error, relative_error(best, means), rtol=1e-10)
    _, of_means = combine(aggregators.FedIT(), factors)
    assert error <= of_means.info["error"]


def test_flexlora_of_enough_rank_is_the_mean_of_the_products(double):
    factors = draw_factors(rank=3)
    for a, b in factors.values():
        a[:, :, 1:], b[:, 1:] = 0, 0
    new, aggregation = combine(aggregators.FlexLoRA(), factors)
    for path, expected in reference_mean(factors).items():
        np.testing.assert_allclose(times(new)[path], expected, rtol=1e-10, atol=1e-10)
    assert aggregation.info["error"] < 1e-12


def test_flexlora_can_train_directions_that_no_client_had(double):
    """Factors that are both zero would have no gradient, and stay zero forever."""
    a, b = low_rank(jnp.ones((4, 1)) * jnp.array([[1.0, 0.0]]), jnp.eye(2, 5), rank=2)
    np.testing.assert_allclose(a.T @ a, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(b[1], 0, atol=1e-12)


def test_lora_fair_projects_the_mean_product(double):
    """With a vanishing penalty, on the columns of the mean of A."""
    factors = draw_factors()
    new, aggregation = combine(aggregators.LoRAFair(strength=1e-12), factors)
    for path, mean in reference_mean(factors).items():
        a = averaged(factors)[path][0]
        np.testing.assert_allclose(new[path][0], a, rtol=1e-12)
        np.testing.assert_allclose(new[path][1], np.linalg.lstsq(a, mean)[0], rtol=1e-7)
    _, of_means = combine(aggregators.FedIT(), factors)
    assert aggregation.info["error"] < of_means.info["error"]
    expected = relative_error(times(new), reference_mean(factors))
    np.testing.assert_allclose(aggregation.info["error"], expected, rtol=1e-10)


def test_lora_fair_solves_the_ridge_regression(double):
    factors = draw_factors()
    new, _ = combine(aggregators.LoRAFair(strength=0.5), factors)
    for path, mean in reference_mean(factors).items():
        a, b = averaged(factors)[path]
        stacked = np.vstack([a, np.sqrt(0.5) * np.eye(2)])
        target = np.vstack([mean - a @ b, np.zeros((2, b.shape[1]))])
        np.testing.assert_allclose(new[path][1] - b, np.linalg.lstsq(stacked, target)[0], rtol=1e-9)


def test_lora_fair_of_a_great_strength_is_fedit(double):
    factors = draw_factors()
    for objective, strength in (("least_squares", 1e12), ("cosine", 1e3)):
        aggregator = aggregators.LoRAFair(strength=strength, objective=objective, step_size=1e-4)
        new, _ = combine(aggregator, factors)
        for path, (a, b) in averaged(factors).items():
            np.testing.assert_allclose(new[path][0], a, rtol=1e-12)
            np.testing.assert_allclose(
                new[path][1], b, atol=1e-3 if objective == "cosine" else 1e-9
            )


def test_lora_fair_of_full_rank_is_exact(double):
    """A square mean of A can represent every product."""
    rng = np.random.default_rng(0)
    factors = {"kernel": (rng.normal(size=(3, 3, 3)), rng.normal(size=(3, 3, 4)))}
    new, aggregation = combine(aggregators.LoRAFair(strength=1e-14), factors)
    expected = reference_mean(factors)["kernel"]
    np.testing.assert_allclose(times(new)["kernel"], expected, rtol=1e-6)
    assert aggregation.info["error"] < 1e-8


def test_lora_fair_of_the_cosine_finds_a_minimum(double):
    factors = draw_factors()
    aggregator = aggregators.LoRAFair(objective="cosine", num_steps=20_000, step_size=0.1)
    new, _ = combine(aggregator, factors)
    for path, mean in reference_mean(factors).items():
        a, start = averaged(factors)[path]

        def objective(b, a=a, start=start, mean=mean):
            cosine = np.sum(mean * (a @ b)) / np.linalg.norm(mean) / np.linalg.norm(a @ b)
            return 1 - cosine + 0.01 * np.sum((b - start) ** 2)

        found, rng = objective(new[path][1]), np.random.default_rng(0)
        assert found < objective(start)
        nearby = [new[path][1] + 1e-3 * rng.normal(size=start.shape) for _ in range(50)]
        assert all(objective(b) > found - 1e-9 for b in nearby)


def test_hetlora_weights_clients_by_the_norms_of_their_products(double):
    factors = draw_factors()
    new, aggregation = combine(aggregators.HetLoRAMean(), factors)
    norms = [
        np.sqrt(sum(np.sum((a[client] @ b[client]) ** 2) for a, b in factors.values()))
        for client in range(3)
    ]
    np.testing.assert_allclose(aggregation.info["product_norm"], norms, rtol=1e-12)
    np.testing.assert_allclose(aggregation.weights, norms / np.sum(norms), rtol=1e-12)
    for path, pair in factors.items():
        for actual, factor in zip(new[path], pair, strict=True):
            expected = np.average(factor, axis=0, weights=norms)
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_hetlora_of_equal_norms_has_equal_weights(scale):
    """Also of products that are zero, as before the first step."""
    factors = jax.tree.map(lambda one: np.float32(scale * one), draw_factors())
    factors = {path: (a[[0, 0, 0]], b[[0, 0, 0]]) for path, (a, b) in factors.items()}
    _, aggregation = combine(aggregators.HetLoRAMean(), factors)
    np.testing.assert_allclose(aggregation.weights, np.full(3, 1 / 3), rtol=1e-6)


# Rounds.


def test_fedit_is_the_mean_of_all_arrays():
    model = adapted(trainable=("head/bias",))
    (*_, plain), _ = states(whole_cohort(model, SGD, aggregators.Mean("num_examples")), 2)
    (*_, fedit), infos = states(whole_cohort(model, SGD, aggregators.FedIT()), 2)
    jax.tree.map(np.testing.assert_array_equal, fedit.variables, plain.variables)
    assert infos[1].aggregator["error"] > 0.01


def test_one_step_from_zero_leaves_a_and_no_error():
    """B is zero, so the gradient of A is, and the mean of B is the mean of the products."""
    step = SGD.replace(steps=1)
    (before, after), (info,) = states(whole_cohort(adapted(), step, aggregators.FedIT()), 1)
    for path in ADAPTED:
        old, new = (state.variables.params["adapters"][path] for state in (before, after))
        np.testing.assert_array_equal(new["a"], old["a"])
        assert np.abs(new["b"]).max() > 0
    assert info.aggregator["error"] == 0


@pytest.mark.parametrize(
    ("make", "solver", "aggregator"),
    [
        (models.with_residual, SGD, aggregators.FedEx()),
        (models.with_fixed_a, SGD, aggregators.Mean("num_examples")),
        (lambda model: model, solvers.RoLoRA(SGD), aggregators.Mean("num_examples")),
    ],
    ids=["fedex", "ffa", "rolora"],
)
def test_the_model_is_the_mean_of_the_clients_models(make, solver, aggregator):
    round = whole_cohort(make(adapted()), solver, aggregator)
    found, _ = states(round, 4)
    trained = clients_products(round)
    for before, after in pairwise(found):
        expected = mean_products(trained(before))
        assert relative_error(products(round.model, after.variables), expected) < 3e-6


def test_averaged_factors_are_not_the_mean_of_the_clients_models():
    """So that the test of exact methods can fail."""
    round = whole_cohort(adapted(), SGD, aggregators.FedIT())
    (before, after), (info,) = states(round, 1)
    expected = mean_products(clients_products(round)(before))
    error = relative_error(products(round.model, after.variables), expected)
    np.testing.assert_allclose(error, info.aggregator["error"], rtol=1e-4)
    assert error > 0.1


def test_fedex_of_one_client_is_fedit():
    of_fedex = Round(models.with_residual(adapted()), Only((1,)), SGD, aggregators.FedEx())
    (*_, fedex), infos = states(of_fedex, 3)
    (*_, fedit), _ = states(Round(adapted(), Only((1,)), SGD, aggregators.FedIT()), 3)
    jax.tree.map(np.testing.assert_array_equal, fedex.variables.params, fedit.variables.params)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(fedex.variables.state))
    assert infos[0].traffic.down == infos[0].traffic.up


def test_fedex_counts_the_factors_of_the_change_or_the_change():
    model = models.with_residual(adapted())
    factors = 4 * sum(2 * (rows + columns) for rows, columns in SIDES.values())
    for clients in ((1, 4), (0, 1, 2, 3, 4, 5)):
        round = Round(model, Only(clients), SGD, aggregators.FedEx())
        traffic = jax.eval_shape(
            round.step, jax.eval_shape(round.init, jax.random.key(0), DATA), DATA
        )
        width = 2 * (len(clients) - 1)
        change = sum(
            min(width * (rows + columns), rows * columns) for rows, columns in SIDES.values()
        )
        assert traffic[1].traffic.up == factors
        assert traffic[1].traffic.down == factors + 4 * change


def test_clients_neither_store_nor_send_residuals():
    model = models.with_residual(adapted())
    round = whole_cohort(model, solvers.Ditto(SGD), aggregators.FedEx())
    (before, *_, after), _ = states(round, 2)
    trained = sum(leaf.size for leaf in jax.tree.leaves(before.variables.params))
    assert before.clients.arrays["float32"].shape == (len(SIZES), trained)
    # Their models have the present residual.
    personal = round.personalize(after, DATA)(jnp.int32(2))
    np.testing.assert_array_equal(
        personal.state["residual"]["head/kernel"], after.variables.state["residual"]["head/kernel"]
    )
    assert np.abs(personal.state["residual"]["head/kernel"]).max() > 0


def test_no_array_of_clients_has_the_sides_of_a_kernel():
    """Neither the base with its residual nor products have an axis of clients."""
    plain = models.mlp(NUM_CLASSES, hidden=(11,))
    variables = plain.init(jax.random.key(0), DATA.train.features[:1])
    model = models.lora(plain, variables, rank=2)
    solver = SGD.replace(batch_size=3)  # Activations have other sides than kernels.
    exact = whole_cohort(models.with_residual(model), solver, aggregators.FedEx())
    flexible = whole_cohort(model, solver, aggregators.FlexLoRA())
    whole = whole_cohort(plain, solver, aggregators.Mean())
    for round, is_expected in ((exact, False), (flexible, False), (whole, True)):
        round = round.replace(clients_per_batch=len(SIZES))
        state = jax.eval_shape(round.init, jax.random.key(0), DATA)
        text = jax.jit(round.step).lower(state, DATA).compile().as_text()
        assert (f"[{len(SIZES)},4,11]" in text) == is_expected


def test_noise_faults_and_other_aggregators_leave_residuals():
    model = models.with_residual(adapted())
    noise = faults.Byzantine((0, 1), "noise")
    private = ff.communication.DifferentialPrivacy(1.0, 1.0)
    round = whole_cohort(model, SGD, aggregators.Mean(), faults=noise, privacy=private)
    (*_, after), _ = states(round, 2)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(after.variables.state))


def test_ffa_depends_on_the_step_size_times_the_square_of_alpha():
    ffa, doubled = (models.with_fixed_a(adapted(alpha=alpha)) for alpha in (4.0, 8.0))
    mean = aggregators.Mean("num_examples")
    (*_, one), _ = states(whole_cohort(ffa, SGD.replace(momentum=0.5), mean), 3)
    slower = SGD.replace(momentum=0.5, learning_rate=0.3 / 4)
    (*_, other), _ = states(whole_cohort(doubled, slower, mean), 3)
    actual, expected = products(doubled, other.variables), products(ffa, one.variables)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    assert relative_error(expected, actual) == 0
    assert all(np.abs(one).max() > 0.01 for one in expected.values())


def test_rolora_trains_one_factor_in_each_round():
    found, infos = states(whole_cohort(adapted(), solvers.RoLoRA(SGD), aggregators.FedIT()), 4)
    for round, (before, after) in enumerate(pairwise(found)):
        moved, fixed = ("b", "a") if round % 2 == 0 else ("a", "b")
        for path in ADAPTED:
            old, new = (state.variables.params["adapters"][path] for state in (before, after))
            np.testing.assert_array_equal(new[fixed], old[fixed])
            assert np.abs(new[moved] - old[moved]).max() > 0
        side = sum(both[1 if moved == "b" else 0] for both in SIDES.values())
        assert infos[round].bytes_up.tolist() == [4 * 2 * side] * len(SIZES)
        assert infos[round].aggregator["error"] == 0


def test_rolora_without_odd_rounds_is_ffa():
    """Rounds of step size zero change nothing, so rounds 0, 2 and 4 are those of FFA-LoRA."""
    ffa, mean = models.with_fixed_a(adapted()), aggregators.Mean("num_examples")

    def even(round):
        return jnp.where(round % 2 == 0, 0.3, 0.0)

    rate = SGD.replace(learning_rate=even)
    of_ffa = whole_cohort(ffa, rate, mean)
    of_rolora = whole_cohort(adapted(), solvers.RoLoRA(rate.replace(prox=0.1)), mean)
    (*_, fixed), _ = states(of_ffa.replace(solver=rate.replace(prox=0.1)), 5)
    start = of_rolora.init(jax.random.key(1), DATA)
    same = {
        path: {"a": jnp.asarray(ffa.factors[path]["a"]), "b": pair["b"]}
        for path, pair in start.variables.params["adapters"].items()
    }
    start = start._replace(variables=Variables({"adapters": same}, {}))
    (*_, rolora), _ = states(of_rolora, 5, start=start)
    for path in ADAPTED:
        actual, expected = (
            state.variables.params["adapters"][path]["b"] for state in (rolora, fixed)
        )
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_byzantine_clients_change_the_trained_factor_of_rolora_only():
    noise = faults.Byzantine((0, 1, 2), "noise")
    round = whole_cohort(adapted(), solvers.RoLoRA(SGD), aggregators.Mean())
    (_, honest), _ = states(round, 1)
    (_, noisy), _ = states(round.replace(faults=noise), 1)
    for path in ADAPTED:
        one, other = (state.variables.params["adapters"][path] for state in (honest, noisy))
        np.testing.assert_array_equal(other["a"], one["a"])
        assert np.abs(other["b"] - one["b"]).max() > 0.1


def test_secure_sums_leave_the_fixed_factor_of_rolora():
    round = whole_cohort(adapted(), solvers.RoLoRA(SGD), aggregators.Mean(), aggregation="secure")
    (before, after), (info,) = states(round, 1)
    for path in ADAPTED:
        old, new = (state.variables.params["adapters"][path] for state in (before, after))
        np.testing.assert_array_equal(new["a"], old["a"])
        assert np.abs(new["b"]).max() > 0
    assert info.bytes_up.tolist() == [4 * 2 * (5 + NUM_CLASSES)] * len(SIZES)


def test_bytes_of_results_add_up_over_rounds():
    method = whole_cohort(adapted(), solvers.RoLoRA(SGD), aggregators.FedIT())
    result = ff.fit(method, DATA, rounds=3, seeds=(0, 1), eval_every=1)
    b, a = 4 * 2 * (5 + NUM_CLASSES) * len(SIZES), 4 * 2 * (4 + 5) * len(SIZES)
    assert result.dataset.bytes_up.values.tolist() == [[0, b, b + a, 2 * b + a]] * 2
    assert result.dataset.bytes_down.values.tolist() == [[0, *(np.arange(1, 4) * (a + b))]] * 2


def test_fedsa_sends_a_only():
    model = adapted(trainable=("head/bias",))
    round = whole_cohort(model, solvers.FedSALoRA(SGD), aggregators.Mean("num_examples"))
    (start, *_, after), infos = states(round, 2)
    assert infos[0].traffic.up == infos[0].traffic.down == 4 * 2 * (4 + 5)
    for path in ADAPTED:
        np.testing.assert_array_equal(after.variables.params["adapters"][path]["b"], 0)
    np.testing.assert_array_equal(
        after.variables.params["trained"]["head"]["bias"],
        start.variables.params["trained"]["head"]["bias"],
    )
    heads = *(f"adapters/{path}/b" for path in ADAPTED), "trained"
    fedper = round.replace(solver=solvers.FedPer(SGD, heads))
    (*_, other), _ = states(fedper, 2)
    jax.tree.map(np.testing.assert_array_equal, after.variables, other.variables)
    np.testing.assert_array_equal(after.clients.arrays["float32"], other.clients.arrays["float32"])


def test_fedsa_of_one_client_trains_as_fedit():
    fedsa = Round(adapted(), Only((1,)), solvers.FedSALoRA(SGD), aggregators.Mean())
    (*_, personal), _ = states(fedsa, 3)
    (*_, shared), _ = states(Round(adapted(), Only((1,)), SGD, aggregators.FedIT()), 3)
    found = fedsa.personalize(personal, DATA)(jnp.int32(1))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, shared.variables)
    # A client that never took part has the network without adapters.
    absent = fedsa.personalize(personal, DATA)(jnp.int32(0))
    assert all((change == 0).all() for change in products(fedsa.model, absent).values())


def test_full_ranks_are_those_of_sgd():
    limited = whole_cohort(adapted(), solvers.RankLimited(SGD, (2,)), aggregators.FlexLoRA())
    plain = limited.replace(solver=SGD)
    (*_, one), _ = states(limited, 2)
    (*_, other), _ = states(plain, 2)
    jax.tree.map(np.testing.assert_array_equal, one.variables, other.variables)


@pytest.mark.parametrize("solver", [SGD, SGD.replace(prox=0.1, momentum=0.9, weight_decay=0.1)])
def test_a_client_of_rank_1_trains_one_column_and_row(solver):
    round = whole_cohort(adapted(), solvers.RankLimited(solver, (1, 2)), aggregators.FlexLoRA())
    (*_, state), infos = states(round, 2)
    half = 4 * sum(map(sum, SIDES.values()))
    assert infos[0].bytes_up.tolist() == infos[0].bytes_down.tolist() == [half, 2 * half] * 3
    small = Round(round.model, Only((2,)), round.solver, aggregators.Mean())
    (_, after), _ = states(small, 1, start=state)
    # The same as adapters of rank 1 from the first column and row, with half of alpha.
    model = adapted(rank=1, alpha=2.0)
    alone = Round(model, Only((2,)), solver, aggregators.Mean())
    pairs = state.variables.params["adapters"].items()
    first = {path: {"a": pair["a"][:, :1], "b": pair["b"][:1]} for path, pair in pairs}
    start = state._replace(variables=Variables({"adapters": first}, {}))
    (_, expected), _ = states(alone, 1, start=start)
    for path, pair in after.variables.params["adapters"].items():
        np.testing.assert_array_equal(pair["a"][:, 1:], 0)
        np.testing.assert_array_equal(pair["b"][1:], 0)
        one = expected.variables.params["adapters"][path]
        np.testing.assert_allclose(pair["a"][:, :1], one["a"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(pair["b"][:1], one["b"], rtol=1e-4, atol=1e-6)


def test_hetlora_shrinks_what_few_clients_have():
    """Without training, each of five clients of rank 1 adds zeros beyond it."""
    still = SGD.replace(learning_rate=0.0)
    solver = solvers.HetLoRA(still, (2, 1, 1, 1, 1, 1), strength=0.0)
    round = whole_cohort(adapted(), solver, aggregators.HetLoRAMean())
    (before, after), (info,) = states(round, 1)
    np.testing.assert_allclose(info.weights, np.full(6, 1 / 6), rtol=1e-6)
    for path in ADAPTED:
        old, new = (state.variables.params["adapters"][path]["a"] for state in (before, after))
        np.testing.assert_allclose(new[:, 0], old[:, 0], rtol=1e-6)
        np.testing.assert_allclose(new[:, 1], old[:, 1] / 6, rtol=1e-6)


def test_hetlora_without_penalty_and_pruning_is_sgd_with_its_weights():
    hetlora = whole_cohort(
        adapted(), solvers.HetLoRA(SGD, strength=0.0, decay=1.0), aggregators.HetLoRAMean()
    )
    (*_, one), infos = states(hetlora, 2)
    (*_, other), _ = states(hetlora.replace(solver=SGD), 2)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), one.variables, other.variables
    )
    assert infos[1].bytes_up.tolist() == [4 * 2 * sum(map(sum, SIDES.values()))] * 6


def test_hetlora_prunes_ranks_whose_tail_the_penalty_shrinks():
    strong = solvers.HetLoRA(SGD, strength=2.0, decay=0.5)
    round = whole_cohort(adapted(), strong, aggregators.HetLoRAMean())
    found, infos = states(round, 4)
    ranks = [state.clients.arrays["int32"][:, 0] for state in found]
    assert ranks[0].tolist() == ranks[1].tolist() == [2] * 6  # The first tails are zero.
    assert ranks[-1].tolist() == [1] * 6
    half = 4 * sum(map(sum, SIDES.values()))
    for info, (before, after) in zip(infos, pairwise(ranks), strict=True):
        assert (np.diff([before, after], axis=0) <= 0).all()
        np.testing.assert_array_equal(info.bytes_down, half * before)
        np.testing.assert_array_equal(info.bytes_up, half * after)


@pytest.fixture
def linear(double):
    """A linear model and data in float64, which layers of Flax do not have."""

    def widen(leaf):
        return leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf

    data, model = jax.tree.map(widen, DATA), linear_model(5)
    variables = model.init(jax.random.key(0), data.train.features[:1])
    # Rounds convert counts to float32.
    with jax.numpy_dtype_promotion("standard"):
        yield data, model, variables


def train_from(round, variables, data):
    """Returns the change of the kernel after two rounds from given variables."""
    state = round.init(jax.random.key(1), data)._replace(variables=variables)
    step = jax.jit(round.step)
    state, _ = step(step(state, data)[0], data)
    return round.model.merge(state.variables).params["kernel"]


def test_rotated_factors_train_the_same_model(linear):
    """Of plain SGD: A Q and Q'B have the gradients of A and B, rotated."""
    data, model, variables = linear
    round = whole_cohort(
        models.lora(model, variables, rank=2, alpha=4.0), SGD, aggregators.FedIT("uniform")
    )
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 2)), rng.normal(size=(2, 5))
    found = []
    for rotation in (np.eye(2), np.linalg.qr(rng.normal(size=(2, 2)))[0]):
        pair = {"a": jnp.asarray(a @ rotation), "b": jnp.asarray(rotation.T @ b)}
        found.append(train_from(round, Variables({"adapters": {"kernel": pair}}, {}), data))
    np.testing.assert_allclose(*found, rtol=1e-11, atol=1e-12)
    assert np.abs(found[0] - variables.params["kernel"] - 2 * a @ b).max() > 0.1


def test_adapters_of_full_rank_train_like_the_kernel(linear):
    """With A fixed at the identity and alpha = r, B is the change of the kernel."""
    data, model, variables = linear
    ffa = models.lora(model, variables, rank=4, train="b")
    ffa = ffa.replace(factors={"kernel": {"a": np.eye(4)}})
    zero = Variables({"adapters": {"kernel": {"b": jnp.zeros((4, 5))}}}, {})
    frozen = models.freeze(model, variables, ("kernel",))
    mean = aggregators.Mean()
    found = [
        train_from(whole_cohort(ffa, SGD, mean), zero, data),
        train_from(whole_cohort(frozen, SGD, mean), frozen.start, data),
    ]
    np.testing.assert_allclose(*found, rtol=1e-12, atol=1e-12)
    assert np.abs(found[0] - variables.params["kernel"]).max() > 0.1


# Bad input.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"aggregator": aggregators.FedEx()},
            r"aggregator: FedEx needs a model with residuals; .*",
        ),
        ({"solver": solvers.RankLimited(SGD, (1, 3))}, r"ranks=\(1, 3\): expected at most 2, .*"),
        ({"solver": solvers.HetLoRA(SGD, (4,))}, r"ranks=\(4,\): expected at most 2, .*"),
        (
            {"solver": solvers.RoLoRA(SGD), "compression": ff.communication.TopK(0.1)},
            "compression: RoLoRA sends a part of the update, .*",
        ),
        (
            {"solver": solvers.RoLoRA(SGD), "privacy": ff.communication.DifferentialPrivacy(1, 1)},
            "privacy: RoLoRA sends a part of the update, .*",
        ),
        (
            {"aggregator": aggregators.FlexLoRA(), "aggregation": "secure"},
            "aggregator: FlexLoRA needs vectors of single clients, .*",
        ),
        (
            {
                "aggregator": aggregators.FedIT(),
                "privacy": ff.communication.DifferentialPrivacy(1, 1),
            },
            "privacy requires equal weights; .*",
        ),
        (
            {
                "model": models.with_residual(adapted()),
                "faults": faults.Staleness(0.5, max_staleness=2),
            },
            "faults: stale clients would train from past models .*",
        ),
    ],
)
def test_roles_that_do_not_fit_are_refused(settings, message):
    round = whole_cohort(adapted(), SGD, aggregators.Mean())
    with pytest.raises(ValueError, match=f"^{message}$"):
        round.replace(**settings)


ROLES = [
    solvers.RoLoRA(SGD),
    solvers.FedSALoRA(SGD),
    solvers.RankLimited(SGD, (1,)),
    solvers.HetLoRA(SGD),
    aggregators.FedIT(),
    aggregators.FedEx(),
    aggregators.FlexLoRA(),
    aggregators.LoRAFair(),
    aggregators.HetLoRAMean(),
]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: type(role).__name__)
def test_roles_of_adapters_need_both_factors(role):
    name = "aggregator" if isinstance(role, ff.Aggregator) else "solver"
    kind = f"{name}: {type(role).__name__}"
    round = whole_cohort(network(), SGD, aggregators.Mean())
    with pytest.raises(ValueError, match=f"^{kind} needs a model with low-rank adapters, not "):
        round.replace(**{name: role})
    with pytest.raises(ValueError, match=f"^{kind} needs both factors of the adapters, .*'both'"):
        round.replace(**{"model": models.with_fixed_a(adapted()), name: role})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: solvers.RankLimited(SGD, (0,)), r"ranks=\(0,\): expected None or positive "),
        (lambda: solvers.HetLoRA(SGD, 2), "ranks=2: expected None or positive integers"),
        (lambda: models.with_residual(network()), "with_residual needs a model with low-rank"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()
