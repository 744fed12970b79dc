"""Fingerprints distinguish runs."""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import linear_model, make_federation

from fedjax_fair import aggregators, models, selectors, solvers
from fedjax_fair.app import presets, registry
from fedjax_fair.app.build import method_round
from fedjax_fair.app.config import Config
from fedjax_fair.app.variants import drop_unused_settings, method_settings
from fedjax_fair.simulate import Round
from fedjax_fair.training.fingerprint import describe, differences
from fedjax_fair.training.fit import fit


def of_round(selector=None, solver=None, aggregator=None, model=None):
    return Round(
        model or linear_model(),
        selector or selectors.Uniform(2),
        solver or solvers.SGD(0.1, 2, steps=2),
        aggregator or aggregators.Mean(),
    )


def test_settings_are_found_by_their_names():
    described = describe(round=of_round(selector=selectors.SubTrunc(2, 0.5)))
    settings = {place.rsplit(".", 1)[-1]: text for place, text in described.items()}
    assert settings["learning_rate"] == "0.1"
    assert settings["lam"] == "0.5"


def test_equal_rounds_have_equal_descriptions():
    def made():
        return of_round(
            selectors.DivFL(2, gradients=selectors.gradients.RefreshEvery(3)),
            solvers.SGD(optax.cosine_decay_schedule(0.1, 10), 2, steps=2, momentum=0.9),
            aggregators.Mean(server_optimizer=optax.adam(0.1)),
            models.mlp(3, hidden=(8,)),
        )

    assert describe(round=made()) == describe(round=made())


CONFIG = replace(
    presets.resolve(replace(presets.PRESETS["equitable"].config, methods=("fedavg",))),
    selector=replace(Config().selector, cohort_size=4),
    solver=replace(Config().solver, learning_rate=0.1, batch_size=10, steps=2),
)


@pytest.mark.parametrize("name", sorted(set(registry.METHODS) - {"centralized"}))
def test_every_hyperparameter_of_every_method_is_described(name):
    config = drop_unused_settings(replace(CONFIG, methods=(name,)))
    for section, settings in method_settings(config, name).items():
        for key, setting in settings.items():
            if not setting.traced:
                continue
            one, other = (
                describe(round=method_round(config, f"{name}:{section}.{key}={value}", 10))
                for value in ((2, 3) if setting.type is int else (0.25, 0.375))
            )
            assert one != other, (section, key)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (selectors.Uniform(2), selectors.BySize(2)),
        (selectors.Uniform(2), selectors.Uniform(3)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x + 1, lambda x: x - 1),
        (partial(max, 1), partial(max, 2)),
        (np.arange(3), np.arange(3) + 1),
        (jnp.arange(3), jnp.arange(3.0)),
        (models.mlp(3, hidden=(8,)), models.mlp(3, hidden=(9,))),
        (optax.sgd(0.1), optax.sgd(0.2)),
        (Config(), Config(methods=("divfl",))),
    ],
    ids=range(10),
)
def test_different_values_have_different_descriptions(one, other):
    assert differences(describe(a=one), describe(a=other))
    assert not differences(describe(a=one), describe(a=one))


def test_a_checkpoint_of_another_run_is_an_error(tmp_path):
    data = make_federation()
    moved = data._replace(train=data.train._replace(features=data.train.features + 1))
    settings = {"rounds": 4, "eval_every": 2, "checkpoints": tmp_path}
    fit(of_round(), data, **settings)
    for round, own, changed, message in (
        (of_round(solver=solvers.SGD(0.2, 2, steps=2)), data, {}, r"learning_rate=0.2: .* 0\.1\."),
        (
            of_round(selector=selectors.BySize(2)),
            data,
            {},
            "selector.*BySize.* of a run with .*Uniform",
        ),
        (of_round(), moved, {}, "data.train.features=float32"),
        (of_round(), data, {"eval_every": 1}, "eval_every=1: .* a run with 2"),
        (of_round(), data, {"rounds": 2}, "rounds=2: the checkpoints in .* has done 4"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(round, own, **(settings | changed))


def test_an_extended_run_equals_a_longer_one(tmp_path):
    data, settings = make_federation(), {"eval_every": 2, "seeds": (0, 3)}
    fit(of_round(), data, rounds=4, checkpoints=tmp_path, **settings)
    longer = fit(of_round(), data, rounds=8, checkpoints=tmp_path, **settings)
    assert longer.identical(fit(of_round(), data, rounds=8, **settings))
