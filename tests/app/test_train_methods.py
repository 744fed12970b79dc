"""Several methods on the same data, compiled while others train."""

import numpy as np
import pytest
import xarray as xr
from conftest import NUM_CLASSES

from fedjax_fair import aggregators, models, selectors, solvers
from fedjax_fair.app.experiment import train_methods
from fedjax_fair.faults import Byzantine
from fedjax_fair.roles import Selector
from fedjax_fair.rounds.round import Round
from fedjax_fair.training.fit import fit
from fedjax_fair.training.loop import Callback, DivergenceError
from fedjax_fair.training.train_options import TrainOptions

SETTINGS = {"rounds": 4, "seeds": (2, 0), "eval_every": 2, "on_nonfinite": "raise"}


@pytest.fixture
def model():
    """An installed model, whose rounds of equal structure are traced once."""
    return models.logistic(NUM_CLASSES)


class Recorder(Callback):
    """Records the calls of a method."""

    def __init__(self, name, events):
        self._note = lambda what: events.append((name, what))

    def on_start(self, rounds, seeds):
        self._note("start")

    def on_compiled(self, num_bytes):
        self._note("compiled")

    def on_evaluation(self, evaluation):
        self._note(evaluation.round)

    def on_end(self, results):
        self._note("end")


def method(model, count, learning_rate=0.1, selector=None):
    solver = solvers.SGD(learning_rate, 2, epochs=1)
    return Round(model, selector or selectors.Uniform(count), solver, aggregators.Mean())


def train_all(methods, federation, tmp_path, events):
    return train_methods(
        methods,
        federation,
        SETTINGS["seeds"],
        TrainOptions(4, 2, True, "raise"),
        callbacks=lambda name: [Recorder(name, events)],
        checkpoints=lambda name: tmp_path / name,
    )


def test_results_are_those_of_methods_trained_alone(model, federation, tmp_path):
    methods = {f"of {count}": method(model, count) for count in (2, 3, 4)}
    events = []
    results = dict(train_all(methods, federation, tmp_path, events))
    assert list(results) == list(methods)
    for name, round in methods.items():
        alone = fit(round, federation, **SETTINGS)
        xr.testing.assert_identical(results[name].dataset, alone.dataset)
        np.testing.assert_array_equal(results[name].rounds, alone.rounds)
    calls = ("start", "compiled", 0, 2, 4, "end")
    assert events == [(name, what) for name in methods for what in calls]


def test_what_has_been_trained_is_not_trained_again(model, federation, tmp_path):
    methods = {"a": method(model, 2), "b": method(model, 3)}
    first = dict(train_all(methods, federation, tmp_path, []))
    events = []
    again = dict(train_all(methods, federation, tmp_path, events))
    assert events == [(name, what) for name in methods for what in ("start", "compiled", "end")]
    for name in methods:
        xr.testing.assert_identical(first[name].dataset, again[name].dataset)


def test_checkpoints_of_train_are_used(model, federation, tmp_path):
    alone = fit(method(model, 2), federation, checkpoints=tmp_path / "a", **SETTINGS)
    events = []
    results = dict(train_all({"a": method(model, 2)}, federation, tmp_path, events))
    assert events == [("a", what) for what in ("start", "compiled", "end")]
    xr.testing.assert_identical(results["a"].dataset, alone.dataset)


def test_a_tracing_error_is_raised_when_the_method_is_next(model, federation, tmp_path):
    def select(key, state, context):
        raise ValueError("no such client")

    broken = Selector.from_functions(select, selectors.Uniform(2).init)
    methods = {
        "a": method(model, 2),
        "b": method(model, 3),
        "broken": method(model, 2, selector=broken),
        "c": method(model, 4),
    }
    events = []
    with pytest.raises(ValueError, match="client"):
        dict(train_all(methods, federation, tmp_path, events))
    assert ("b", "end") in events
    assert events[-1] == ("broken", "start")
    assert {name for name, _ in events} == {"a", "b", "broken"}


def test_a_method_with_clients_that_do_not_exist_stops_all_before_training(
    model, federation, tmp_path
):
    bad = method(model, 3).replace(faults=Byzantine([federation.num_clients], "nan"))
    events = []
    with pytest.raises(ValueError, match="clients="):
        dict(train_all({"a": method(model, 2), "bad": bad}, federation, tmp_path, events))
    assert events == []


def test_a_method_that_diverges_leaves_those_before_it(model, federation, tmp_path):
    methods = {
        "a": method(model, 2),
        "b": method(model, 2, learning_rate=1e38),
        "c": method(model, 3),
    }
    events = []
    with pytest.raises(DivergenceError, match="finite"):
        dict(train_all(methods, federation, tmp_path, events))
    assert {name for name, what in events if what == "end"} == {"a"}
    assert events[-1][0] == "b"


def test_methods_share_data_and_evaluation(model, federation, tmp_path, monkeypatch):
    from fedjax_fair.training.batch import RunBatch

    batches, compiled = [], []
    compile_one = RunBatch.compile

    def counted(batch, *arguments):
        batches.append(batch)
        compiled.append(compile_one(batch, *arguments))
        return compiled[-1]

    monkeypatch.setattr(RunBatch, "compile", counted)
    methods = {str(count): method(model, count) for count in (2, 3, 4)}
    dict(train_all(methods, federation, tmp_path / "sizes", []))
    assert len(set(map(id, batches))) == 1
    assert len(set(compiled)) == 2 * len(methods) + 1
    compiled.clear()
    methods = {str(rate): method(model, 2, rate) for rate in (0.1, 0.2, 0.3)}
    dict(train_all(methods, federation, tmp_path / "rates", []))
    assert len(set(compiled)) == 3  # Other hyperparameters compile nothing.
