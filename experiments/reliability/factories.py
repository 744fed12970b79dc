"""Numeric parameters of public constructors and functions, and invalid values."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from scipy.sparse import csr_array

from fedjax_fair import (
    Round,
    aggregators,
    communication,
    data,
    faults,
    fit,
    models,
    run,
    schedules,
    selectors,
    server_optimizers,
    solvers,
    sweep,
    timing,
)
from fedjax_fair import submodular as sets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.data.partitions.partition import from_indices
from fedjax_fair.metrics import bytes_per_round
from fedjax_fair.numerics.sketch import CountSketch
from fedjax_fair.parallel import client_mesh, core_mesh
from fedjax_fair.submodular import federated, matroids, multilinear
from fedjax_fair.utils.tree import Tree

__all__ = ["PUBLIC", "TAKES_NUMBERS", "bad_values", "call_with", "given"]

_MODULES = (
    selectors,
    selectors.gradients,
    solvers,
    aggregators,
    server_optimizers,
    faults,
    models,
    data,
    sets,
    federated,
    communication,
    schedules,
    timing,
)
_OTHERS = (
    matroids.Uniform,
    matroids.allocation,
    matroids.Oracle,
    multilinear.sample_size,
    CountSketch,
    bytes_per_round,
    client_mesh,
    core_mesh,
    fit,
    Round,
    run,
    sweep,
)
PUBLIC: list[Any] = [
    *(getattr(module, name) for module in _MODULES for name in module.__all__),
    *_OTHERS,
]
_MADE_BY_CONSTRUCTORS = (
    federated.Protocol,
    federated.SparseScores,
)
"""Classes whose fields a function checks and converts."""
_NUMBER = re.compile(r"\b(int|float|Number|Integer)\b")
TAKES_NUMBERS: list[tuple[Callable[..., Any], str]] = [
    (function, name)
    for function in PUBLIC
    if isinstance(function, FunctionType)
    or function in _OTHERS
    or (isinstance(function, type) and issubclass(function, Tree))
    if function not in _MADE_BY_CONSTRUCTORS
    for name, parameter in inspect.signature(function).parameters.items()
    if _NUMBER.search(str(parameter.annotation))
]
"""Public functions with a numeric parameter, and its name."""

_LABELS = np.arange(4) % 2
_VECTOR = np.array([1, 2])
_VERY_NEGATIVE = -1e30


def bad_values(function: Callable[..., Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yields descriptions and invalid values of a parameter of ``TAKES_NUMBERS``."""
    annotation = str(inspect.signature(function).parameters[name].annotation)
    bad = {repr(value): value for value in (1j, float("nan"), float("inf"), "1", True, {"a": 1})}
    bad |= {"[[1], [2, 3]]": [[1], [2, 3]], "an object": object(), "a key": jax.random.key(0)}
    bad |= {"a bool": np.True_, "a string": np.str_("1"), "masked": np.ma.array(1, mask=True)}
    bad |= {"NaN of NumPy": np.float32(np.nan), "10**400": 10**400, "1e39": 1e39, "1e-46": 1e-46}
    bad |= {"1e308 of NumPy": np.float64(1e308), "a subnormal of float32": np.array(1e-40)}
    if not re.search(r"(Sequence|tuple)\[(int|float)", annotation):
        bad["an array"] = _VECTOR
    if function is not faults.Dropout:  # A probability per client is valid.
        bad["[0.1]"] = [0.1]
    if name not in ("tilt", "min_gain", "min_consistency"):
        bad["-1e30"] = _VERY_NEGATIVE
    if not re.search(r"\b(float|Number)\b", annotation):
        bad |= {repr(value): value for value in (1.5, 2.0, -1, 10**30 + 0.5)}
    if "None" not in annotation:
        bad["None"] = None
    if name.endswith("bytes_per_second"):  # A download may take no time.
        del bad["inf"]
    if "Mapping" in annotation:
        del bad["{'a': 1}"]
    yield from bad.items()


def call_with(function: Callable[..., Any], name: str, value: Any, folder: Path) -> Any:
    """Calls a function with one argument and valid other required arguments.

    Args:
        function: A function of ``TAKES_NUMBERS``.
        name: Its parameter.
        value: The argument.
        folder: Folder for a file, if the function reads one.
    """
    required = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    others = {each: given().get(each) for each in required} | _own().get(function, {})
    if name == "budget":
        others["costs"] = given()["costs"]
    if function is data.from_npz:
        others["path"] = folder / "wards.npz"
        np.savez(others["path"], features=np.eye(4), labels=_LABELS, client=_LABELS)
    if function is data.from_leaf:
        others["train"] = folder / "leaf.json"
        user = {"x": ["a", "b"], "y": ["b", "c"]}
        leaf = {"users": ["u"], "num_samples": [2], "user_data": {"u": user}}
        others["train"].write_text(json.dumps(leaf))
    for one, other in _EITHER:
        if other == name:
            others.pop(one, None)
    return function(**others | {name: value})


# The first has a valid value unless the second is tried.
_EITHER = (("steps", "epochs"), ("candidates", "epsilon"), ("kappa", "epsilon"))


@cache  # Constants would start JAX on import.
def given() -> dict[str, Any]:
    """Returns a valid argument for every required parameter, by name."""
    function = sets.Modular(jnp.ones(3))
    problem = federated.facility_location(np.ones((2, 3), np.float32))
    selector, solver = selectors.Full(), solvers.SGD(0.1, 1, steps=1)
    return {
        "aggregator": aggregators.Mean(),
        "answers": 1.0,
        "attack": "noise",
        "base": Config(),
        "batch_size": 1,
        "bound": 1.0,
        "by": ["sex"],
        "client_data": np.ones(2, np.float32),
        "clients": [0],
        "clipping_norm": 1.0,
        "cohort_size": 2,
        "costs": np.ones(3, np.float32),
        "data": None,
        "deadline_steps": 1,
        "delta": 0.1,
        "epsilon": 0.1,
        "factor": 1.0,
        "factors": np.ones(2, np.float32),
        "features": np.eye(4, dtype=np.float32),
        "function": function,
        "set_function_fn": lambda context: function,
        "history": np.ones(3, bool),
        "oracle": lambda mask: True,
        "items": [0],
        "k": 1,
        "key": jax.random.key(0),
        "labels": _LABELS,
        "learning_rate": 0.1,
        "local_steps": 1,
        "matroid": matroids.Uniform(1, 3),
        "max_staleness": 1,
        "method": Round(models.logistic(2), selector, solver, aggregators.Mean()),
        "methods": [Round(models.logistic(2), selector, solver, aggregators.Mean())],
        "median": 1.0,
        "messages": federated.Messages((jnp.array([0]),), (jnp.ones(1),), (jnp.array([0]),)),
        "model": models.logistic(2),
        "mu": 1.0,
        "name": "digits",
        "noise_multiplier": 1.0,
        "num_agents": 2,
        "num_classes": 2,
        "num_clients": 2,
        "num_items": 2,
        "num_rounds": 1,
        "optimizer": optax.sgd,
        "privacy": communication.DifferentialPrivacy(1.0, 1.0),
        "period": 2,
        "probability": 0.5,
        "problem": problem,
        "rank": 1,
        "root": (np.eye(4, dtype=np.float32), _LABELS),
        "root_groups": [0, 0, 1, 1],
        "round": Round(models.logistic(2), selector, solver, aggregators.Mean()),
        "rounds": 1,
        "run": None,
        "saturation": 0.5,
        "seconds_per_example": np.ones(3, np.float32),
        "seed": 0,
        "seeds": (0,),
        "selector": selector,
        "sigma": 0.1,
        "similarity": np.eye(3, dtype=np.float32),
        "size": 3,
        "solver": solver,
        "alpha": 1.0,
        "beta": 1.0,
        "test": None,
        "test_labels": _LABELS,
        "times": timing.ClientTimes(np.ones(3, np.float32)),
        "train": from_indices([[0, 1], [2, 3]]).split(_LABELS, 0),
        "train_labels": _LABELS,
        "value_fn": lambda mask, own: jnp.sum(mask) * own,
        "variables": None,
        "weights": np.ones(3, np.float32),
    }


def _lists() -> sets.SparseSimilarity:
    return sets.sparse_similarity(csr_array(np.eye(3)))


@cache
def _own() -> dict[Callable[..., Any], dict[str, Any]]:
    """Arguments of functions with another meaning of a name, or with one of several required."""
    return {
        solvers.SGD: {"steps": 1},
        data.federate: {"train": (np.eye(4), _LABELS, given()["train"])},
        data.from_arrays: {"client_indices": [[0, 1], [2, 3]]},
        data.from_table: {
            "table": pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "town": list("aabb"), "y": _LABELS}),
            "label": "y",
            "client": "town",
        },
        data.from_text: {"texts": {"a": "some text", "b": "more text"}, "length": 4},
        data.flip_labels: {"data": data.from_arrays(np.eye(4), _LABELS, [[0, 1], [2, 3]])},
        data.inject_label_bias: {
            "data": data.from_arrays(
                np.eye(4), _LABELS, [[0, 1], [2, 3]], sensitive_features={"sex": list("FFMM")}
            ),
            "feature": "sex",
            "value": "F",
            "rate": 0.5,
        },
        data.hold_out: {
            "data": data.from_arrays(np.eye(4), _LABELS, [[0, 1], [2, 3]]),
            "validation_fraction": 0.5,
        },
        data.hold_out_clients: {
            "data": data.from_arrays(np.eye(4), _LABELS, [[0, 1], [2, 3]]),
            "fraction": 0.5,
        },
        federated.feature_selection: {"features": [np.ones((4, 1), int)], "labels": [_LABELS]},
        sets.SparseGraphCut: {"similarity": _lists()},
        sets.SparseSaturatedCoverage: {"similarity": _lists()},
        sets.stochastic_greedy: {"k": 2, "candidates": 1},
        federated.discrete_greedy: {"kappa": 1.0},
        schedules.Asynchronous: {"buffer_size": 1},
        timing.from_table: {
            "table": {"device_class": ["all"], "share": [1.0], "seconds_per_example": [1.0]}
        },
        timing.online_from_table: {
            "table": {"client": [0, 1], "online": [0, 0], "offline": [1, 1]},
            "period": 2,
        },
    }
