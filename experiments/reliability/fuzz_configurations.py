"""Configurations of any methods, partition, network, faults and uploads, in and out of range.

One is refused by `build` in a line that names a setting, or one round of each of its methods can be
traced, which is all that happens before compilation.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any, get_type_hints

import jax
from hypothesis import strategies as st

from experiments.reliability.values import check_named, values
from fedjax_fair.app.build import build
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import (
    Config,
    DataConfig,
    ModelConfig,
    TimingConfig,
    TrainingConfig,
)
from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.named_methods import method_settings
from fedjax_fair.app.settings.registry import METHODS, MODELS, PARTITIONERS

__all__ = ["configurations", "judge"]

_COMBINED = (
    "subtrunc+equitable",
    "divfl+tilted",
    "power_of_choice+median",
    "fedprox+krum",
    "divfl+fedbuff",
)
# Settings of a run that are given together, or that stand alone.
_TOGETHER = (
    *(("faults", "dropout"), ("faults", "stragglers", "deadline_steps")),
    *(("faults", "staleness", "max_staleness"), ("faults", "byzantine", "attack", "strength")),
    *(("faults", "byzantine", "attack"), ("faults", "period")),
    *(
        ("communication", "aggregation", "max_abs_value"),
        ("communication", "top_k"),
        ("communication", "bits"),
    ),
    *(
        ("communication", "clipping_norm", "noise_multiplier"),
        ("communication", "clipping_norm", "target_unclipped_quantile"),
    ),
    *(("communication", "aggregation"), ("training", "clients_per_batch"), ("training", "seeds")),
    *(
        ("training", "rounds"),
        ("training", "eval_every"),
        ("data", "seed"),
        ("data", "partition_per_seed"),
    ),
    *(("data", "validation_fraction"), ("solver", "epochs"), ("model", "compute")),
)
_MODELS = ("logistic", "logistic", "mlp", *MODELS)  # The small ones are traced sooner.


@st.composite
def configurations(draw: st.DrawFn) -> Config:
    """Draws methods, partition and network, and up to five changes of settings."""
    method = st.sampled_from((*METHODS, *_COMBINED))
    methods = draw(st.lists(method, min_size=1, max_size=2, unique=True))
    partition = draw(st.sampled_from(sorted(PARTITIONERS)))
    config = Config(
        methods=tuple(methods),
        data=DataConfig(partition=partition),
        model=ModelConfig(name=draw(st.sampled_from(_MODELS))),
        training=TrainingConfig(rounds=1, seeds=(0,)),
    )
    if partition == "planted_clusters":
        config = replace(config, data=replace(config.data, clusters="digits"))
    if draw(st.booleans()):
        config = replace(config, timing=TimingConfig(table="synthetic"))
    groups = [*_TOGETHER, *_settings(config)]
    for section, *names in draw(st.lists(st.sampled_from(groups), max_size=5)):
        part = getattr(config, section)
        kinds = get_type_hints(type(part))
        changed = {name: draw(values(kinds[name])) for name in names}
        config = replace(config, **{section: replace(part, **changed)})
    return config


def _settings(config: Config) -> list[tuple[str, str]]:
    """Section and name of the settings of the methods, the network and the partition."""
    partition = settings_of(PARTITIONERS[str(config.data.partition)])
    found = [("data", name) for name in partition]
    for method in config.methods:
        found += method_settings(presets.resolve(config), method)
    return list(dict.fromkeys(found))


def judge(config: Config) -> bool:
    """Returns whether a round of each method can be traced, or False if `build` raises an error.

    Raises:
        AssertionError: If the error names no setting.
    """
    config = presets.resolve(config)
    try:
        ready = build(config)
    except (ValueError, OSError) as error:  # The command prints both in one line.
        check_named(error, ["method", "methods", *_names(config)])
        return False
    data = ready.data.partition(0)
    for method in ready.rounds.values():
        state = jax.eval_shape(method.init, jax.random.key(0), data)
        jax.eval_shape(partial(method.step, drop_nonfinite=True), state, data)
    return True


def _names(config: Any) -> list[str]:
    sections = (getattr(config, section.name) for section in fields(config))
    return [item.name for part in sections if hasattr(part, "__dict__") for item in fields(part)]
