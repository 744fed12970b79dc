"""Thresholds of clients and groups against values by hand, brute force and `fit_thresholds`."""

import itertools
import re

import numpy as np
import pytest
from scipy.optimize import linprog

from fedjax_fair.metrics.local_global_thresholds import fit_local_global_thresholds
from fedjax_fair.metrics.thresholds import count_scores, fit_thresholds

# Two clients, two groups, four bins.
COUNTS = np.array(
    [
        [[[6, 3, 1, 0], [0, 1, 3, 6]], [[8, 4, 2, 0], [2, 1, 1, 2]]],
        [[[3, 2, 1, 0], [1, 1, 2, 4]], [[9, 5, 2, 1], [1, 2, 4, 6]]],
    ]
)
NONE = np.inf
# Correct of 84, local gaps and global gap; None where several optima exist.
PARITY = {
    (NONE, NONE): (69, (0.4, 0.0667), 0.2),
    (0, NONE): (66.12, None, 0),
    (NONE, 0): (65.0889, (0, 0), 0.0251),
    (0, 0): (64.8222, (0, 0), 0),
    (0.05, 0.1): (66.48, None, 0.05),
    (0.1, 0.05): (65.9222, (0.05, 0.05), 0.0155),
}
OPPORTUNITY = dict(zip(PARITY, (69, 66.9123, 64.875, 62.5, 66, 65.5), strict=True))


def draw_counts(seed, clients=4, groups=3, bins=6, total=8):
    return np.random.default_rng(seed).integers(0, total, (clients, groups, 2, bins))


def gaps_of(rates, people):
    """The gap of each client and of all, by loops."""
    local = [
        max((a - b for a, b in itertools.permutations(own[~np.isnan(own)], 2)), default=np.nan)
        for own in rates
    ]
    overall = [
        sum(rates[k, a] * people[k, a] for k in range(len(rates)) if people[k, a]) / total
        for a, total in enumerate(people.sum(axis=0))
    ]
    return local, max(overall) - min(overall)


@pytest.mark.parametrize("bounds", PARITY)
def test_demographic_parity_by_hand(bounds):
    fitted = fit_local_global_thresholds(COUNTS, "demographic_parity", *bounds)
    correct, local, overall = PARITY[bounds]
    assert 84 * fitted.accuracy == pytest.approx(correct, abs=1e-4)
    assert fitted.global_gap == pytest.approx(overall, abs=1e-4)
    if local is not None:
        np.testing.assert_allclose(fitted.local_gaps, local, atol=1e-4)
    if bounds == (0, 0):
        np.testing.assert_allclose(fitted.rates, 0.433333, atol=1e-6)


@pytest.mark.parametrize("bounds", PARITY)
def test_equal_opportunity_by_hand(bounds):
    fitted = fit_local_global_thresholds(COUNTS, "equal_opportunity", *bounds)
    assert 84 * fitted.accuracy == pytest.approx(OPPORTUNITY[bounds], abs=1e-4)
    if bounds == (0, 0):
        np.testing.assert_allclose(fitted.rates, 0.6, atol=1e-6)


def test_one_client_is_the_fit_of_groups():
    pooled = COUNTS.sum(axis=0)
    fitted = fit_local_global_thresholds(pooled[None], max_global_gap=0)
    expected = fit_thresholds(pooled)
    assert fitted.rates == pytest.approx(np.full((1, 2), 0.36))
    assert expected.rate == pytest.approx(0.36)
    assert fitted.accuracy == pytest.approx(0.7852381)
    for name in ("high", "low", "low_share"):
        np.testing.assert_allclose(getattr(fitted, name)[0], getattr(expected, name), atol=1e-9)


@pytest.mark.parametrize("constraint", ["demographic_parity", "equal_opportunity"])
def test_local_constraints_alone_are_fits_of_each_client(constraint):
    """Up to the grid of rates there, here of all multiples of 1 / 5040."""
    for seed in range(3):
        counts = draw_counts(seed, total=4)
        fitted = fit_local_global_thresholds(counts, constraint, max_local_gap=0)
        alone = [fit_thresholds(own, constraint, grid=5040) for own in counts]
        correct = 0.0
        for own, each in zip(counts, alone, strict=True):
            for group in range(3):
                for bin_id, label in itertools.product(range(6), range(2)):
                    (share,) = each.probabilities([(bin_id + 0.5) / 6], [group])
                    correct += own[group, label, bin_id] * (share if label else 1 - share)
        assert fitted.accuracy * counts.sum() == pytest.approx(correct, abs=0.02)
        assert fitted.accuracy * counts.sum() >= correct - 1e-9


@pytest.mark.parametrize("constraint", ["demographic_parity", "equal_opportunity"])
@pytest.mark.parametrize("bounds", [(0.05, 0.1), (0, NONE), (0.2, 0.02)])
def test_bounds_hold_and_no_mixture_of_thresholds_is_better(constraint, bounds):
    """Against a program that chooses the share of each of the thresholds of each cell."""
    counts = draw_counts(5, clients=3, groups=2, bins=3) + 1
    fitted = fit_local_global_thresholds(counts, constraint, *bounds)
    of_rate = counts.sum(axis=2) if constraint == "demographic_parity" else counts[:, :, 1]
    people = of_rate.sum(axis=-1)
    correct, selected = np.zeros((2, 3, 2, 4))
    for threshold, bin_id in itertools.product(range(4), range(3)):
        is_one = bin_id >= threshold
        correct[..., threshold] += counts[:, :, int(is_one), bin_id]
        selected[..., threshold] += of_rate[..., bin_id] * is_one
    rows, limits = [], []
    for client in range(4):  # The last stands for all clients.
        row = np.zeros((3, 2, 4))
        for k, a in itertools.product(range(3), range(2)):
            whole = people[:, a].sum() if client == 3 else people[k, a]
            row[k, a] = (1 - 2 * a) * selected[k, a] / whole * (client in (k, 3))
        rows += [row.ravel(), -row.ravel()]
        limits += [bounds[0] if client == 3 else bounds[1]] * 2
    is_bound = np.isfinite(limits)
    best = linprog(
        -correct.ravel(),
        np.array(rows)[is_bound],
        np.array(limits)[is_bound],
        np.kron(np.eye(6), np.ones(4)),
        np.ones(6),
    )
    assert fitted.accuracy * counts.sum() == pytest.approx(-best.fun, abs=1e-7)
    local, overall = gaps_of(fitted.rates, people)
    assert max(local) <= bounds[1] + 1e-9
    assert overall <= bounds[0] + 1e-9
    np.testing.assert_allclose(fitted.local_gaps, local)
    assert fitted.global_gap == pytest.approx(overall)


def test_accuracy_does_not_rise_with_stricter_bounds():
    counts = draw_counts(1)
    for name in ("max_global_gap", "max_local_gap"):
        bounds = (np.inf, 0.3, 0.1, 0.03, 0.0)
        found = [fit_local_global_thresholds(counts, **{name: each}).accuracy for each in bounds]
        assert all(later <= one + 1e-12 for one, later in itertools.pairwise(found))
        assert found[0] > found[-1]


def test_a_group_that_a_client_lacks_has_no_constraint():
    """The client with one group is as without bounds; nobody's threshold is 1/2."""
    counts = COUNTS.copy()
    counts[1, 0] = 0
    fitted = fit_local_global_thresholds(counts, max_local_gap=0)
    free = fit_local_global_thresholds(counts)
    assert np.isnan(fitted.rates[1, 0])
    assert np.isnan(fitted.local_gaps[1])
    assert fitted.rates[1, 1] == pytest.approx(free.rates[1, 1])
    assert fitted.local_gaps[0] == pytest.approx(0)
    assert fitted.probabilities([0.49, 0.51], [0, 0], [1, 1]).tolist() == [0, 1]
    counts = COUNTS.copy()
    counts[0, 1, 1] = 0  # Nobody with label 1: no rate, and predictions by the model.
    fitted = fit_local_global_thresholds(counts, "equal_opportunity", max_local_gap=0)
    assert np.isnan(fitted.rates[0, 1])
    others = counts.copy()
    others[0, 1] = 0
    without = fit_local_global_thresholds(others, "equal_opportunity", max_local_gap=0)
    correct = without.accuracy * others.sum() + 8 + 4  # Of the 14, the ones with low scores.
    assert fitted.accuracy * counts.sum() == pytest.approx(correct)


def test_rates_of_predictions_are_those_of_the_fit():
    rng = np.random.default_rng(0)
    scores, labels = rng.random(600), rng.integers(0, 2, 600)
    groups, clients = rng.integers(0, 2, 600), rng.integers(0, 3, 600)
    counts = np.stack(
        [
            count_scores(*(each[clients == k] for each in (scores, labels, groups)), 2)
            for k in range(3)
        ]
    )
    fitted = fit_local_global_thresholds(counts, max_global_gap=0.01, max_local_gap=0.05)
    chosen = fitted.probabilities(scores, groups, clients)
    for k, a in np.ndindex(3, 2):
        rate = chosen[(clients == k) & (groups == a)].mean()
        assert rate == pytest.approx(fitted.rates[k, a])
    assert np.where(labels == 1, chosen, 1 - chosen).mean() == pytest.approx(fitted.accuracy)
    drawn = np.mean([fitted.predict(scores, groups, clients, seed) for seed in range(300)], axis=0)
    np.testing.assert_allclose(drawn, chosen, atol=0.15)


WRONG = {
    "shape": ({"counts": COUNTS[0]}, "counts of shape (2, 2, 4): expected [clients, groups, 2"),
    "negative": ({"counts": -COUNTS}, "counts of shape"),
    "global": ({"max_global_gap": -0.1}, "max_global_gap=-0.1: expected a number >= 0"),
    "local": ({"max_local_gap": np.nan}, "max_local_gap=nan: expected a number >= 0"),
    "constraint": ({"constraint": "equalized_odds"}, "constraint='equalized_odds'"),
    "empty": (
        {"counts": COUNTS * [[[1]], [[0]]]},
        "1 groups have no people at any client, first [1]",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_mistakes_in_bounds_and_counts_are_explained(changes, message, as_users_call):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit_local_global_thresholds(**{"counts": COUNTS} | changes)
