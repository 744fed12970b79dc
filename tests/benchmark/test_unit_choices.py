"""Which results decide what in a unit, with made results in place of training."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app.settings.method import Range
from fedjax_fair.app.settings.registry import RANGES
from fedjax_fair.benchmark import measures, protocol, runner, tuning, unit
from fedjax_fair.benchmark.federations import FEDERATIONS, variables_of
from fedjax_fair.benchmark.train import Run
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.results.task_metrics import validation

NUM_BLOCKS = 4
TRACK = protocol.Track(("groups",), ("fedavg", "q_fedavg"), num_blocks=NUM_BLOCKS)
GROUPS = unit.Unit(FEDERATIONS["groups"], "fedavg", Path())
ROUNDS = np.array([0, 2, 4, 8])
VARIABLES = variables_of(ACCURACY)
MEAN, SPREAD = VARIABLES["accuracy"], VARIABLES["standard_deviation"]


def make_results(runs, levels, tests, spreads=None, diverged=False):
    """Results ``[runs, rounds]`` from accuracies of validation and of test examples."""
    levels, tests = (np.asarray(each, float) for each in (levels, tests))
    spreads = np.zeros_like(levels) if spreads is None else np.asarray(spreads, float)
    dims = ("run", "round")
    of_names = dict.fromkeys(VARIABLES.values(), levels) | {SPREAD: spreads}
    values = {validation(name): (dims, array) for name, array in of_names.items()}
    values |= dict.fromkeys(VARIABLES.values(), (dims, tests))
    places = np.where(diverged, 1, -1) * np.ones(len(runs), int)
    return xr.Dataset(
        values | {"diverged": ("run", places)},
        {
            "round": ROUNDS,
            "setting": ("run", [run.setting for run in runs]),
            "seed": ("run", [run.seed for run in runs]),
        },
    )


@pytest.fixture(scope="module")
def loaded():
    return runner.load(GROUPS, TRACK, None)


@pytest.fixture
def run_made(loaded, tmp_path, monkeypatch):
    """Runs a unit with made results, and returns the final ones and what was trained."""

    def run(level, test=lambda level: level, method="fedavg", factor=1.0, limit=np.inf):
        """``level(round, seed)`` is the validation accuracy, and ``test`` the test accuracy.

        Runs with step sizes above ``limit`` diverge.
        """
        trained = []

        def train(config, rounds, runs, data, *_, **__):
            levels = np.array([level(rounds[run.setting], run.seed) for run in runs])
            # Of the trained models, those of the second evaluation are best.
            curves = levels[:, None] + np.array([0.1, 0.02, 0.05, 0.01])
            seeds = list(dict.fromkeys(run.seed for run in runs))
            digests = [data.partition_digests[seeds.index(run.seed)] for run in runs]
            rates = [float(rounds[run.setting].solver.learning_rate) for run in runs]
            trained.extend(zip([run.seed for run in runs], rates, digests, strict=True))
            spreads = np.log(rates)[:, None] + 0 * curves
            return make_results(runs, curves, test(curves), spreads, np.greater(rates, limit))

        monkeypatch.setattr(unit, "train", train)
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        place = unit.Unit(FEDERATIONS["groups"], method, folder)
        unit.run_unit(place, TRACK, loaded._replace(operations=loaded.operations / factor))
        return results.open(place.file("final")), trained

    return run


def level_of(round, seed):
    """The best step size depends on the seed; one other step size is as good up to 0.5 points."""
    best = {1000: -0.5}.get(seed, -1.0 + 0.25 * (seed % 10))
    return 0.8 - 0.1 * abs(np.log10(float(round.solver.learning_rate)) - best)


def test_settings_are_chosen_on_validation_examples_of_their_block(run_made):
    final, _ = run_made(level_of)
    settings, chosen = (json.loads(final.attrs[name]) for name in ("settings", "chosen"))
    window = tuning.window(tuning.rates(NUM_BLOCKS), [0.1, 0.2, 0.9, 0.3])  # Around 0.3.
    assert settings == tuning.block_settings({"learning_rate": window}, NUM_BLOCKS)
    rates = np.log10([values["learning_rate"] for values in settings]).reshape(NUM_BLOCKS, 8)
    best = -1 + 0.25 * np.arange(NUM_BLOCKS)[:, None]
    levels = 0.8 - 0.1 * abs(rates - best)
    first = 8 * np.arange(NUM_BLOCKS)
    assert chosen["mean"] == (first + levels.argmax(axis=1)).tolist()
    is_near = levels >= levels.max(axis=1, keepdims=True) - 0.01
    assert (is_near.sum(axis=1) > 1).any()
    spreads = np.where(is_near, rates, np.inf)
    assert chosen["fairest"] == (first + spreads.argmin(axis=1)).tolist()
    assert (final.attrs["window"], final.attrs["at_limit"]) == (0, "{}")


def test_diverged_runs_give_no_window(run_made):
    final, _ = run_made(level_of, limit=0.2)
    window = {"learning_rate": Range(0.003, 0.3)}  # Around 0.03, although 0.3 would be better.
    assert json.loads(final.attrs["settings"]) == tuning.block_settings(window, NUM_BLOCKS)


@pytest.mark.parametrize("test", [lambda level: 1 - level, lambda level: 0 * level])
def test_test_examples_decide_nothing(run_made, test):
    (final, trained), (other, others) = run_made(level_of), run_made(level_of, test)
    assert trained == others
    for name in ("settings", "chosen", "at_limit", "window"):
        assert final.attrs[name] == other.attrs[name]
    for mine, theirs in zip(*map(measures._of_unit, (final, other)), strict=True):
        assert mine.criterion == theirs.criterion
        np.testing.assert_array_equal(mine.rounds, theirs.rounds)
        assert set(mine.rounds) == ({4} if mine.criterion == protocol.STOPPED else {8})


def test_final_runs_have_the_seed_and_the_partition_of_their_block(run_made):
    final, trained = run_made(level_of)
    settings, chosen = (json.loads(final.attrs[name]) for name in ("settings", "chosen"))
    digests = FEDERATIONS["groups"].load(None, range(1200, 1200 + NUM_BLOCKS)).partition_digests
    expected = {
        (1200 + block, settings[place]["learning_rate"], digests[block])
        for places in chosen.values()
        for block, place in enumerate(places)
    }
    of_final = [(seed, rate, digest) for seed, rate, digest in trained if seed in range(1200, 1300)]
    assert len(of_final) == len(expected)
    assert {(seed, float(f"{rate:.3g}"), digest) for seed, rate, digest in of_final} == expected
    assert {seed for seed, *_ in trained} == {1000, *range(1200, 1204), *range(1300, 1304)}


@pytest.mark.parametrize(("direction", "low"), [(1, 30.0), (-1, 3e-6)])
def test_the_window_moves_at_most_twice_and_its_limit_is_named(run_made, direction, low):
    def level(round, seed):
        return 0.5 + 0.01 * direction * np.log10(float(round.solver.learning_rate))

    final, trained = run_made(level)
    assert json.loads(final.attrs["at_limit"]) == {"learning_rate": direction}
    assert final.attrs["window"] == 2
    window = {"learning_rate": Range(low, 100 * low)}
    assert json.loads(final.attrs["settings"]) == tuning.block_settings(window, NUM_BLOCKS)
    assert len([run for run in trained if run[0] >= 1300]) == 3 * 8 * NUM_BLOCKS


def test_other_settings_move_once(run_made):
    def level(round, seed):
        return level_of(round, seed) + 0.1 * np.log10(float(round.aggregator.q))

    final, _ = run_made(level, method="q_fedavg")
    assert json.loads(final.attrs["at_limit"]) == {"q": 1}
    assert final.attrs["window"] == 1
    known = RANGES["q_fedavg"]["q"]
    found = [values["q"] for values in json.loads(final.attrs["settings"])]
    assert known.high < max(found) < 10 * known.high
    assert 10 * known.low < min(found)


def test_compute_is_relative_to_fedavg(run_made):
    final, _ = run_made(level_of, factor=2.0)
    assert final.attrs["relative_operations"] == pytest.approx(2)
    by_criterion = {each.criterion: each for each in measures._of_unit(final)}
    assert by_criterion["compute"].rounds.tolist() == [4] * NUM_BLOCKS
    assert by_criterion["mean"].rounds.tolist() == [8] * NUM_BLOCKS
    one, other = (by_criterion[name] for name in ("compute", "mean"))
    np.testing.assert_allclose(one.last[MEAN], one.dataset[MEAN].sel(round=4))
    np.testing.assert_allclose(other.last[MEAN], other.dataset[MEAN].sel(round=8))


def tuning_runs(num_blocks=2):
    return [Run(8 * b + i, 1300 + b) for i in range(8) for b in range(num_blocks)]


def test_diverged_runs_are_not_chosen():
    """Their last models are finite, because rounds without a finite update are skipped."""
    runs = tuning_runs()
    levels = np.random.default_rng(0).uniform(0.3, 0.9, (len(runs), len(ROUNDS)))
    levels[:, -1] = np.linspace(0.3, 0.9, len(runs))
    tuned = make_results(runs, levels, levels, diverged=np.isin(range(16), (13, 14)))
    # The last setting of the first block, and the seventh of the second, have diverged.
    assert unit.choose(tuned, GROUPS, 2, 1.0)["mean"] == [6, 15]
    assert unit.choose(make_results(runs, levels, levels), GROUPS, 2, 1.0)["mean"] == [7, 15]


@pytest.mark.parametrize(("relative", "place"), [(1.0, 3), (0.5, 3), (2.0, 2), (4.0, 1)])
def test_equal_compute_has_fewer_rounds_for_costly_methods(relative, place):
    runs = tuning_runs()
    levels = np.random.default_rng(0).uniform(0.3, 0.9, (len(runs), len(ROUNDS)))
    chosen = unit.choose(make_results(runs, levels, 0 * levels), GROUPS, 2, relative)
    best = levels.reshape(8, 2, len(ROUNDS)).argmax(axis=0)
    assert len({tuple(one) for one in best.T.tolist()}) == len(ROUNDS)
    assert chosen["compute"] == (best[:, place] + [0, 8]).tolist()
    assert chosen["mean"] == (best[:, -1] + [0, 8]).tolist()


def test_there_is_no_choice_without_a_model_within_the_operations():
    runs = tuning_runs()
    levels = np.tile(np.linspace(0.3, 0.9, len(runs))[:, None], len(ROUNDS))
    assert set(unit.choose(make_results(runs, levels, levels), GROUPS, 2, 4.1)) == {
        "mean",
        "fairest",
    }


def test_results_of_a_criterion_are_of_its_settings_in_the_order_of_blocks():
    """Settings are shared by criteria, so that runs are in another order than blocks."""
    chosen = {"mean": [0, 8, 16], "fairest": [3, 8, 19], "compute": [0, 9, 19]}
    runs = [
        *(Run(0, 1200), Run(8, 1201), Run(16, 1202)),
        *(Run(3, 1200), Run(19, 1202), Run(9, 1201)),
    ]
    of_run = np.array([run.setting + run.seed / 1e4 for run in runs])
    final = make_results(runs, *[np.tile(of_run[:, None], len(ROUNDS))] * 2)
    final = final.assign_attrs(
        federation="groups", method="fedavg", relative_operations=1.0, chosen=json.dumps(chosen),
        settings=json.dumps([{"learning_rate": float(i)} for i in range(24)]),
    )  # fmt: skip
    found = {each.criterion: each for each in measures._of_unit(final)}
    assert set(found) == {*chosen, protocol.STOPPED}
    for criterion, places in (chosen | {protocol.STOPPED: chosen["mean"]}).items():
        one = found[criterion]
        assert one.dataset["seed"].values.tolist() == [1200, 1201, 1202]
        assert [values["learning_rate"] for values in one.settings] == places
        expected = [place + (1200 + block) / 1e4 for block, place in enumerate(places)]
        np.testing.assert_allclose(one.last[MEAN], expected)
