"""Every registered method with a frozen first layer: what it holds and sends."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from conftest import times_for, with_people

import fedjax_fair as ff
from fedjax_fair import models
from fedjax_fair.app.build import build, method_round
from fedjax_fair.app.settings import presets, registry
from fedjax_fair.app.settings.config import (
    Config,
    DataConfig,
    SelectorConfig,
    SolverConfig,
    TrainingConfig,
)

# A few steps do not suffice for all classes.
pytestmark = pytest.mark.filterwarnings("ignore:.*the prediction is class")

CONFIG = presets.resolve(
    Config(
        methods=("fedavg",),
        data=DataConfig(name="digits", partition="planted_clusters", clusters="digits"),
        solver=SolverConfig(steps=2),
        selector=SelectorConfig(cohort_size=5),
        training=TrainingConfig(rounds=2, seeds=(0,)),
    )
)
METHODS = [name for name in registry.METHODS if name not in registry.GROUPS["adapters"]]
"""Methods of networks without adapters, whose base is always frozen."""

FROZEN = (64, 9)
"""Shape of the frozen kernel."""


@cache
def federation():
    return with_people(build(CONFIG).data)


@cache
def network(is_frozen, has_statistics):
    model = models.mlp(10, hidden=(9, 8))
    if has_statistics:
        model = models.resnet18(10, norm="batch")
    if not is_frozen:
        return model
    variables = jax.jit(model.init)(jax.random.key(0), federation().train.features[:1])
    if has_statistics:  # The normalization that stays on clients, without layers before it.
        return models.freeze(model, variables, is_no_head)
    return models.freeze(model, variables, ("body/Dense_1", "head"))


def is_no_head(path, array):
    return path != "head/kernel"


def round_of(name, is_frozen):
    config = replace(CONFIG, methods=(name,))
    model, times = network(is_frozen, name == "fedbn"), times_for(name, federation().num_clients)
    return method_round(config, name, 10, model=model, times=times)


def traced(name, is_frozen):
    """Returns the shapes of the state, and what a participant communicates."""
    round = round_of(name, is_frozen)
    state = jax.eval_shape(round.init, jax.random.key(0), federation())
    _, info = jax.eval_shape(round.step, state, federation())
    return state, info.traffic


@pytest.mark.parametrize("name", METHODS)
def test_methods_hold_and_send_the_trained_part(name):
    (state, ours), (_, theirs) = (traced(name, is_frozen) for is_frozen in (True, False))
    size = 10 * 8 if name == "fedbn" else FROZEN[0] * FROZEN[1]
    shape = (512, 10) if name == "fedbn" else FROZEN
    assert not [leaf for leaf in jax.tree.leaves(state) if leaf.shape[-2:] == shape]
    if name in (
        "centralized",
        "local",
        "local_converged",
        "lg_fedavg",
    ):  # The first layer is not communicated.
        assert ours == theirs or name == "centralized"
        return
    assert ours.up <= theirs.up - 4 * size
    assert ours.down <= theirs.down - 4 * size


def test_checkpoints_of_another_base_are_refused(tmp_path):
    round = round_of("fedavg", True)
    ff.fit(round, federation(), rounds=1, checkpoints=tmp_path)
    base = jax.tree.map(np.negative, round.model.base)
    other = round.replace(model=round.model.replace(base=base))
    with pytest.raises(ValueError, match=r"model\.base"):
        ff.fit(other, federation(), rounds=2, checkpoints=tmp_path)
