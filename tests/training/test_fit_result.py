"""Trained models: predictions, the best evaluation, pretrained starts, extended runs."""

from functools import cache

import jax
import numpy as np
import pytest
import xarray as xr
from conftest import NUM_CLASSES, make_federation
from test_checkpoints import Stop

from fedjax_fair import aggregators, models, selectors, solvers
from fedjax_fair.data.federated import stack
from fedjax_fair.roles import Variables
from fedjax_fair.rounds.round import Round
from fedjax_fair.training import fit

SEEDS = (3, 1)
DATA = make_federation()
MODEL = models.logistic(NUM_CLASSES)  # Installed, so that it is traced once.


def method(model=None):
    return Round(
        model or MODEL, selectors.Uniform(3), solvers.SGD(0.1, 2, steps=2),
        aggregators.Mean(),
    )  # fmt: skip


ROUND = method()


@pytest.fixture(scope="module")
def fitted():
    return fit(ROUND, DATA, rounds=6, seeds=SEEDS, eval_every=2)


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("examples", [1, 500, 1203])
def test_predictions_are_those_of_the_formulas(fitted, examples):
    x = np.random.default_rng(0).normal(size=(examples, 4)).astype(np.float32)
    for place, seed in enumerate(SEEDS):
        variables = fitted.variables_for(seed)
        assert variables.state == {}
        (params,) = variables.params.values()
        assert isinstance(params["kernel"], np.ndarray)
        logits = x @ params["kernel"] + params["bias"]
        np.testing.assert_allclose(fitted.outputs(x)[place], logits, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            fitted.predict_proba(x)[place], softmax(logits), rtol=1e-4, atol=1e-5
        )
        clear = np.ptp(np.sort(logits)[:, -2:], axis=1) > 1e-4
        np.testing.assert_array_equal(fitted.predict(x)[place][clear], logits.argmax(axis=1)[clear])


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("nothing", [np.zeros((0, 4), np.float32), np.float32(1)])
def test_no_examples_are_an_error(fitted, nothing):
    with pytest.raises(ValueError, match="features"):
        fitted.predict(nothing)


def test_an_evaluation_equals_the_last_one_of_fit(fitted):
    measured, last = fitted.evaluate(DATA), fitted.dataset.isel(round=-1)
    assert {"test_accuracy", "test_loss", "class_accuracy", "sigma_acc"} < set(measured)
    assert "participation_gini" not in measured
    for name, values in measured.items():
        np.testing.assert_allclose(values, last[name], rtol=1e-4, atol=1e-5, err_msg=str(name))
        assert values.attrs == last[name].attrs


def test_an_evaluation_on_other_clients_with_groups_and_partitions(fitted):
    groups = np.array([0, 1, 0], np.int32)
    one, other = (make_federation(seed, (4, 7, 2))._replace(groups=groups) for seed in (8, 8))
    rest = other.test._replace(order=other.test.order[::-1].copy())
    measured = fitted.evaluate(stack([one, other._replace(test=rest)]))
    assert measured.test_accuracy.shape == (2, 3)
    for place, data in enumerate((one, other._replace(test=rest))):
        alone = fitted.evaluate(data).isel(seed=place)
        xr.testing.assert_allclose(measured.isel(seed=place), alone)
        accuracy = alone.test_accuracy.values
        assert alone.group_accuracy_gap == pytest.approx(abs(accuracy[[0, 2]].mean() - accuracy[1]))


def test_invalid_data_and_seeds_are_errors(fitted):
    with pytest.raises(ValueError, match="partitions"):
        fitted.evaluate(stack([DATA] * 3))
    with pytest.raises(ValueError, match="outputs"):
        fitted.evaluate(DATA._replace(num_classes=4))
    with pytest.raises(ValueError, match="seed=0"):
        fitted.variables_for(0)


def test_a_result_is_printed_in_three_lines(fitted):
    assert str(fitted).splitlines() == [
        "data        small: 6 clients, 32 + 32 examples",
        "runs        2 seeds (3, 1), models of round 6, 4 evaluations",
        "parameters  15 in 2 arrays, for each seed",
    ]
    best = fitted._replace(rounds=np.array([2, 6]))
    assert "models of round 2 to 6" in repr(best)


def test_results_are_those_of_fit(fitted):
    assert fit(ROUND, DATA, rounds=6, seeds=SEEDS, eval_every=2).dataset.identical(fitted.dataset)
    assert fitted.rounds.tolist() == [6, 6]


@cache
def after(rounds):
    return fit(ROUND, DATA, rounds=rounds, seeds=SEEDS, eval_every=2).variables


def of_seed(variables, place):
    return jax.tree.map(lambda leaf: leaf[place], variables)


def best_at_4_and_2(evaluation):
    """The second seed is best after 2 rounds, and as good after 6; the first after 4."""
    scores = {0: (0.0, np.nan), 2: (np.nan, 2.0), 4: (1.0, 1.0), 6: (0.5, 2.0)}
    return scores[evaluation.round]


@pytest.mark.parametrize("stopped", [None, 4])
def test_the_best_evaluation_of_each_seed_is_kept(tmp_path, stopped):
    settings = {"seeds": SEEDS, "eval_every": 2, "best": best_at_4_and_2}
    if stopped is not None:
        settings["checkpoints"] = tmp_path
        fit(ROUND, DATA, rounds=6, **settings, callbacks=[Stop(stopped)])
    best = fit(ROUND, DATA, rounds=6, **settings)
    assert best.rounds.tolist() == [4, 2]
    for place, rounds in enumerate((4, 2)):
        expected = of_seed(after(rounds), place)
        jax.tree.map(np.testing.assert_array_equal, of_seed(best.variables, place), expected)
    # Results are of all evaluations, whichever is best.
    assert best.dataset["round"].values.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("score", [lambda e: 1.0, lambda e: [1.0], lambda e: np.ones((2, 6))])
def test_a_score_of_the_wrong_shape_is_an_error(score):
    with pytest.raises(ValueError, match="best:"):
        fit(ROUND, DATA, rounds=2, seeds=SEEDS, best=score)


def test_checkpoints_of_another_score_are_an_error(tmp_path):
    settings = {"rounds": 2, "seeds": SEEDS, "checkpoints": tmp_path}
    fit(ROUND, DATA, **settings)
    with pytest.raises(ValueError, match="best"):
        fit(ROUND, DATA, **settings, best=lambda e: np.zeros(2))


def test_training_starts_from_given_variables(fitted):
    start = fitted.variables_for(seed=1)
    again = fit(method(models.pretrained(MODEL, start)), DATA, rounds=2, seeds=(1, 2))
    np.testing.assert_array_equal(
        again.dataset.test_loss.isel(round=0), [fitted.dataset.test_loss.sel(seed=1, round=6)] * 2
    )
    jax.tree.map(lambda new, old: np.testing.assert_array_less(0, abs(new[0] - old)),
                 again.variables.params, start.params)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {"kernel": p["kernel"][:2], "bias": p["bias"]}, r"'kernel'.*\[2, 3\].*\[4, 3\]"),
        (lambda p: {"kernel": p["kernel"]}, r"expected .*'bias'.* got .*'kernel'"),
        (lambda p: p | {"bias": p["bias"].astype(int)}, r"'bias'.* is int.*: expected float32"),
    ],
)
def test_variables_of_another_network_are_an_error(fitted, change, message):
    ((layer, params),) = fitted.variables_for(seed=1).params.items()
    start = Variables({layer: change(params)}, {})
    with pytest.raises(ValueError, match=message):
        fit(method(models.pretrained(MODEL, start)), DATA, rounds=1)


@pytest.mark.parametrize(("short", "long"), [(5, 8), (1, 4), (4, 6)])
def test_an_extended_run_equals_a_longer_one(tmp_path, short, long):
    """Also where the shorter one ended between two evaluations of the longer."""
    settings = {"seeds": SEEDS, "eval_every": 2}
    fit(ROUND, DATA, rounds=short, **settings, checkpoints=tmp_path)
    extended = fit(ROUND, DATA, rounds=long, **settings, checkpoints=tmp_path)
    longer = fit(ROUND, DATA, rounds=long, **settings)
    xr.testing.assert_identical(extended.dataset, longer.dataset)
    jax.tree.map(np.testing.assert_array_equal, extended.variables, longer.variables)
