"""Personalized models of results."""

import jax
import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.app import model_files


def test_personalized_models_are_those_that_were_evaluated(as_users_call):
    data = ff.data.load("digits", ff.data.classes_per_client(6, classes=3))
    solver = ff.solvers.Ditto(ff.solvers.SGD(0.1, 10, epochs=1), personal_prox=0.5)
    method = ff.Round(
        ff.models.logistic(10), ff.selectors.Uniform(2), solver, ff.aggregators.Mean()
    )
    fitted = ff.fit(method, data, rounds=3, eval_every=3, seeds=(0, 5))
    measured = fitted.dataset.personalized_test_accuracy.isel(round=-1).values
    start, sizes = np.asarray(data.test.offsets), np.asarray(data.test.sizes)
    for client in range(6):
        rows = data.test.order[start[client] : start[client] + sizes[client]]
        predicted = fitted.predict(data.test.features[rows], client=client)
        accuracy = (predicted == data.test.labels[rows]).mean(axis=1)
        np.testing.assert_allclose(accuracy, measured[:, client], atol=1e-6)
    for client in (-1, 6, True, "a"):
        with pytest.raises(ValueError, match="client="):
            fitted.variables_for(5, client=client)
    with pytest.raises(ValueError, match="best:"):
        ff.fit(method, data, rounds=1, best=lambda evaluation: evaluation.summaries["sigma_acc"])
    fedavg = method.replace(solver=solver.solver)
    with pytest.raises(ValueError, match="client=0"):
        ff.fit(fedavg, data, rounds=1).predict(data.test.features[:1], client=0)


def test_personalized_models_of_a_partition_per_seed_are_those_that_were_evaluated():
    parts = [
        ff.data.load("digits", ff.data.classes_per_client(6, classes=3), seed=seed)
        for seed in (0, 1)
    ]
    solver = ff.solvers.Ditto(ff.solvers.SGD(0.1, 10, epochs=1), personal_prox=0.5)
    method = ff.Round(
        ff.models.logistic(10), ff.selectors.Uniform(2), solver, ff.aggregators.Mean()
    )
    fitted = ff.fit(method, ff.data.stack(parts), rounds=3, eval_every=3, seeds=(0, 5))
    measured = fitted.dataset.personalized_test_accuracy.isel(round=-1).values
    for run, data in enumerate(parts):
        start, sizes = np.asarray(data.test.offsets), np.asarray(data.test.sizes)
        for client in range(6):
            rows = data.test.order[start[client] : start[client] + sizes[client]]
            predicted = fitted.predict(data.test.features[rows], client=client)[run]
            accuracy = (predicted == data.test.labels[rows]).mean()
            np.testing.assert_allclose(accuracy, measured[run, client], atol=1e-6)


def test_stored_personalized_models_are_those_of_the_run(tmp_path, monkeypatch):
    data = ff.data.load("digits", ff.data.classes_per_client(6, classes=3))
    solver = ff.solvers.Ditto(ff.solvers.SGD(0.1, 10, epochs=1), personal_prox=0.5)
    method = ff.Round(
        ff.models.logistic(10), ff.selectors.Uniform(2), solver, ff.aggregators.Mean()
    )
    fitted = ff.fit(method, data, rounds=3, eval_every=3, seeds=(0, 5))
    model_files.save_personalized(fitted, tmp_path / "ditto")
    stored = model_files._read(tmp_path / "ditto.personalized")
    for run, seed in enumerate((0, 5)):
        for client in range(6):
            expected = fitted.variables_for(seed, client=client)
            found = jax.tree.map(lambda leaf, at=(run, client): leaf[at], stored)
            jax.tree.map(np.testing.assert_array_equal, found, expected)
    monkeypatch.setattr(model_files, "_MAX_BYTES", 100)
    with pytest.warns(UserWarning, match="other.personalized"):
        model_files.save_personalized(fitted, tmp_path / "other")


@pytest.mark.usefixtures("as_users_call")
def test_clients_are_selected_by_name_or_id(federation):
    names = ("c", "a", "b", "0", "e", "f")
    data = federation._replace(client_names=names)
    solver = ff.solvers.Ditto(ff.solvers.SGD(0.1, 2, epochs=1))
    round = ff.Round(ff.models.logistic(3), ff.selectors.Full(), solver, ff.aggregators.Mean())
    fitted = ff.fit(round, data, rounds=1)
    examples = federation.test.features
    for client, name in enumerate(names):
        expected = fitted.outputs(examples, client=client)
        np.testing.assert_array_equal(fitted.outputs(examples, client=name), expected)
    assert not np.array_equal(
        fitted.outputs(examples, client="0"), fitted.outputs(examples, client=0)
    )
    with pytest.raises(ValueError, match="client='g'"):
        fitted.predict(examples, client="g")
    with pytest.raises(ValueError, match="client='c'"):
        ff.fit(round, federation, rounds=1).variables_for(0, client="c")
