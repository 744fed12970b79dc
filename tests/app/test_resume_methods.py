"""Methods train a part of a network, and resume as if they had not stopped, bit for bit.

Checkpoints hold a state by its structure, so one method of each structure is resumed every time,
and all others in the slow tests.
"""

import shutil
from dataclasses import replace

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import xarray as xr
from conftest import make_federation, normalized_model, times_for, with_people

import fedjax_fair as ff
from fedjax_fair.app.build import largest_client, method_round
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config, ModelConfig, SelectorConfig, SolverConfig
from fedjax_fair.app.settings.registry import GROUPS, METHODS
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.training.loop import Callback

DATA = make_federation()
CONFIG = presets.resolve(
    Config(
        model=ModelConfig(name="mlp", hidden=(3, 2)),
        solver=SolverConfig(learning_rate=0.1, batch_size=2, steps=2),
        selector=SelectorConfig(cohort_size=3),
    )
)
NETWORK = ff.models.mlp(DATA.num_classes, hidden=(3, 2))
START = NETWORK.init(jax.random.key(0), DATA.train.features[:1])
MODEL = ff.models.freeze(NETWORK, START, ("body/Dense_1", "head"))
"""The trained part has a body and a head, which some methods separate."""

OWN_SETTINGS = {
    "power_of_choice": "pool=4",
    "fedcor": "warmup=1,interval=2,embedding_size=1",
    "equitable": "num_clusters=2",
    "divfl+equitable": "num_clusters=2",
    "krum": "byzantine=0",
    # Tasks are in flight at a checkpoint.
    "fedbuff": "buffer_size=2",
    "ca2fl": "buffer_size=2",
    "fed_stale_weight": "buffer_size=2,exact=True",
    "area": "buffer_size=2",
    "flexlora": "ranks=1",
    "hetlora": "solver.strength=1.0,decay=0.5",
}
"""Settings for few clients, and with which all parts of a state matter within four rounds."""

KINDS = {
    "no state": ("fedavg",),
    "selector": (
        *("unionfl", "clustered_by_size", "clustered_by_similarity", "agnostic", "drfa"),
        *("round_robin", "oort", "fedcor"),
    ),
    "aggregator": (
        *("gifair", "fedfv", "fedfa", "shapfed", "fedpw", "fedlf", "fedfb", "reweighing"),
        "fedadam",
    ),
    "clients": ("ditto", "fedbn", "hetlora", "local"),
    "aggregator and clients": ("scaffold", "scaffold+fedadam"),
    "schedule": ("fedasync", "ca2fl", "fed_stale_weight", "area", "ditto+fedbuff"),
    "one model without clients": ("centralized",),
}
"""Methods by the parts of their state; within a part, types and numbers of axes differ."""
RESUMED = [name for names in KINDS.values() for name in names]
OTHERS = sorted({*METHODS, "divfl+equitable"} - {*RESUMED})
"""Methods whose state has the structure of a resumed one."""


def data_for(name):
    """Returns data with the groups that a method needs; without, there is less to evaluate."""
    if name == "gifair":
        return DATA._replace(groups=np.array([0, 1, 0, 2, 1, 0], np.int32))
    return with_people(DATA) if name in GROUPS["group fairness"] else DATA


def make_method(name):
    written = f"{name}:{OWN_SETTINGS[name]}" if name in OWN_SETTINGS else name
    own = drop_unused_settings(replace(CONFIG, methods=(written,)))
    model = normalized_model() if name == "fedbn" else MODEL
    if name in GROUPS["adapters"]:
        model = ff.models.lora(NETWORK, START, rank=2)
    return method_round(
        own,
        written,
        DATA.num_classes,
        largest_client(DATA),
        model,
        times=times_for(name, DATA.num_clients),
    )


class Rounds(Callback):
    """Records the rounds that are evaluated."""

    def __init__(self):
        self.evaluated = []

    def on_evaluation(self, evaluation):
        self.evaluated.append(evaluation.round)


def contents(folder, round=4):
    """Returns the state of a round in checkpoints, and the records until then."""
    with ocp.CheckpointManager(folder) as manager:
        written = {path.name for path in (folder / str(round)).iterdir()}
        names = written & {"state", "clients", "history"}
        items = ocp.args.Composite(**{name: ocp.args.StandardRestore() for name in names})
        return jax.tree.map(np.asarray, dict(manager.restore(round, args=items)))


def structure(name):
    """Returns the parts of a method's state, with the types and numbers of axes of their arrays."""
    state = jax.eval_shape(make_method(name).init, jax.random.key(0), data_for(name))
    parts = state._replace(variables=None, key=None)._asdict().items()
    return {(part, leaf.dtype, leaf.ndim) for part, tree in parts for leaf in jax.tree.leaves(tree)}


def test_each_structure_of_a_state_is_resumed():
    resumed = [structure(name) for name in RESUMED]
    assert [name for name in OTHERS if structure(name) not in resumed] == []


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_runs_equal_uninterrupted_ones(name, tmp_path):
    assert_resumed_equals_uninterrupted(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_resumed_runs_of_other_methods_equal_uninterrupted_ones(name, tmp_path):
    assert_resumed_equals_uninterrupted(name, tmp_path)


def assert_resumed_equals_uninterrupted(name, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def train(folder):
        rounds = Rounds()
        options = {"rounds": 4, "eval_every": 2, "seeds": (0,), "train_loss": False}
        fitted = ff.fit(
            make_method(name), data_for(name), checkpoints=folder, callbacks=[rounds], **options
        )
        return fitted, rounds.evaluated

    expected, evaluated = train(whole)
    assert evaluated == [0, 2, 4]
    last = contents(whole)
    middle, trained = (
        jax.tree.leaves((each["state"]["variables"], each.get("clients")))
        for each in (contents(whole, 2), last)
    )
    assert all(np.isfinite(leaf).all() for leaf in trained)
    assert not all(map(np.array_equal, trained, middle))
    shutil.copytree(whole, parts)
    shutil.rmtree(parts / "4")  # As if the run had stopped after the checkpoint of round 2.
    resumed, evaluated = train(parts)
    assert evaluated == [4]
    xr.testing.assert_identical(resumed.dataset, expected.dataset)
    equal = np.testing.assert_array_equal
    jax.tree.map(equal, resumed.variables, expected.variables)
    jax.tree.map(equal, contents(parts), last)
