"""Losses of clients less those that they reach alone, and shares of clients worse off."""

import numpy as np
import pytest
import xarray as xr

import fedjax_fair as ff
from fedjax_fair.results import compare, loss_gaps, share_worse_off
from fedjax_fair.results.tables import final_tables

DIMS = ("algorithm", "seed", "round", "client")
LOSSES, BEST = [1.0, 0.8, 2.0], [0.4, 0.5, 0.9]
FIRST = [0.2, 0.5, 1.1, 0.4, 3, 0.6, 0.8, 0.7, 0.9, 0.3, 2]


def make_results(losses, best, rounds=(0, 50, 100)):
    """One method and the reference, with losses ``[seed, round, client]``."""
    losses, best = np.asarray(losses, float), np.asarray(best, float)
    values = np.full((2, *losses.shape), np.nan)
    personalized = values.copy()
    values[0], personalized[1] = losses, best  # The reference has no global model.
    return xr.Dataset(
        {"test_loss": (DIMS, values), "personalized_test_loss": (DIMS, personalized)},
        {"algorithm": ["fedavg", "local_converged"], "round": list(rounds)},
    )


def test_gaps_by_hand():
    """The reference's last losses count in all rounds; its own gaps are none."""
    losses = [[[3, 3, 3], [2, 2, 2], LOSSES]]
    best = [[[9, 9, 9], [0.41, 0.5, 0.92], BEST]]
    found = loss_gaps(make_results(losses, best))
    assert found["algorithm"].values.tolist() == ["fedavg", "local_converged (personalized)"]
    np.testing.assert_allclose(found["loss_gap"][0, 0, -1], [0.6, 0.3, 1.1])
    np.testing.assert_allclose(found["loss_gap"][0, 0, 0], [2.6, 2.5, 2.1])
    assert np.isnan(found["loss_gap"][1]).all()
    last = found.isel(algorithm=0, seed=0, round=-1)
    assert last["loss_gap_variance"].item() == pytest.approx(0.108889, abs=1e-6)
    assert last["loss_gap_standard_deviation"].item() == pytest.approx(0.108889**0.5, abs=1e-6)
    assert last["loss_gap_mean_clients"].item() == pytest.approx(2 / 3)
    assert last["loss_gap_maximum"].item() == pytest.approx(1.1)
    assert last["loss_gap_minimum"].item() == pytest.approx(0.3)
    assert found["reference_change"].item() == pytest.approx(np.std([0.01, 0, 0.02]))


def test_the_worst_tenth_rounds_up_and_skips_clients_without_examples():
    losses = [[[*FIRST, np.nan]]]
    found = loss_gaps(make_results(losses, np.zeros((1, 1, 12)), rounds=[10]))
    assert found["loss_gap_worst_10pct"][0, 0, 0].item() == pytest.approx(2.5)
    assert found["loss_gap_mean_clients"][0, 0, 0].item() == pytest.approx(0.954545, abs=1e-6)
    assert found["loss_gap_standard_deviation"][0, 0, 0].item() == pytest.approx(0.799277, abs=1e-6)


@pytest.mark.parametrize(("error", "converged"), [(0.032, True), (0.034, False)])
def test_a_reference_has_converged_if_it_changes_gaps_by_less_than_a_tenth(error, converged):
    """Of the SD of gaps, 0.33; the errors 0 and 2 e have SD e."""
    losses = [[[1, 1], [1, 1], [0.5, 1.16]]]
    best = [[[5, 5], [0, 2 * error], [0, 0]]]
    note = loss_gaps(make_results(losses, best)).attrs["note"]
    assert ("it has converged" in note) == converged
    assert ("has not converged" in note) != converged
    assert "Between rounds 50 and 100" in note


def test_the_run_that_changes_most_decides_whether_a_reference_has_converged():
    losses = [[[1, 1], [1, 1], [0.5, 1.16]]] * 2
    best = [[[5, 5], [0, 2 * error], [0, 0]] for error in (0.001, 0.2)]
    assert "has not converged" in loss_gaps(make_results(losses, best)).attrs["note"]


def test_an_error_that_clients_have_in_common_changes_no_spread():
    first, second = (
        loss_gaps(make_results([[LOSSES]], [[best]], rounds=[8]))
        for best in (BEST, np.add(BEST, 0.3))
    )
    names = ("loss_gap_standard_deviation", "loss_gap_variance")
    for name in names:
        np.testing.assert_allclose(first[name], second[name], atol=1e-12)
    np.testing.assert_allclose(
        first["loss_gap"] - second["loss_gap"], [[[[0.3] * 3]], [[[np.nan] * 3]]]
    )


def test_trained_models_have_gaps_in_tables_and_comparisons():
    data = ff.data.load("digits", ff.data.dirichlet(num_clients=6, alpha=0.3))
    sgd = ff.solvers.SGD(0.5, batch_size=20, epochs=2)
    roles = {"model": ff.models.logistic(10), "selector": ff.selectors.Full()}
    methods = {
        "fedavg": ff.Round(**roles, solver=sgd, aggregator=ff.aggregators.Mean()),
        "local_converged": ff.Round(
            **roles, solver=ff.solvers.Local(sgd), aggregator=ff.aggregators.Mean()
        ),
        "slow": ff.Round(
            **roles, solver=sgd.replace(learning_rate=0.001), aggregator=ff.aggregators.Mean()
        ),
    }
    results = ff.results.combine(
        {
            name: ff.fit(method, data, rounds=8, seeds=(0, 1), eval_every=4).dataset
            for name, method in methods.items()
        }
    )
    gaps = loss_gaps(results, split="train")
    expected = results["train_loss"].sel(algorithm="slow", round=4) - results[
        "personalized_train_loss"
    ].sel(algorithm="local_converged", round=8)
    np.testing.assert_allclose(gaps["loss_gap"].sel(algorithm="slow", round=4), expected)
    assert (gaps["loss_gap"].sel(algorithm="slow", round=8) > 0).all()
    (table,) = [table for table in final_tables(results) if table.title.startswith("Loss gap")]
    assert [row[0] for row in table.rows] == ["fedavg", "slow"]
    assert "Between rounds 4 and 8" in table.note
    compared = compare(results, "loss_gap_maximum")
    own = loss_gaps(results)["loss_gap_maximum"].isel(round=-1)
    difference = (own.sel(algorithm="slow") - own.sel(algorithm="fedavg")).mean()
    assert compared["difference"].sel(algorithm="slow").item() == pytest.approx(difference.item())
    assert compared.attrs["better"] == "lower"
    figure = ff.report.standard_figures(results)["loss_gaps"]
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
    assert [line.get_label() for line in drawn] == ["fedavg", "slow"]
    last = loss_gaps(results)["loss_gap"].sel(algorithm="slow").isel(round=-1)
    np.testing.assert_allclose(drawn[1].get_xdata()[1:], np.sort(last.values.ravel()))
    assert "loss_gaps" not in ff.report.standard_figures(results.sel(algorithm=["fedavg", "slow"]))
    assert not any(
        table.title.startswith("Loss gap")
        for table in final_tables(results.sel(algorithm=["fedavg", "slow"]))
    )


def test_mistakes_are_explained():
    results = make_results([[LOSSES]], [[BEST]], rounds=[8])
    with pytest.raises(ValueError, match=r"^reference='local'"):
        loss_gaps(results, "local")
    with pytest.raises(ValueError, match=r"^split='train': results have no train_loss"):
        loss_gaps(results, split="train")
    with pytest.raises(ValueError, match=r"^split='all'"):
        loss_gaps(results, split="all")


def make_accuracies(methods=("fedavg", "ditto", "local")):
    """Accuracies of two seeds, two evaluations and seven clients, one without test examples."""
    rng = np.random.default_rng(0)
    accuracy = rng.integers(0, 4, (2, len(methods), 2, 2, 7)) / 4
    accuracy[..., 3] = np.nan
    models, personalized = accuracy
    models[-1], personalized[0] = np.nan, np.nan  # `local` has no global model, FedAvg no others.
    values = {"test_accuracy": (DIMS, models), "personalized_test_accuracy": (DIMS, personalized)}
    return xr.Dataset(values, {"algorithm": list(methods)}), models, personalized


def test_the_share_counts_clients_with_lower_accuracy():
    """The last evaluation counts, of the reference's personalized models; ties do not count."""
    results, models, personalized = make_accuracies()
    shares = share_worse_off(results, "local")
    assert shares["algorithm"].values.tolist() == [
        "fedavg", "ditto", "ditto (personalized)", "local (personalized)",
    ]  # fmt: skip
    served = [models[0], models[1], personalized[1]]
    for model, share in zip(served, shares.values[:3], strict=True):
        for seed in range(2):
            worse = [
                model[seed, -1, client] < personalized[2, seed, -1, client]
                for client in range(7)
                if client != 3
            ]
            assert share[seed] == pytest.approx(sum(worse) / 6)
    assert np.isnan(shares.values[3]).all()


def test_the_reference_is_a_method_of_the_results():
    with pytest.raises(ValueError, match=r"^reference='local'"):
        share_worse_off(make_accuracies(("fedavg", "ditto", "alone"))[0], "local")
