"""Methods of group fairness against NumPy references and their limiting cases."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, make_federation
from people_federation import FEATURES, make_people, people_of

import fedjax_fair as ff
from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.aggregators import fedfb
from fedjax_fair.aggregators.reweighing import reweighing
from fedjax_fair.data.sensitive import find_groups
from fedjax_fair.rounds.round_context import make_context
from fedjax_fair.solvers.group_penalty import _squared_differences

DATA = make_people(features=FEATURES[:1], sizes=(12, 20, 9, 1, 16))
BOTH = make_people(sizes=(12, 20, 9, 1, 16))
MODEL = linear_model(2)
SGD = solvers.SGD(0.3, 8, epochs=1)
WEIGHTED = solvers.CellWeighted(SGD)


def round_of(aggregator, solver=SGD, selector=None, model=MODEL):
    return ff.Round(model, selector or selectors.Full(), solver, aggregator)


def states(aggregator, solver=SGD, data=DATA, rounds=3, selector=None):
    """States before each round and after the last, and infos."""
    method = round_of(aggregator, solver, selector, linear_model(data.num_classes))
    step = jax.jit(method.step)
    state, found, infos = method.init(jax.random.key(2), data), [], []
    for _ in range(rounds):
        found.append(state)
        state, info = step(state, data)
        infos.append(info)
    return [*found, state], infos


def counted(state, data=DATA):
    """Counts and loss sums of training examples by client, group and label, with a loop."""
    part = data.train
    kernel, bias = (np.asarray(state.variables.params[name]) for name in ("kernel", "bias"))
    values = [len(feature.values) for feature in data.sensitive_names]
    counts = np.zeros((data.num_clients, int(np.prod(values)), 2, 2))
    losses = np.zeros(counts.shape[:3])
    for client in range(data.num_clients):
        for person in people_of(part, client):
            logits = part.features[person] @ kernel + bias
            label, codes = part.labels[person], part.sensitive_features[person]
            group = np.ravel_multi_index(codes, values)
            counts[client, group, label, logits.argmax()] += 1
            losses[client, group, label] += np.log(np.exp(logits).sum()) - logits[label]
    return counts, losses


def of_groups(info, name):
    """Info of each group."""
    values = {key: value for key, value in info.aggregator.items() if key.startswith(f"{name}_of")}
    return np.array([values[f"{name}_of_group_{group}"] for group in range(len(values))])


def assert_same_models(one, other):
    for actual, expected in zip(one, other, strict=True):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            actual.variables,
            expected.variables,
        )


@cache
def fedavg():
    return states(aggregators.Mean("num_examples"))[0]


@pytest.mark.parametrize(
    ("aggregator", "solver"),
    [
        (aggregators.FairFed(0.0, "equal_opportunity"), SGD),
        (aggregators.FedFBMean(0.0), WEIGHTED),
        (aggregators.FedFBMean(0.0, "equal_opportunity"), WEIGHTED),
        (aggregators.FedFBMean(0.0, "client_parity"), WEIGHTED),
        (aggregators.FedMinMaxMean(0.0), WEIGHTED),
        (aggregators.Mean("num_examples"), solvers.GroupPenalty(SGD, 0.0)),
    ],
    ids=["fairfed", "fedfb", "fedfb, opportunity", "fedfb, clients", "fedminmax", "penalty"],
)
def test_without_a_step_methods_are_fedavg(aggregator, solver):
    assert_same_models(states(aggregator, solver)[0], fedavg())


def signed(counts, metric):
    """Rate of group 0 less that of group 1, and whether both are defined."""
    cells = counts[:, 1:] if metric == "equal_opportunity" else counts
    people, selected = cells.sum(axis=(1, 2)), cells[..., 1].sum(axis=1)
    if (people == 0).any():
        return np.nan, False
    return selected[0] / people[0] - selected[1] / people[1], True


@pytest.mark.parametrize("metric", ["equal_opportunity", "demographic_parity"])
@pytest.mark.parametrize("clip", [True, False])
def test_fairfed_follows_its_formulas(metric, clip):
    found, infos = states(aggregators.FairFed(0.8, metric, clip=clip))
    sizes = np.asarray(DATA.train.sizes, float)
    kept = sizes / sizes.sum()
    fallbacks = 0
    for state, after, info in zip(found, found[1:], infos, strict=False):
        counts, _ = counted(state)
        correct = np.trace(counts.sum(axis=1), axis1=1, axis2=2)
        accuracy = correct / sizes
        pooled, _ = signed(counts.sum(axis=0), metric)
        deviation = np.abs(accuracy - correct.sum() / sizes.sum())
        for client in range(DATA.num_clients):
            value, is_defined = signed(counts[client], metric)
            fallbacks += not is_defined
            if is_defined:
                deviation[client] = abs(value - pooled)
        np.testing.assert_allclose(info.aggregator["group_difference"], pooled, atol=1e-5)
        np.testing.assert_allclose(info.aggregator["deviation"], deviation, atol=1e-5)
        kept = kept - 0.8 * (deviation - deviation.mean())
        np.testing.assert_allclose(after.aggregator, kept, atol=1e-5)
        assert kept.sum() == pytest.approx(1)
        used = np.maximum(kept, 0) if clip else kept
        np.testing.assert_allclose(info.weights, used / used.sum(), atol=1e-4)
    assert fallbacks  # Client 3 has one example.
    assert (kept < 0).any()  # Clipping matters.


def test_fairfed_keeps_the_weights_of_absent_clients():
    found, infos = states(aggregators.FairFed(0.5), selector=selectors.RoundRobin(2), rounds=1)
    absent = sorted(set(range(5)) - set(np.asarray(infos[0].clients).tolist()))
    before, after = (np.asarray(state.aggregator) for state in found)
    np.testing.assert_array_equal(after[absent], before[absent])
    assert after.sum() == pytest.approx(1, abs=1e-5)


def test_fairfed_uses_accuracies_without_sensitive_features():
    def without(part):
        return part._replace(sensitive_features=None)

    plain = DATA.map_parts(without)._replace(sensitive_names=None)
    auto, infos = states(aggregators.FairFed(0.5), data=plain)
    named, _ = states(aggregators.FairFed(0.5, "accuracy"), data=DATA)
    assert_same_models(auto, named)
    assert "group_difference" not in infos[0].aggregator


def test_fairfed_of_one_of_several_features():
    (start, *_), infos = states(
        aggregators.FairFed(0.5, sensitive_feature="sex"), data=BOTH, rounds=1
    )
    counts, _ = counted(start, BOTH)
    of_sex = counts.sum(axis=0).reshape(2, 3, 2, 2).sum(axis=1)
    expected, _ = signed(of_sex, "equal_opportunity")
    assert float(infos[0].aggregator["group_difference"][()]) == pytest.approx(expected, abs=1e-5)


def test_fedfb_measures_demographic_parity_of_zero_one_losses():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 30, (3, 2, 2)).astype(np.float32)
    errors = np.stack([counts[:, 0, 1], counts[:, 1, 0]], axis=1)
    people = counts.sum(axis=2)
    rates = counts[:, :, 1].sum(axis=1) / people.sum(axis=1)
    mu = rates - rates[0]
    mu[0] = -mu[1:].sum()
    shares = people.sum(axis=1) / people.sum()
    state = fedfb._State(jnp.asarray(shares), jnp.asarray(people))
    moved = fedfb._parity_step(state, jnp.asarray(people), jnp.asarray(errors), 0.01)
    np.testing.assert_allclose(moved, shares + 0.01 * mu / np.linalg.norm(mu), rtol=1e-5)
    far = fedfb._parity_step(state, jnp.asarray(people), jnp.asarray(errors), 1e6)
    assert set(np.round(far / shares, 4).tolist()) <= {0.0, 2.0}


def test_fedfb_follows_its_formulas():
    found, infos = states(aggregators.FedFBMean(0.2), WEIGHTED)
    people = counted(found[0])[0].sum(axis=(0, 3))
    sizes, total = people.sum(axis=1), people.sum()
    weights = sizes / total
    for number, (after, info) in enumerate(zip(found[1:], infos, strict=True), 1):
        _, losses = counted(after)
        means = losses.sum(axis=0) / sizes[:, None]
        gap = -means[0, 0] + means[0, 1] + means[1, 0] - means[1, 1]
        gap += people[0, 0] / sizes[0] - people[1, 0] / sizes[1]
        mu = np.array([-gap, gap]) / np.hypot(gap, gap)
        weights = np.clip(weights + 0.2 / np.sqrt(number) * mu, 0, 2 * sizes / total)
        np.testing.assert_allclose(of_groups(info, "weight"), weights, rtol=1e-4)
        context = make_context(MODEL, after.round, after.variables, DATA)
        cell_weights = aggregators.FedFBMean(0.2).broadcast(after.aggregator, context)
        expected = total * np.stack([weights, 2 * sizes / total - weights], axis=1)
        np.testing.assert_allclose(
            cell_weights["cell_weights"], expected / sizes[:, None], rtol=1e-4, atol=1e-5
        )


def test_fedfb_moves_opportunities_to_the_group_of_higher_loss():
    found, infos = states(aggregators.FedFBMean(0.05, "equal_opportunity"), WEIGHTED)
    people = counted(found[0])[0].sum(axis=(0, 3))
    weights = people[:, 1] / people.sum()
    for number, (after, info) in enumerate(zip(found[1:], infos, strict=True), 1):
        means = counted(after)[1].sum(axis=0)[:, 1] / people[:, 1]
        sign = np.sign(means[0] - means[1])
        weights = weights + 0.05 / np.sqrt(number) * np.array([sign, -sign]) / np.sqrt(2)
        np.testing.assert_allclose(of_groups(info, "weight"), weights, rtol=1e-4)


@pytest.mark.parametrize("alpha", [0.02, 0.8])
def test_fedfb_moves_weights_of_clients_towards_parity(alpha):
    """By the formulas of the paper, where all clients take part."""
    found, infos = states(aggregators.FedFBMean(alpha, "client_parity"), WEIGHTED)
    sizes = np.asarray(DATA.train.sizes, float)
    weights, is_clipped = sizes / sizes.sum(), False
    for number, (after, info) in enumerate(zip(found[1:], infos, strict=True), 1):
        np.testing.assert_allclose(info.weights, weights / weights.sum(), rtol=1e-4, atol=1e-6)
        mean_losses = counted(after)[1].sum(axis=(1, 2)) / sizes
        mu = mean_losses - mean_losses[0]
        mu[0] = -mu[1:].sum()
        step = alpha / np.sqrt(number) * mu / np.linalg.norm(mu)
        is_clipped |= bool((weights + step < 0).any())
        weights = np.maximum(weights + step, 0)
        np.testing.assert_allclose(after.aggregator, weights, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(info.aggregator["weight_of_client"], weights, atol=1e-5)
    assert is_clipped == (alpha == 0.8)


def test_fedfb_compares_the_responding_clients():
    """Client 4 counts once, with two of three draws that respond; client 0 does not respond."""
    method = round_of(aggregators.FedFBMean(0.1, "client_parity"), WEIGHTED)
    state = method.init(jax.random.key(2), DATA)
    data = jax.tree.map(jnp.asarray, DATA)
    context = make_context(MODEL, state.round, state.variables, data)
    clients = jnp.array([4, 2, 4, 0, 4], jnp.int32)
    responded = jnp.array([True, True, True, False, False])
    cohort = ff.Cohort(clients, jnp.full(5, 0.2), responded=responded)
    update = jax.tree.map(lambda leaf: jnp.zeros((5, *leaf.shape)), state.variables)
    results = ff.LocalResult(update, jnp.zeros(5), jnp.ones(5, jnp.int32))
    _, weights, found = method.aggregator.aggregate(state.aggregator, cohort, results, context)
    sizes = np.asarray(DATA.train.sizes, float)
    losses = counted(state)[1].sum(axis=(1, 2)) / sizes
    sign = np.sign(losses[4] - losses[2])
    expected = sizes / sizes.sum()
    expected[[2, 4]] += 0.1 / np.sqrt(2) * sign * np.array([-1, 1])
    np.testing.assert_allclose(weights, expected, rtol=1e-4)
    used = np.array([sizes[4], sizes[2], sizes[4], 0, 0])
    np.testing.assert_allclose(found.weights, used / used.sum(), rtol=1e-5)


def test_fedfb_of_clients_without_weight_averages_by_size():
    method = round_of(aggregators.FedFBMean(0.1, "client_parity"), WEIGHTED)
    state = method.init(jax.random.key(2), DATA)
    _, info = method.step(state._replace(aggregator=jnp.zeros(5)), DATA)
    np.testing.assert_allclose(info.weights, DATA.train.sizes / DATA.train.sizes.sum(), rtol=1e-5)


def test_client_parity_needs_no_sensitive_features():
    plain = DATA.map_parts(lambda part: part._replace(sensitive_features=None))
    found, _ = states(
        aggregators.FedFBMean(0.1, "client_parity"),
        WEIGHTED,
        plain._replace(sensitive_names=None),
    )
    assert_same_models(found, states(aggregators.FedFBMean(0.1, "client_parity"), WEIGHTED)[0])


def test_one_weighted_step_is_that_of_pooled_examples():
    """Full batches, one step: the gradient of the weighted mean loss of all examples."""
    solver = solvers.CellWeighted(solvers.SGD(0.3, 20, steps=1))
    aggregator = aggregators.ReweighingMean("global")
    (start, after), _ = states(aggregator, solver, rounds=1)
    counts = counted(start)[0].sum(axis=(0, 3))
    weights = np.asarray(reweighing(jnp.asarray(counts, jnp.float32)))
    part = DATA.train
    of_example = jnp.asarray(weights[part.sensitive_features[:, 0], part.labels])

    def loss(params):
        logits = MODEL.apply(params, {}, part.features, train=True, key=None)[0]
        return jnp.mean(of_example * MODEL.loss(logits, jnp.asarray(part.labels)))

    gradient = jax.grad(loss)(start.variables.params)
    jax.tree.map(
        lambda new, old, slope: np.testing.assert_allclose(new, old - 0.3 * slope, atol=1e-5),
        after.variables.params,
        start.variables.params,
        gradient,
    )


def test_fedminmax_follows_its_formulas():
    found, infos = states(aggregators.FedMinMaxMean(0.1), WEIGHTED)
    people = counted(found[0])[0].sum(axis=(0, 2, 3))
    mixture = people / people.sum()
    for state, info in zip(found, infos, strict=False):
        risks = counted(state)[1].sum(axis=(0, 2)) / people
        np.testing.assert_allclose(of_groups(info, "risk"), risks, rtol=1e-4)
        moved = mixture + 0.1 * risks
        mixture = moved - (moved.sum() - 1) / 2  # The projection inside the simplex.
        assert (mixture > 0).all()
        np.testing.assert_allclose(of_groups(info, "mixture"), mixture, rtol=1e-4)
    context = make_context(MODEL, found[-1].round, found[-1].variables, DATA)
    sent = aggregators.FedMinMaxMean(0.1).broadcast(found[-1].aggregator, context)
    np.testing.assert_allclose(sent["cell_weights"][:, 0] @ (people / people.sum()), 1, rtol=1e-5)


def test_the_risk_of_an_absent_group_is_the_mean_of_the_others():
    """Group 2 has training examples, but no person among the participants."""
    features = (FEATURES[0]._replace(values=("F", "M", "X")),)
    codes = np.array(DATA.train.sensitive_features)
    codes[people_of(DATA.train, 4)] = 2
    train = DATA.train._replace(sensitive_features=codes)
    data = DATA._replace(train=train, sensitive_names=features)
    # The first cohort is clients 0 to 3.
    first_four = selectors.RoundRobin(4)
    _, infos = states(aggregators.FedMinMaxMean(0.1), WEIGHTED, data, 1, first_four)
    risks = of_groups(infos[0], "risk")
    assert risks[0] != pytest.approx(risks[1])
    assert risks[2] == pytest.approx(risks[:2].mean())


def test_fedminmax_ends_at_the_worst_group():
    _, infos = states(aggregators.FedMinMaxMean(1e4), WEIGHTED, rounds=1)
    worst = int(of_groups(infos[0], "risk").argmax())
    np.testing.assert_array_equal(of_groups(infos[0], "mixture"), np.eye(2)[worst])


def test_reweighing_makes_label_and_group_independent():
    people = jnp.asarray(counted(fedavg()[0])[0].sum(axis=3)[[0, 1, 4]], jnp.float32) + 1
    weighted = people * reweighing(people)
    np.testing.assert_allclose(weighted.sum(axis=(1, 2)), people.sum(axis=(1, 2)), rtol=1e-5)
    share = weighted[:, :, 1] / weighted.sum(axis=2)
    expected = people[:, :, 1].sum(axis=1) / people.sum(axis=(1, 2))
    np.testing.assert_allclose(share, np.stack([expected, expected], axis=1), rtol=1e-5)
    independent = jnp.array([[4.0, 8.0], [3.0, 6.0]])
    np.testing.assert_allclose(reweighing(independent), 1, rtol=1e-6)
    empty = reweighing(jnp.array([[4.0, 0.0], [3.0, 6.0]]))
    assert jnp.isfinite(empty).all()
    assert empty[0, 1] == 0


def test_local_and_global_reweighing_agree_for_one_client():
    data = make_people(features=FEATURES[:1], sizes=(40,))
    local, _ = states(aggregators.ReweighingMean("local"), WEIGHTED, data)
    everywhere, _ = states(aggregators.ReweighingMean("global"), WEIGHTED, data)
    assert_same_models(local, everywhere)
    plain, _ = states(aggregators.Mean("num_examples"), SGD, data)
    assert not np.allclose(local[-1].variables.params["bias"], plain[-1].variables.params["bias"])


def test_local_reweighing_uses_the_counts_of_each_client():
    method = round_of(aggregators.ReweighingMean("local"), WEIGHTED)
    state = method.init(jax.random.key(0), DATA)
    counts = counted(state)[0].sum(axis=3)
    np.testing.assert_allclose(state.aggregator, reweighing(jnp.asarray(counts, jnp.float32)))


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_penalty_has_the_form_of_two_or_of_more_groups(number):
    rng = np.random.default_rng(3)
    scores = rng.uniform(size=20).astype(np.float32)
    people = rng.integers(0, number, 20).astype(np.int32)
    mask = rng.uniform(size=20) < 0.8
    means = np.array([scores[mask & (people == group)].mean() for group in range(number)])
    expected = ((means - scores[mask].mean()) ** 2).sum()
    if number == 2:
        expected = (means[0] - means[1]) ** 2
    arguments = jnp.asarray(scores), jnp.asarray(mask)
    actual = _squared_differences(*arguments, jnp.asarray(people), number)
    assert float(actual) == pytest.approx(expected, rel=1e-5)
    swapped = _squared_differences(*arguments, jnp.asarray(number - 1 - people), number)
    assert float(swapped) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("number", [2, 3])
def test_the_penalty_ignores_absent_groups(number):
    def penalty(scores, mask, people):
        return _squared_differences(scores, mask, jnp.asarray(people, jnp.int32), number)

    scores, mask = jnp.array([0.9, 0.2, 0.4]), jnp.array([True, True, False])
    one_group = jax.value_and_grad(penalty)(scores, mask, [1, 1, 0])
    for value in jax.tree.leaves(one_group):
        np.testing.assert_allclose(value, 0, atol=1e-7)
    nobody = jax.value_and_grad(penalty)(scores, jnp.zeros(3, bool), [1, 1, 0])
    for value in jax.tree.leaves(nobody):
        np.testing.assert_array_equal(value, 0)
    expected = 0.7**2 if number == 2 else 2 * 0.35**2
    assert float(penalty(scores, mask, [0, 1, 1])) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity"])
def test_a_step_descends_on_loss_and_penalty(criterion, num_classes):
    """One full batch of one client, against finite differences."""
    data = make_people(num_classes=num_classes, features=FEATURES[:1], sizes=(30,))
    solver = solvers.GroupPenalty(solvers.SGD(1.0, 30, steps=1), 3.0, criterion)
    (start, after), _ = states(aggregators.Mean(), solver, data, rounds=1)
    part = data.train

    def objective(bias):
        logits = part.features.astype(float) @ np.asarray(start.variables.params["kernel"], float)
        logits = logits + bias
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        loss = -np.log(shares[np.arange(30), part.labels]).mean()
        chosen = part.labels == 1 if criterion == "equal_opportunity" else np.ones(30, bool)
        sex = part.sensitive_features[:, 0]
        one, other = (shares[chosen & (sex == group), 1].mean() for group in (0, 1))
        return loss + 3.0 * (one - other) ** 2

    bias, step = np.asarray(start.variables.params["bias"], float), 1e-5
    for place in range(num_classes):
        offset = step * np.eye(num_classes)[place]
        slope = (objective(bias + offset) - objective(bias - offset)) / (2 * step)
        actual = bias[place] - float(after.variables.params["bias"][place])
        assert actual == pytest.approx(slope, abs=1e-4)


def test_a_penalty_of_one_of_several_features():
    """Other features do not matter, and combinations of all are not the same."""

    def trained(feature, data):
        penalty = solvers.GroupPenalty(SGD, 3.0, sensitive_feature=feature)
        found, _ = states(aggregators.Mean(), penalty, data, rounds=1)
        return found[-1:]

    def only_age(part):
        return part._replace(sensitive_features=part.sensitive_features[:, 1:])

    of_age = BOTH.map_parts(only_age)._replace(sensitive_names=BOTH.sensitive_names[1:])
    found = trained("age", BOTH)
    assert_same_models(found, trained(None, of_age))
    for other in (None, "sex"):
        with pytest.raises(AssertionError):
            assert_same_models(found, trained(other, BOTH))


@pytest.mark.parametrize("aggregator", [aggregators.FedFBMean(0.5), aggregators.FedMinMaxMean(0.5)])
def test_groups_without_people_stay_without_weight(aggregator):
    features = (FEATURES[0]._replace(values=("F", "M", "X")),)
    found, infos = states(aggregator, WEIGHTED, DATA._replace(sensitive_names=features))
    name = "mixture" if isinstance(aggregator, aggregators.FedMinMaxMean) else "weight"
    assert of_groups(infos[-1], name)[2] == 0
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found[-1].variables))


@pytest.mark.parametrize(
    ("method", "data", "message"),
    [
        ((aggregators.FairFed(1.0), SGD), BOTH, "FairFed compares two sensitive groups"),
        (
            (aggregators.FedFBMean(sensitive_feature="race"), WEIGHTED),
            DATA,
            "FedFBMean.sensitive_feature",
        ),
        ((aggregators.FedMinMaxMean(), WEIGHTED), make_federation(), "no sensitive features"),
        ((aggregators.FairFed(1.0, "demographic_parity"), SGD), make_federation(), "no sensitive"),
        ((aggregators.Mean(), solvers.GroupPenalty(SGD)), make_federation(), "no sensitive"),
        (
            (aggregators.Mean(), solvers.GroupPenalty(SGD, sensitive_feature="race")),
            DATA,
            "GroupPenalty.sensitive_feature",
        ),
        ((aggregators.Mean(), WEIGHTED), DATA, "'group_strides', which CellWeighted needs"),
    ],
)
def test_data_that_a_method_cannot_use_is_named(method, data, message):
    built = ff.Round(linear_model(data.num_classes), selectors.Full(), *reversed(method))

    def one_round(key, data):
        return built.step(built.init(key, data), data)

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(one_round, jax.random.key(0), data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: aggregators.FedFBMean(criterion="client_parity", sensitive_feature="sex"),
            "sensitive_feature=",
        ),
        (lambda: solvers.CellWeighted(None), "solver"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_groups_of_features():
    groups = find_groups("FedFB", FEATURES, "age")
    assert groups.number == 3
    part = BOTH.train._replace(sensitive_features=jnp.asarray(BOTH.train.sensitive_features))
    actual = groups.of(part, jnp.arange(5))
    np.testing.assert_array_equal(actual, BOTH.train.sensitive_features[:5, 1])
