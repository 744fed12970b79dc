"""Several methods on the same federation, compiled while others train."""

import numpy as np
import pytest
import xarray as xr

from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.base import Selector
from fedjax_fair.simulate import Round
from fedjax_fair.training.fit import Callback, DivergenceError, train
from fedjax_fair.training.methods import train_methods

SETTINGS = {"rounds": 4, "seeds": (2, 0), "eval_every": 2, "on_nonfinite": "raise"}


class Heard(Callback):
    """Notes what happens to a method, in the order of all."""

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


def each(methods, federation, tmp_path, events):
    return train_methods(
        methods,
        federation,
        callbacks=lambda name: [Heard(name, events)],
        checkpoints=lambda name: tmp_path / name,
        **SETTINGS,
    )


def test_results_are_those_of_methods_trained_alone(model, federation, tmp_path):
    methods = {f"of {count}": method(model, count) for count in (2, 3, 4, 5)}
    events = []
    found = dict(each(methods, federation, tmp_path, events))
    assert list(found) == list(methods)
    for name, round in methods.items():
        alone = train(round, federation, **SETTINGS)
        xr.testing.assert_identical(found[name].dataset, alone.dataset)
        np.testing.assert_array_equal(found[name].rounds, alone.rounds)
    heard = ("start", "compiled", 0, 2, 4, "end")
    assert events == [(name, what) for name in methods for what in heard]


def test_what_has_been_trained_is_not_trained_again(model, federation, tmp_path):
    methods = {"a": method(model, 2), "b": method(model, 3)}
    first = dict(each(methods, federation, tmp_path, []))
    events = []
    again = dict(each(methods, federation, tmp_path, events))
    assert events == [(name, what) for name in methods for what in ("start", "compiled", "end")]
    for name in methods:
        xr.testing.assert_identical(first[name].dataset, again[name].dataset)


def test_it_goes_on_from_the_checkpoints_of_train(model, federation, tmp_path):
    alone = train(method(model, 2), federation, checkpoints=tmp_path / "a", **SETTINGS)
    events = []
    found = dict(each({"a": method(model, 2)}, federation, tmp_path, events))
    assert events == [("a", what) for what in ("start", "compiled", "end")]
    xr.testing.assert_identical(found["a"].dataset, alone.dataset)


def test_a_method_that_cannot_be_traced_ends_when_its_turn_has_come(model, federation, tmp_path):
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
    with pytest.raises(ValueError, match="no such client"):
        dict(each(methods, federation, tmp_path, events))
    assert ("b", "end") in events
    assert events[-1] == ("broken", "start")
    assert {name for name, _ in events} == {"a", "b", "broken"}


def test_a_method_that_diverges_leaves_those_before_it(model, federation, tmp_path):
    methods = {
        "a": method(model, 2),
        "b": method(model, 2, learning_rate=1e38),
        "c": method(model, 3),
    }
    events = []
    with pytest.raises(DivergenceError, match="not finite"):
        dict(each(methods, federation, tmp_path, events))
    assert {name for name, what in events if what == "end"} == {"a"}
    assert events[-1][0] == "b"


def test_methods_share_the_data_and_the_program_that_evaluates_them(
    model, federation, tmp_path, monkeypatch
):
    from fedjax_fair.training.batch import RunBatch

    batches, compiled = [], []
    compile_one = RunBatch.compile

    def counted(batch, lowered, options=None):
        batches.append(batch)
        compiled.append(compile_one(batch, lowered, options))
        return compiled[-1]

    monkeypatch.setattr(RunBatch, "compile", counted)
    methods = {str(count): method(model, count) for count in (2, 3, 4)}
    dict(each(methods, federation, tmp_path / "sizes", []))
    assert len(set(map(id, batches))) == 1
    assert len(set(compiled)) == 2 * len(methods) + 1
    compiled.clear()
    methods = {str(rate): method(model, 5, rate) for rate in (0.1, 0.2, 0.3)}
    dict(each(methods, federation, tmp_path / "rates", []))
    assert len(set(compiled)) == 3  # Other numbers compile nothing.
