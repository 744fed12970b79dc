"""Groups of clients from the metric to the figure: what a run with them keeps and shows."""

import io

import jax
import numpy as np
import pytest
import xarray as xr
from conftest import linear_model, make_federation

from fedjax_fair import aggregators, report, results, selectors, solvers
from fedjax_fair.data.federated import stack
from fedjax_fair.metrics import client_groups as metric
from fedjax_fair.report.groups import cluster_agreement, embedding, group_curves
from fedjax_fair.results.tables import final_tables
from fedjax_fair.rounds.round import Round
from fedjax_fair.training.fit import fit

VALUES = np.array([0.5, np.nan, 0.25, 0.75, np.nan, 1.0], np.float32)
GROUPS = np.array([0, 0, 2, 2, 3, 0], np.int32)


def test_means_of_groups_leave_out_clients_that_are_not_measured():
    sizes = np.array([2, 5, 1, 1, 3, 4], np.int32)

    @jax.jit
    def measure(values, groups):
        sigma = metric.sigma_acc(values, sizes, groups)
        return (
            metric.means(values, groups, 5),
            metric.lowest(values, groups),
            metric.gap(values, groups),
            sigma,
        )

    means, lowest, gap, sigma = measure(VALUES, GROUPS)
    np.testing.assert_allclose(means, [0.75, np.nan, 0.5, np.nan, np.nan])
    assert (lowest, gap) == (0.5, 0.25)
    pooled = (0.5 * 2 + 0.25 + 0.75 + 4.0) / 8
    expected = np.sqrt((2 * (0.75 - pooled) ** 2 + 2 * (0.5 - pooled) ** 2) / 4)
    np.testing.assert_allclose(sigma, expected, rtol=1e-6)
    assert all(np.isnan(value).all() for value in measure(np.full(6, np.float32(np.nan)), GROUPS))


def grouped(groups=(0, 1, 1, 0, 2, 2)):
    return make_federation()._replace(groups=np.array(groups, np.int32))


@pytest.fixture(scope="module")
def dataset():
    model, solver = linear_model(), solvers.SGD(0.1, 4, epochs=1)
    contenders = {"mean": aggregators.Mean(), "equitable": aggregators.Equitable(2)}
    return results.combine(
        {
            name: fit(
                Round(model, selectors.Uniform(4), solver, aggregator),
                grouped(),
                rounds=4,
                seeds=(0, 1),
                eval_every=2,
            ).dataset
            for name, aggregator in contenders.items()
        }
    )


def test_results_hold_every_group(dataset):
    dims = ("algorithm", "seed", "round", "planted_group")
    for name in ("accuracy", "loss"):
        of_clients = (
            dataset[f"test_{name}"].transpose("algorithm", "seed", "round", "client").values
        )
        expected = np.stack(
            [of_clients[..., np.array(grouped().groups) == g].mean(axis=-1) for g in range(3)],
            axis=-1,
        )
        of_groups = dataset[f"group_{name}"].transpose(*dims)
        np.testing.assert_allclose(of_groups, expected, rtol=1e-5)
        gaps = (of_groups.max("planted_group") - of_groups.min("planted_group")).values
        recorded = dataset[f"group_{name}_gap"].transpose(*dims[:3])
        np.testing.assert_allclose(recorded, gaps, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        dataset.group_accuracy_minimum, dataset.group_accuracy.min("planted_group"), rtol=1e-5
    )


def test_results_hold_the_info_of_the_aggregator(dataset):
    own = dataset.sel(algorithm="equitable")
    assert own.aggregation_cluster.dims == ("seed", "training_round", "slot")
    assert own.aggregation_nmi.dims == ("seed", "training_round")
    assert ((own.aggregation_nmi >= 0) & (own.aggregation_nmi <= 1)).all()
    # Members of a cluster weigh the same, and clusters weigh the same.
    for weights, labels in zip(
        own.cohort_weights.values.reshape(-1, 4),
        own.aggregation_cluster.values.reshape(-1, 4),
        strict=True,
    ):
        totals = [weights[labels == label].sum() for label in set(labels)]
        np.testing.assert_allclose(totals, 1 / len(totals), rtol=1e-5)
    assert dataset.aggregation_nmi.sel(algorithm="mean").isnull().all()


def test_groups_may_differ_between_partitions():
    parts = [grouped(), grouped((2, 0, 0, 1, 1, 0))]
    same = parts[0].train
    parts[1] = parts[1]._replace(
        train=parts[1].train._replace(features=same.features, labels=same.labels),
        test=parts[1].test._replace(features=parts[0].test.features, labels=parts[0].test.labels),
    )
    method = Round(
        linear_model(), selectors.Uniform(3), solvers.SGD(0.1, 4, steps=1), aggregators.Mean()
    )
    run = fit(method, stack(parts), rounds=1, seeds=(0, 1), eval_every=1).dataset
    for seed, part in enumerate(parts):
        own = run.isel(seed=seed, round=-1)
        expected = [own.test_accuracy.values[part.groups == group].mean() for group in range(3)]
        np.testing.assert_allclose(own.group_accuracy, expected, rtol=1e-5)


def test_results_without_groups_omit_them():
    method = Round(
        linear_model(), selectors.Uniform(3), solvers.SGD(0.1, 4, steps=1), aggregators.Mean()
    )
    run = fit(method, make_federation(), rounds=1, eval_every=1).dataset
    assert not [name for name in run if str(name).startswith("group")]
    combined = results.combine({"mean": run})
    assert len(final_tables(combined)) == 1
    assert "group_curves" not in report.standard_figures(combined)


def test_the_table_of_groups_has_accuracies_and_agreement(dataset):
    methods, table = final_tables(dataset)
    assert methods.headings[-1] == "gap of groups"
    groups = tuple(f"group {group}\n2 clients" for group in range(3))
    assert table.headings == ("method", *groups, "gap", "sigma_acc", "NMI")
    last = dataset.isel(round=-1)
    for row, name in zip(table.rows, ("mean", "equitable"), strict=True):
        accuracy = 100 * last.group_accuracy.sel(algorithm=name, planted_group=1)
        assert row[2].startswith(f"{accuracy.mean().item():.1f} ±")
    nmi = dataset.aggregation_nmi.sel(algorithm="equitable").mean().item()
    assert [row[-1] for row in table.rows] == ["", f"{nmi:.2f}"]


def test_every_run_with_groups_gets_their_figures(dataset):
    names = set(report.standard_figures(dataset))
    assert {"group_curves", "cluster_agreement"} < names
    assert "cluster_agreement" not in report.standard_figures(dataset.drop_vars("aggregation_nmi"))


def test_curves_of_groups_are_means_over_seeds(dataset):
    figure = group_curves(dataset, "group_loss")
    figure.savefig(io.BytesIO(), dpi=40)
    for axes, name in zip(figure.axes, ("mean", "equitable"), strict=False):
        assert axes.get_title(loc="left") == name
        for group, line in enumerate(axes.lines):
            own = dataset.group_loss.sel(algorithm=name, planted_group=group)
            own = own.sel(round=line.get_xdata())  # Round 0 is left out: all are equal there.
            assert own["round"][-1] == dataset["round"][-1]
            np.testing.assert_allclose(line.get_ydata(), own.mean("seed"), rtol=1e-6)
    with pytest.raises(ValueError, match="no 'test_loss' over planted_group, seed, round"):
        group_curves(dataset, "test_loss")


def test_agreement_is_a_running_mean_of_those_who_look_for_clusters(dataset):
    figure = cluster_agreement(dataset)
    figure.savefig(io.BytesIO(), dpi=40)
    (line,) = figure.axes[0].lines
    recorded = dataset.aggregation_nmi.sel(algorithm="equitable").mean("seed").values
    np.testing.assert_allclose(line.get_ydata()[-1], recorded.mean(), rtol=1e-6)
    np.testing.assert_allclose(line.get_ydata()[0], recorded[0], rtol=1e-6)
    with pytest.raises(ValueError, match="no 'aggregation_nmi'"):
        cluster_agreement(xr.Dataset())


def test_an_embedding_shows_clusters_by_color_and_groups_by_shape():
    points = np.arange(12.0).reshape(4, 3)
    figure = embedding(points, clusters=[0, 1, 1, 1], groups=[0, 0, 1, 1])
    figure.savefig(io.BytesIO(), dpi=40)
    drawn = [np.asarray(dots.get_offsets()).tolist() for dots in figure.axes[0].collections]
    assert drawn == [[[0, 1]], [[3, 4]], [[6, 7], [9, 10]]]
    for bad in (
        {"points": points[:, :1], "clusters": [0, 1, 1, 1]},
        {"points": points, "clusters": [0, 1]},
        {"points": points, "clusters": [0, 1, 1, 1], "groups": [0]},
    ):
        with pytest.raises(ValueError, match="expected two or more coordinates"):
            embedding(**bad)
