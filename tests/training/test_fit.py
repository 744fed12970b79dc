"""The host loop: compilation, callbacks, resuming, errors, and the dataset it returns."""

import json
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from conftest import NUM_CLASSES, make_federation

from fedjax_fair import aggregators, faults, models, results, selectors, solvers
from fedjax_fair.data import hold_out
from fedjax_fair.data.federated import stack
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.metrics.predictions import macro_f1
from fedjax_fair.roles import Aggregator, Cohort, Metric, Selector
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.training.centralized import Centralized
from fedjax_fair.training.fit import fit
from fedjax_fair.training.loop import Callback, DivergenceError


@pytest.fixture
def model():
    """An installed model, whose rounds of equal structure are traced once."""
    return models.logistic(NUM_CLASSES)


def make(model, solver=None, **settings):
    return Round(
        model,
        selectors.Uniform(3),
        solver or solvers.SGD(0.1, 2, epochs=1),
        aggregators.Mean(weights="num_examples"),
        **settings,
    )


class Recorder(Callback):
    def __init__(self, stop_at=None, raise_at=None):
        self.events, self.stop_at, self.raise_at = [], stop_at, raise_at

    def on_start(self, rounds, seeds):
        self.events.append(("start", rounds, seeds))

    def on_evaluation(self, evaluation):
        self.events.append(("evaluation", evaluation.round))
        self.last = evaluation
        if evaluation.round == self.raise_at:
            raise KeyboardInterrupt
        return evaluation.round == self.stop_at

    def on_end(self, results):
        self.events.append(("end", results.sizes["round"]))


@pytest.mark.smoke
def test_results_equal_a_run_by_hand(model, federation):
    round = make(model)
    dataset = fit(round, federation, rounds=6, seeds=(3, 1), eval_every=2).dataset

    @jax.jit
    def by_hand(key, data):
        state, info = run(round, round.init(key, data), data, 6)
        performance = [
            client_performance(model, state.variables, part) for part in (data.test, data.train)
        ]
        return *performance, state.participation, info

    test, train, participation, info = by_hand(jax.random.key(1), federation)
    last = dataset.sel(seed=1).isel(round=-1)
    # The compiled chunk may reassociate sums that the run by hand does not.
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(last.test_accuracy, test.accuracy, **close)
    np.testing.assert_allclose(last.test_loss, test.loss, **close)
    np.testing.assert_allclose(last.train_loss, train.loss, **close)
    np.testing.assert_array_equal(last.participation, participation)
    np.testing.assert_array_equal(dataset.cohort_clients.sel(seed=1), info.clients)
    np.testing.assert_allclose(dataset.cohort_weights.sel(seed=1), info.weights, rtol=1e-6)
    np.testing.assert_allclose(dataset.cohort_loss.sel(seed=1), info.loss, **close)
    assert dataset["round"].values.tolist() == [0, 2, 4, 6]
    assert dataset.seed.values.tolist() == [3, 1]


def test_results_describe_themselves(model, federation):
    dataset = fit(make(model), federation, rounds=2, seeds=(0, 1), eval_every=1).dataset
    for name, variable in dataset.data_vars.items():
        assert variable.attrs.get("long_name"), name
    assert dataset.sigma_acc.attrs["population"] == "clients with test examples"
    assert dataset.test_loss.attrs["units"] == "nat"
    train = federation.train
    for client in range(6):
        rows = train.order[train.offsets[client] :][: train.sizes[client]]
        counts = np.bincount(train.labels[rows], minlength=3)
        np.testing.assert_array_equal(dataset.train_examples[client], counts)


def test_bytes_are_those_of_participants(model, federation):
    dataset = fit(make(model), federation, rounds=4, seeds=(0, 1), eval_every=2).dataset
    model_bytes = 4 * (4 * 3 + 3)
    np.testing.assert_array_equal(dataset.bytes_up[0], np.array([0, 2, 4]) * 3 * model_bytes)


class Counted(solvers.SGD):
    """Counts how often it is traced."""

    @chex.assert_max_traces(n=1)
    def solve(self, key, variables, client):
        return super().solve(key, variables, client)


class CountedTwice(solvers.SGD):
    """May be traced for two lengths of chunks."""

    @chex.assert_max_traces(n=2)
    def solve(self, key, variables, client):
        return super().solve(key, variables, client)


def test_a_run_compiles_once(model, federation):
    chex.clear_trace_counter()
    solver = Counted(0.1, 2, epochs=1)
    fit(make(model, solver), federation, rounds=12, seeds=(0, 1), eval_every=3)


def test_the_shorter_last_chunk_is_the_only_other_compilation(model, federation):
    chex.clear_trace_counter()
    dataset = fit(
        make(model, CountedTwice(0.1, 2, epochs=1)), federation, rounds=7, eval_every=2
    ).dataset
    assert dataset["round"].values.tolist() == [0, 2, 4, 6, 7]
    assert dataset.sizes["training_round"] == 7


def test_the_length_of_chunks_does_not_matter(model, federation):
    often = fit(make(model), federation, rounds=6, seeds=(0, 1), eval_every=1).dataset
    seldom = fit(make(model), federation, rounds=6, seeds=(0, 1), eval_every=6).dataset
    np.testing.assert_array_equal(often.cohort_clients, seldom.cohort_clients)
    np.testing.assert_allclose(
        often.test_loss.isel(round=-1), seldom.test_loss.isel(round=-1), rtol=1e-5
    )


def test_callbacks_are_called_in_order(model, federation):
    first, second = Recorder(), Recorder()
    fit(make(model), federation, rounds=4, seeds=(7, 8), eval_every=2, callbacks=(first, second))
    expected = [
        ("start", 4, (7, 8)),
        ("evaluation", 0),
        ("evaluation", 2),
        ("evaluation", 4),
        ("end", 3),
    ]
    assert first.events == second.events == expected


def test_a_callback_stops_the_run_and_the_others_are_called(model, federation):
    recorders = Recorder(stop_at=2), Recorder()
    settings = {"seeds": (0, 1), "callbacks": recorders}
    dataset = fit(make(model), federation, rounds=8, eval_every=2, **settings).dataset
    assert dataset["round"].values.tolist() == [0, 2]
    assert recorders[0].events == recorders[1].events


def test_evaluation_carries_summaries_of_every_seed(model, federation):
    recorder = Recorder()
    dataset = fit(
        make(model), federation, rounds=2, seeds=(0, 4), eval_every=2, callbacks=[recorder]
    ).dataset
    last = recorder.last
    assert last.seeds == (0, 4)
    np.testing.assert_array_equal(
        last.summaries["client_dissimilarity"], dataset.client_dissimilarity.isel(round=-1)
    )
    assert last.clients.test_accuracy.shape == (2, 6)


def test_a_resumed_run_equals_an_uninterrupted_one(model, federation, tmp_path):
    settings = {"rounds": 7, "seeds": (0, 5), "eval_every": 2}
    uninterrupted = fit(make(model), federation, **settings).dataset
    with pytest.raises(KeyboardInterrupt):
        fit(
            make(model),
            federation,
            **settings,
            checkpoints=tmp_path / "checkpoints",
            callbacks=[Recorder(raise_at=4)],
        )
    recorder = Recorder()
    resumed = fit(
        make(model),
        federation,
        **settings,
        checkpoints=tmp_path / "checkpoints",
        callbacks=[recorder],
    ).dataset
    assert [event[1] for event in recorder.events if event[0] == "evaluation"] == [4, 6, 7]
    assert resumed.identical(uninterrupted)


def test_a_finished_run_is_not_repeated(model, federation, tmp_path):
    settings = {"rounds": 4, "eval_every": 2, "seeds": (0, 1), "checkpoints": tmp_path}
    first = fit(make(model), federation, **settings).dataset
    recorder = Recorder()
    again = fit(make(model), federation, **settings, callbacks=[recorder]).dataset
    assert [event[0] for event in recorder.events] == ["start", "end"]
    assert again.identical(first)


def test_checkpoints_of_other_seeds_are_refused(model, federation, tmp_path):
    fit(make(model), federation, rounds=2, seeds=(0, 1), checkpoints=tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="seeds="):
        fit(make(model), federation, rounds=2, seeds=(0, 2), checkpoints=tmp_path / "checkpoints")


def test_divergence_is_reported_with_its_round(model, federation, tmp_path):
    def rate(round):
        return jax.numpy.where(round < 3, 0.1, np.inf)

    diverging = make(model, solvers.SGD(rate, 2, steps=2))
    settings = {"rounds": 6, "eval_every": 2, "checkpoints": tmp_path / "checkpoints"}
    expected = r"round 3 is not finite for seeds \[0, 1\].*last checkpoint is of round 2"
    with pytest.raises(DivergenceError, match=expected):
        fit(diverging, federation, seeds=(0, 1), **settings)
    with pytest.raises(ValueError, match="drop_nonfinite=True"):
        fit(diverging, federation, seeds=(0, 1), on_nonfinite="drop_client", **settings)
    # A run can resume from the checkpoint before the error.
    with pytest.warns(UserWarning, match="round 3, seed 0: .* 3 of 6 rounds .* 1 other run"):
        skipped = fit(
            diverging, federation, seeds=(0, 1), on_nonfinite="skip_round", **settings
        ).dataset
    assert skipped.update_nonfinite.values.tolist() == [[0, 0, 0, 1, 1, 1]] * 2
    assert skipped.cohort_nonfinite.values[:, 3:].all()
    assert not skipped.cohort_nonfinite.values[:, :3].any()


class Overflowing(Aggregator):
    """Returns an infinite mean of finite updates."""

    mean: aggregators.Mean = aggregators.Mean()

    def compute_weights(self, state, cohort, context):
        return self.mean.compute_weights(state, cohort, context)

    def aggregate(self, state, cohort, results, context):
        update, state, info = self.mean.aggregate(state, cohort, results, context)
        return jax.tree.map(lambda leaf: leaf / 0.0, update), state, info


@pytest.mark.parametrize("is_centralized", [True, False])
def test_divergence_names_no_client_if_none_is_known(model, federation, is_centralized):
    data = federation._replace(client_names=tuple("abcdef"))
    if is_centralized:
        diverging = Centralized(model, solvers.SGD(lambda round: jnp.float32(np.inf), 2, steps=1))
    else:
        diverging = make(model).replace(aggregator=Overflowing())
    expected = (
        r"round 0 is not finite for seeds \[0\] \(a smaller learning rate may help; with secure "
        r"aggregation a value may be beyond max_abs_value\); no checkpoint exists"
    )
    with pytest.raises(DivergenceError, match=expected):
        fit(diverging, data, rounds=1)


class NonfiniteRuns(NamedTuple):
    """Runs with a client that sends NaN, by ``on_nonfinite``."""

    skip_round: xr.Dataset
    drop_client: xr.Dataset
    error: str


@pytest.fixture(scope="module")
def nonfinite_runs():
    round = Round(
        models.logistic(NUM_CLASSES),
        selectors.RoundRobin(3),
        solvers.SGD(0.1, 2, steps=2),
        aggregators.Mean(),
        faults=[faults.Byzantine([4], "nan")],
    )
    settings = {"rounds": 4, "seeds": (5, 8), "eval_every": 2}
    with pytest.raises(DivergenceError) as raised:
        fit(round, make_federation(), **settings)
    with pytest.warns(UserWarning, match="update"):
        skipped = fit(round, make_federation(), on_nonfinite="skip_round", **settings).dataset
    dropped = fit(round, make_federation(), on_nonfinite="drop_client", **settings).dataset
    return NonfiniteRuns(skipped, dropped, str(raised.value))


def test_the_error_names_round_seeds_and_clients(nonfinite_runs):
    bad = nonfinite_runs.skip_round.update_nonfinite.values
    first = int(bad.any(axis=0).argmax())
    seeds = [seed for seed, own in zip((5, 8), bad[:, first], strict=True) if own]
    assert f"round {first} is not finite for seeds {seeds}, of clients [4]" in nonfinite_runs.error


def test_a_skipped_round_leaves_the_model_unchanged(nonfinite_runs):
    run = nonfinite_runs.skip_round
    byzantine = (run.cohort_clients == 4).values
    np.testing.assert_array_equal(run.cohort_nonfinite, byzantine)
    np.testing.assert_array_equal(run.update_nonfinite, byzantine.any(axis=2))
    np.testing.assert_array_equal(run.diverged, byzantine.any(axis=2).argmax(axis=1))
    # The client responded.
    assert run.cohort_responded.values.all()


def test_a_dropped_client_has_no_weight(nonfinite_runs):
    dropped = nonfinite_runs.drop_client
    byzantine = (dropped.cohort_clients == 4).values
    assert byzantine.any()
    np.testing.assert_array_equal(dropped.cohort_nonfinite, byzantine)
    np.testing.assert_array_equal(dropped.cohort_responded, ~byzantine)
    assert (dropped.cohort_weights.values[byzantine] == 0).all()
    np.testing.assert_allclose(dropped.cohort_weights.sum("slot"), 1, rtol=1e-6)
    assert (dropped.diverged == -1).all()
    assert not dropped.update_nonfinite.values.any()


def test_on_nonfinite_has_three_values(model, federation, as_users_call):
    with pytest.raises(ValueError, match="on_nonfinite='skip'"):
        fit(make(model), federation, rounds=1, on_nonfinite="skip")


def test_centralized_training_pools_the_examples(model, federation):
    """One full-batch step moves the model as FedAvg by size over all clients does."""
    solver = solvers.SGD(0.5, 100, steps=1)
    settings = {"rounds": 2, "seeds": (0, 1)}
    pooled = fit(Centralized(model, solver), federation, **settings).dataset
    all_clients = Round(
        model, selectors.Uniform(6), solver, aggregators.Mean(weights="num_examples")
    )
    averaged = fit(all_clients, federation, **settings).dataset
    np.testing.assert_allclose(pooled.test_loss, averaged.test_loss, rtol=1e-5)
    np.testing.assert_allclose(pooled.train_loss, averaged.train_loss, rtol=1e-5)
    assert pooled.participation.sum() == 0
    assert pooled.bytes_up.max() == 0
    assert (pooled.cohort_clients == -1).all()


def test_methods_are_combined(model, federation, tmp_path):
    settings = {"rounds": 2, "seeds": (0, 1)}
    federated = fit(make(model), federation, **settings, eval_every=1).dataset
    reference = fit(
        Centralized(model, solvers.SGD(0.5, 100, steps=1)), federation, **settings
    ).dataset
    combined = results.combine({"fedavg": federated, "centralized": reference})
    assert combined.algorithm.values.tolist() == ["fedavg", "centralized"]
    assert combined.train_examples.dims == ("client", "class")
    chosen = combined.sel(algorithm="fedavg").test_loss
    np.testing.assert_array_equal(chosen, federated.test_loss)
    assert np.isnan(combined.sel(algorithm="centralized", round=1).test_loss).all()
    results.save(combined, tmp_path / "results.nc")
    assert results.open(tmp_path).identical(combined)
    assert [path.name for path in tmp_path.iterdir()] == ["results.nc"]


def test_missing_results_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="path="):
        results.open(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"rounds": 1, "eval_every": 0}, "eval_every=0"),
        ({"rounds": 1, "seeds": ()}, r"seeds=\(\)"),
        ({"rounds": 1, "seeds": (1, 1)}, "seeds="),
        ({"rounds": 1, "seeds": (-1,)}, r"seeds=\(-1,\)"),
    ],
)
def test_invalid_settings_are_errors(model, federation, settings, message):
    recorder = Recorder()
    with pytest.raises(ValueError, match=message):
        fit(make(model), federation, **settings, callbacks=[recorder])
    assert recorder.events == []


def test_data_without_test_examples_is_an_error(model, federation):
    empty = federation.test._replace(
        order=federation.test.order[:0], offsets=np.zeros(6, "int32"), sizes=np.zeros(6, "int32")
    )
    with pytest.raises(ValueError, match="test"):
        fit(make(model), federation._replace(test=empty), rounds=1)


def test_a_model_with_fewer_outputs_than_classes_is_an_error(federation):
    narrow = make(models.logistic(2))
    with pytest.raises(ValueError, match="outputs"):
        fit(narrow, federation, rounds=1)


def test_a_cohort_of_more_than_all_clients_is_an_error(model, federation):
    too_many = Round(model, selectors.Uniform(7), solvers.SGD(0.1, 2, steps=1), aggregators.Mean())
    with pytest.raises(ValueError, match="cohort_size="):
        fit(too_many, federation, rounds=1)


def test_each_seed_may_have_a_partition(model):
    whole = make_federation(sizes=(4, 4, 4, 4))
    same = whole._replace(test=drop_two(whole.test, client=0))
    other = whole._replace(
        train=same.train._replace(order=same.train.order[::-1].copy()),
        test=drop_two(whole.test, client=3),
    )
    round = make(model)
    together = fit(round, stack([same, other]), rounds=4, seeds=(5, 9), eval_every=2).dataset
    for seed, data in ((5, same), (9, other)):
        alone = fit(round, data, rounds=4, seeds=(seed,), eval_every=2).dataset
        mine = together.sel(seed=[seed])
        np.testing.assert_array_equal(mine.cohort_clients, alone.cohort_clients)
        for name in ("test_accuracy", "train_loss", "accuracy_mean_examples"):
            np.testing.assert_allclose(mine[name], alone[name], rtol=1e-5, atol=1e-6)
        for name in ("train_examples", "test_examples"):
            np.testing.assert_array_equal(mine[name].isel(seed=0), alone[name])


def drop_two(examples, client):
    """The last two examples of ``order`` belong to no client."""
    sizes = examples.sizes - 2 * (np.arange(4) == client).astype(np.int32)
    offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
    return examples._replace(order=examples.order[:-2], offsets=offsets, sizes=sizes)


def test_partitions_and_seeds_must_be_equally_many(model, federation):
    with pytest.raises(ValueError, match="partitions"):
        fit(make(model), stack([federation, federation]), rounds=1, seeds=(0, 1, 2))


def rotating(clients, **info):
    """A selector that rotates clients and returns constant info."""

    def select(key, state, context):
        moved = (jnp.array(clients) + context.round) % context.num_clients
        cohort = Cohort(moved, jnp.full(len(clients), 1 / len(clients), jnp.float32))
        return cohort, state, {**info, "round": context.round}

    return Selector.from_functions(
        init=lambda context: (),
        select=select,
        observe=lambda state, cohort, results, context: state,
    )


def make_rotating(model, **info):
    solver = solvers.SGD(0.1, 2, epochs=1)
    return Round(model, rotating([0, 1], **info), solver, aggregators.Mean())


def test_info_of_selectors_is_recorded_for_every_round(model, federation, tmp_path):
    round = make_rotating(model, objective=jnp.float32(2.5))
    with pytest.raises(KeyboardInterrupt):
        fit(round, federation, rounds=4, seeds=(0, 1), eval_every=2,
            callbacks=[Recorder(raise_at=4)], checkpoints=tmp_path)  # fmt: skip
    dataset = fit(
        round, federation, rounds=4, seeds=(0, 1), eval_every=2, checkpoints=tmp_path
    ).dataset
    assert dataset.selection_round.dims == ("seed", "training_round")
    np.testing.assert_array_equal(dataset.selection_round, [[0, 1, 2, 3]] * 2)
    assert (dataset.selection_objective == 2.5).all()


def test_a_client_with_nonfinite_loss_or_gradient_is_named(model, federation):
    round = make_rotating(model, num_nonfinite=jnp.int32(2), first_nonfinite_client=jnp.int32(4))
    with pytest.warns(UserWarning, match="round 0, seed 7: .* 2 clients .* first of client 4"):
        fit(round, federation, rounds=1, seeds=(7,))


def test_a_late_divergence_names_its_round(model, federation):
    def rate_of(late, round):
        return jnp.where(round == 3, late, 0.1)

    def method(late):
        solver = solvers.SGD(jax.tree_util.Partial(rate_of, late), 4, steps=1)
        return Round(model, selectors.Uniform(3), solver, aggregators.Mean())

    methods = [method(rate) for rate in (0.1, np.inf)]
    with pytest.warns(UserWarning, match="round 3, seed 0: .* 1 of 4 rounds were skipped"):
        runs = fit(methods, federation, rounds=4, seeds=(0, 0), eval_every=2).dataset
    assert runs.diverged.values.tolist() == [-1, 3]


def with_validation(federation):
    return hold_out(federation._replace(groups=np.array([0, 1, 0, 1, 1, 0])), 0.4)


def test_validation_examples_are_measured_as_test_examples_are(model, federation):
    """Other records do not change."""
    held = with_validation(federation)
    assert held.validation.sizes.min() == 0
    settings = {"rounds": 4, "seeds": (0, 1), "eval_every": 2}
    fitted = fit(make(model), held, **settings)
    both = fitted.dataset
    without = fit(make(model), held._replace(validation=None), **settings).dataset
    named = {name for name in both if str(name).startswith("validation_")}
    assert {"validation_accuracy", "validation_sigma_acc", "validation_group_loss_gap"} < named
    assert both.drop_vars(named).identical(without)
    instead = fitted.evaluate(held._replace(validation=None, test=held.validation))
    np.testing.assert_array_equal(both.validation_examples.sum("class"), held.validation.sizes)
    for name in named - {"validation_examples"}:
        own = str(name).removeprefix("validation_")
        own = own if own in instead else f"test_{own}"
        last = both[name].isel(round=-1)
        np.testing.assert_allclose(last, instead[own], rtol=1e-5, atol=1e-6, err_msg=own)
        said = both[name].attrs["long_name"]
        assert "alidation" in said
        assert "est ac" not in said


def test_the_best_round_is_selected_by_validation(model, federation):
    def score(evaluation):
        return -evaluation.summaries["validation_loss_mean_examples"]

    method, held = make(model, solvers.SGD(5.0, 2, epochs=1)), with_validation(federation)
    fitted = fit(method, held, rounds=8, seeds=(0, 1), eval_every=2, best=score)
    losses = fitted.dataset.validation_loss_mean_examples
    assert fitted.rounds.tolist() == losses.idxmin("round").values.tolist()
    assert fitted.rounds.max() < 8


def spread(metrics):
    return jnp.nanmax(metrics.custom["test_macro_f1"]) - jnp.nanmin(metrics.custom["test_macro_f1"])


CUSTOM = [
    macro_f1(3),
    Metric("f1_range", "F1, best less worst", "1", "all clients", "uniform", spread),
]


def test_custom_metrics_are_recorded(model, federation, tmp_path):
    settings = {"rounds": 4, "seeds": (0, 1), "eval_every": 2}
    plain = fit(make(model), federation, **settings).dataset
    with pytest.raises(KeyboardInterrupt):
        fit(make(model), federation, **settings, metrics=CUSTOM, checkpoints=tmp_path,
            callbacks=[Recorder(raise_at=4)])  # fmt: skip
    more = fit(make(model), federation, **settings, metrics=CUSTOM, checkpoints=tmp_path).dataset
    added = {name for name in more if "macro_f1" in str(name)} | {"f1_range"}
    same = more.drop_vars(added)
    assert json.loads(same.attrs.pop("quantities")) == ["macro_f1", "accuracy"]
    assert same.identical(plain)
    assert more.test_macro_f1.dims == ("seed", "round", "client")
    assert more.f1_range.attrs["population"] == "all clients"
    f1 = more.test_macro_f1
    np.testing.assert_allclose(more.f1_range, f1.max("client") - f1.min("client"), rtol=1e-6)
    with pytest.raises(ValueError, match="metrics"):
        fit(make(model), federation, **settings, checkpoints=tmp_path)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (macro_f1(3), "expected a list of metrics, got a ClientMetric"),
        ([np.mean], "one of them is a .*expected a Metric or a ClientMetric"),
        ([macro_f1(3), macro_f1(4)], "'macro_f1' would be that of another .* 'test_macro_f1'"),
        ([macro_f1(3).replace(name="loss")], "'loss' would be that of another .* 'test_loss'"),
        ([CUSTOM[1].replace(name="sigma_acc")], "'sigma_acc'"),
        ([CUSTOM[1].replace(name="round")], "'round'"),
        ([CUSTOM[1].replace(name="cohort_loss")], "'cohort_loss'"),
    ],
)
def test_invalid_custom_metrics_are_errors(model, federation, metrics, message):
    recorder = Recorder()
    with pytest.raises(ValueError, match=f"metrics: .*{message}"):
        fit(make(model), federation, rounds=1, metrics=metrics, callbacks=[recorder])
    assert recorder.events == []


@pytest.mark.parametrize("value", ["disallow", "disallow_explicit"])
@pytest.mark.parametrize("direction", ["", "_host_to_device", "_device_to_host"])
def test_forbidden_transfers_are_one_error(model, federation, direction, value):
    """Also of a context, and before anything is compiled."""
    recorder, name = Recorder(), f"transfer_guard{direction}"
    with getattr(jax, name)(value), pytest.raises(ValueError, match=f"{name.upper()}='{value}': e"):
        fit(make(model), federation, rounds=1, callbacks=[recorder])
    assert recorder.events == []
    with getattr(jax, name)("log"):
        fit(make(model), federation, rounds=1)


@pytest.mark.parametrize("name", ["disable_jit", "debug_nans", "debug_infs"])
def test_settings_for_debugging_are_errors(model, federation, name):
    jax.config.update(f"jax_{name}", True)
    try:
        with pytest.raises(ValueError, match=f"JAX_{name.upper()}=True: expected False, because"):
            fit(make(model), federation, rounds=1)
    finally:
        jax.config.update(f"jax_{name}", False)
