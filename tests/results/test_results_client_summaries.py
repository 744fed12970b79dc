"""Summaries over clients of any variable of results."""

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fedjax_fair as ff
from fedjax_fair.analysis import front
from fedjax_fair.metrics import predictions
from fedjax_fair.results import client_summaries, compare, task_metrics
from fedjax_fair.results.comparison import comparison_table

VALUES = [0.2, 0.5, 1.1, 0.4, 3, 0.6, 0.8, 0.7, 0.9, 0.3, 2, np.nan]
SIGNED = [-3, 0.5, 2, np.nan]


def summarize(values, name="own", **options):
    dims = ("round", "client")
    found = client_summaries(xr.Dataset({name: (dims, [values])}), name, **options)
    assert all(one.dims == ("round",) for one in found.values())
    return {str(key).removeprefix(f"{name}_"): one.item() for key, one in found.items()}


@pytest.mark.parametrize(("better", "worst"), [("lower", 2.5), ("higher", 0.25)])
def test_summaries_by_hand_ignore_clients_without_a_value(better, worst):
    expected = {
        "mean_clients": 0.954545,
        "minimum": 0.2,
        "maximum": 3,
        "worst_10pct": worst,
        "best_10pct": 2.75 - worst,
        "standard_deviation": 0.799277,
        "variance": 0.799277**2,
        "gini": 0.413853,
        "jain_index": 0.587843,
        "entropy": 2.107442,
        "angle": np.degrees(np.arccos(0.587843**0.5)),  # The squared cosine is Jain's index.
    }
    found = summarize(VALUES, better=better)
    assert found == pytest.approx(expected, abs=2e-6, rel=2e-6)


def test_signed_values_are_worst_far_from_zero_and_have_no_shares():
    found = summarize(SIGNED, better="zero")
    assert (found["worst_10pct"], found["best_10pct"]) == (3, 0.5)
    assert (found["minimum"], found["maximum"]) == (-3, 2)
    assert found["mean_clients"] == pytest.approx(-0.5 / 3)
    assert not {"gini", "jain_index", "entropy", "angle"} & set(found)
    assert "gini" not in summarize([0.5, 0.7], better="higher", scale="interval")


@pytest.fixture(scope="module")
def runs():
    """Two methods of a regression, with signed errors."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True) + 10 + np.arange(120)[:, None] % 6
    data = ff.data.from_arrays(
        x, y, clients=np.arange(120) % 6, test_fraction=0.5,
        sensitive_features={"sex": np.array(["f", "m"])[np.arange(120) // 6 % 2]},
    )  # fmt: skip
    found = {}
    for name, rate in (("slow", 0.01), ("fast", 0.1)):
        method = ff.Round(
            ff.models.as_regression(ff.models.logistic(1)),
            ff.selectors.Full(),
            ff.solvers.SGD(rate, batch_size=5, steps=5),
            ff.aggregators.Mean(),
        )
        fitted = ff.fit(method, data, rounds=3, seeds=(0, 1), metrics=[predictions.bias()])
        found[name] = fitted.dataset
    return ff.results.combine(found)


def test_recorded_summaries_are_those_of_their_variables(runs):
    for name, metric in (("test_bias", "bias"), ("test_r2", "r2")):
        found = client_summaries(runs, name)
        for suffix in ("mean_clients", "worst_10pct", "best_10pct", "standard_deviation"):
            expected = runs[f"{metric}_{suffix}"]
            np.testing.assert_allclose(found[f"{name}_{suffix}"], expected, rtol=1e-5)
            assert found[f"{name}_{suffix}"].attrs["better"] == expected.attrs["better"]
        assert f"{name}_gini" not in found  # Of an interval scale.


def test_a_bias_is_shown_last_and_is_no_measure_of_the_best_model(runs):
    assert [each.name for each in task_metrics.quantities(runs)][-1] == "bias"
    groups = runs["sensitive_group_bias"]
    far = groups.where(abs(groups) == abs(groups).max("sensitive_group")).sum("sensitive_group")
    np.testing.assert_allclose(runs["worst_group_bias"], far)
    compared = compare(runs, "bias_mean_clients")
    assert comparison_table(compared, 2).note.endswith("Closer to 0 is better.")
    with pytest.raises(ValueError, match=r"^metric='bias_mean_clients': expected one of which"):
        front(runs, unfairness="bias_mean_clients")


def test_comparisons_and_fronts_take_summaries_by_name(runs):
    last = runs["test_mean_absolute_error"].isel(round=-1)
    spread = last.max("client")
    compared = compare(runs, "test_mean_absolute_error_maximum")
    difference = (spread.sel(algorithm="fast") - spread.sel(algorithm="slow")).mean()
    assert compared["difference"].item() == pytest.approx(difference.item(), rel=1e-5)
    assert (compared.attrs["better"], compared.attrs["units"]) == ("lower", "unit of the label")
    gini = ff.metrics.fairness.gini(jnp.asarray(last.isel(algorithm=1, seed=0).values))
    points = front(runs, unfairness="test_mean_absolute_error_gini")
    assert points["unfairness"][1, 0].item() == pytest.approx(float(gini), rel=1e-5)
    with pytest.raises(ValueError, match=r"^metric='test_bias_gini'"):
        compare(runs, "test_bias_gini")


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (VALUES, {}, r"^better=None: own has no direction; use one of"),
        (VALUES, {"better": "more"}, r"^better='more'"),
        (VALUES, {"better": "lower", "scale": "log"}, r"^scale='log'"),
        (SIGNED, {"better": "lower", "scale": "ratio"}, r"^scale='ratio': own has the value -3"),
    ],
)
def test_mistakes_are_explained(values, options, message):
    with pytest.raises(ValueError, match=message):
        summarize(values, **options)


def test_a_variable_without_clients_is_refused():
    with pytest.raises(ValueError, match=r"^name='loss': expected one of .*own"):
        client_summaries(xr.Dataset({"own": ("client", VALUES), "loss": 1.0}), "loss")
