"""What is no number, or not one of the right kind, is refused by name before anything compiles."""

import inspect
import re
from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_fair import (
    aggregators,
    checks,
    data,
    faults,
    fit,
    fit_batch,
    make_round,
    models,
    run,
    selectors,
    solvers,
    sweep,
    train,
    uploads,
)
from fedjax_fair import submodular as sets
from fedjax_fair.app.config import Config
from fedjax_fair.data.partition import from_indices
from fedjax_fair.metrics import bytes_per_round
from fedjax_fair.numerics.sketch import count_sketch
from fedjax_fair.parallel import client_mesh, core_mesh
from fedjax_fair.submodular import federated, matroids, multilinear

MODULES = (
    selectors,
    selectors.gradients,
    solvers,
    aggregators,
    faults,
    models,
    data,
    sets,
    federated,
    uploads,
)
OTHERS = (
    matroids.uniform,
    matroids.allocation,
    matroids.from_oracle,
    multilinear.sample_size,
    count_sketch,
    bytes_per_round,
    client_mesh,
    core_mesh,
    fit,
    fit_batch,
    make_round,
    run,
    sweep,
    train,
)
PUBLIC = [
    *(getattr(module, name) for module in MODULES for name in module.__all__),
    *OTHERS,
]
NUMBER = re.compile(r"\b(int|float|Number|Integer)\b")
TAKES_NUMBERS = [
    (function, name)
    for function in PUBLIC
    if isinstance(function, FunctionType) or function in OTHERS
    for name, parameter in inspect.signature(function).parameters.items()
    if NUMBER.search(str(parameter.annotation))
]

VECTOR = np.array([1, 2])
VERY_NEGATIVE = -1e30
NO_NUMBER = (
    [0.1],
    VECTOR,
    1j,
    float("nan"),
    float("inf"),
    VERY_NEGATIVE,
    "1",
    True,
    object(),
    {"a": 1},
    jax.random.key(0),
    [[1], [2, 3]],
)
NOT_WHOLE = (1.5, 2.0, -1, 10**30 + 0.5)

FUNCTION = sets.modular(np.ones(3, np.float32))
PROBLEM = federated.facility_location(np.ones((2, 3), np.float32))
LABELS = np.arange(4) % 2
SELECTOR = selectors.full()
SOLVER = solvers.sgd(0.1, 1, steps=1)
GIVEN = {
    "aggregator": aggregators.mean(),
    "answers": 1.0,
    "attack": "noise",
    "base": Config(),
    "batch_size": 1,
    "bound": 1.0,
    "client_data": np.ones(2, np.float32),
    "client_indices": [[0, 1], [2, 3]],
    "clients": [0],
    "clip": 1.0,
    "cohort_size": 2,
    "costs": np.ones(3, np.float32),
    "data": None,
    "deadline_steps": 1,
    "delta": 0.1,
    "epsilon": 0.1,
    "factor": 1.0,
    "factors": np.ones(2, np.float32),
    "features": np.eye(4, dtype=np.float32),
    "function": FUNCTION,
    "function_of_context": lambda context: FUNCTION,
    "history": np.ones(3, bool),
    "independent": lambda mask: True,
    "items": [0],
    "k": 1,
    "key": jax.random.key(0),
    "labels": LABELS,
    "learning_rate": 0.1,
    "local_steps": 1,
    "make": lambda point: None,
    "matroid": matroids.uniform(1, 3),
    "messages": federated.Messages((np.array([0]),), (np.ones(1, np.float32),), (np.array([0]),)),
    "model": models.logistic(2),
    "mu": 1.0,
    "name": "digits",
    "noise_multiplier": 1.0,
    "num_agents": 2,
    "num_classes": 2,
    "num_clients": 2,
    "num_items": 2,
    "points": (),
    "privacy": uploads.privacy(1.0, 1.0),
    "period": 2,
    "probability": 0.5,
    "problem": PROBLEM,
    "rank": 1,
    "root": (np.eye(4, dtype=np.float32), LABELS),
    "round": make_round(models.logistic(2), SELECTOR, SOLVER, aggregators.mean()),
    "rounds": 1,
    "run": None,
    "saturation": 0.5,
    "seed": 0,
    "seeds": (0,),
    "selector": SELECTOR,
    "sigma": 0.1,
    "similarity": np.eye(3, dtype=np.float32),
    "size": 3,
    "solver": SOLVER,
    "alpha": 1.0,
    "beta": 1.0,
    "test": None,
    "test_labels": LABELS,
    "train": from_indices([[0, 1], [2, 3]]).split(LABELS, 0),
    "train_labels": LABELS,
    "value_fn": lambda mask, own: jnp.sum(mask) * own,
    "variables": None,
    "weights": np.ones(3, np.float32),
}
OWN = {
    solvers.sgd: {"steps": 1},
    data.federate: {"train": (np.eye(4), LABELS, GIVEN["train"])},
    data.flip_labels: {"data": data.from_arrays(np.eye(4), LABELS, [[0, 1], [2, 3]])},
    data.hold_out: {
        "data": data.from_arrays(np.eye(4), LABELS, [[0, 1], [2, 3]]),
        "validation": 0.5,
    },
    federated.feature_selection: {"features": [np.ones((4, 1), int)], "labels": [LABELS]},
    sets.stochastic_greedy: {"k": 2, "candidates": 1},
    federated.discrete_greedy: {"kappa": 1.0},
}
# Of the first a value is given, unless the second is tried.
EITHER = (("steps", "epochs"), ("candidates", "epsilon"), ("kappa", "epsilon"))


def call_with(function, name, value, folder):
    required = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is inspect.Parameter.empty
    ]
    given = {each: GIVEN.get(each) for each in required} | OWN.get(function, {})
    if name == "budget":
        given["costs"] = GIVEN["costs"]
    if function is data.from_npz:
        given["path"] = folder / "wards.npz"
        np.savez(given["path"], features=np.eye(4), labels=LABELS, client=LABELS)
    for one, other in EITHER:
        if other == name:
            given.pop(one, None)
    return function(**given | {name: value})


def refusal(function, name, value, folder):
    try:
        call_with(function, name, value, folder)
    except ValueError as error:
        return str(error)
    return "it was accepted"


@pytest.mark.parametrize(
    ("function", "name"),
    TAKES_NUMBERS,
    ids=[f"{function.__name__}-{name}" for function, name in TAKES_NUMBERS],
)
def test_arguments_that_are_no_numbers_are_refused_by_name(function, name, as_users_call, tmp_path):
    annotation = str(inspect.signature(function).parameters[name].annotation)
    bad = list(NO_NUMBER)
    if not re.search(r"\b(float|Number)\b", annotation):
        bad += NOT_WHOLE
    if "None" not in annotation:
        bad.append(None)
    if re.search(r"(Sequence|tuple)\[(int|float)", annotation):
        bad = [value for value in bad if value is not VECTOR]
    if function is faults.dropout:  # One number for each client is fine.
        bad.remove([0.1])
    if name in ("tilt", "stop"):
        bad = [value for value in bad if value is not VERY_NEGATIVE]
    for value in bad:
        assert re.search(rf"\b{name}\b", refusal(function, name, value, tmp_path)), value


MAY_BE_TRACED = [
    (function, name)
    for function, name in TAKES_NUMBERS
    if re.search(
        r"Number|Integer|Array", str(inspect.signature(function).parameters[name].annotation)
    )
]


@pytest.mark.parametrize(
    ("function", "name"),
    MAY_BE_TRACED,
    ids=[f"{function.__name__}-{name}" for function, name in MAY_BE_TRACED],
)
def test_numbers_that_only_enter_arithmetic_may_be_traced(function, name, tmp_path):
    whole = "Integer" in str(inspect.signature(function).parameters[name].annotation)

    def traced(value):
        call_with(function, name, value, tmp_path)
        return value

    for value in (jnp.int32(1), jnp.int32(0)) if whole else (jnp.float32(0.5), jnp.float32(-1)):
        jax.eval_shape(traced, value)


def test_a_number_may_be_a_python_a_numpy_or_a_jax_scalar(as_users_call):
    for number in (1, 1.0, np.float32(1), np.int64(1), np.array(1.0), jnp.float32(1)):
        selectors.subtrunc(2, lam=number)
    for window in (2, np.int64(2), np.array(2), jnp.int32(2)):
        selectors.unionfl(2, window=window)
    for size in (2, np.int64(2)):
        selectors.uniform(size)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: selectors.unionfl(2, window=1.5), r"window=1\.5: expected an integer >= 1"),
        (lambda: selectors.unionfl(2, window=2**40), "window=1099511627776: expected an integer"),
        (lambda: selectors.divfl(2, candidates="some"), "expected an integer >= 1 or 'auto'"),
        (lambda: selectors.divfl(2, pool=3, points=0), "points=0: expected an integer >= 1"),
        (lambda: selectors.subtrunc(2, points=5), "points=5: expected None where pool=None"),
        (lambda: selectors.divfl(2, gradients=[1]), r"gradients=\[1\]: expected one of 'fresh'"),
        (lambda: aggregators.mean(np.array(["size"])), "weights=array"),
        (lambda: solvers.sgd(0.1, 2, steps=2**31), "steps=2147483648: expected an integer"),
        (
            lambda: solvers.sgd(0.1, 2, steps=1, optimizer="adam"),
            "optimizer='adam': expected a fun",
        ),
        (lambda: solvers.sgd(0.1, 2, steps=1, optimizer=optax.sgd(0.1)), "optimizer=Gradient"),
        (lambda: aggregators.mean(server_optimizer="adam"), "server_optimizer is a str: expected"),
        (lambda: aggregators.mean(server_optimizer=optax.adam), "server_optimizer is a function"),
        (lambda: selectors.submodular(FUNCTION, 2), "function_of_context=SetFunction"),
        (lambda: models.mlp(2, hidden=5), "hidden=5: expected a sequence of widths"),
        (lambda: models.mlp(2, hidden="20"), "hidden='20': expected a sequence of widths"),
        (lambda: models.mlp(2, hidden=(3, 0)), r"hidden\[1\]=0: expected an integer"),
        (lambda: data.planted_clusters(5), "clusters=5: expected a name"),
        (lambda: data.planted_clusters([5]), "expected each to be a data.Cluster, got 5"),
        (lambda: data.planted_clusters([data.Cluster(1, [0.5], 2)]), r"classes=0\.5: expected"),
        (lambda: data.iid(2).split(LABELS, None), "seed=None: expected an integer >= 0"),
        (lambda: data.iid(2).split(LABELS, 1.5), r"seed=1\.5: expected an integer >= 0"),
        (lambda: sets.best_swap(FUNCTION, [0.5]), r"items=\[0\.5\]: expected integers"),
        (lambda: sets.greedy(FUNCTION, 1, start=[1.5]), r"start=\[1\.5\]: expected integers"),
        (lambda: sets.facility_location_from_features(np.eye(2), [0.5]), r"items=\[0\.5\]"),
    ],
)
def test_the_message_says_what_is_expected(call, said, as_users_call):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize("seeds", [None, 3, (), "01", (0, 1.5), (0, True), (-1,), (2**32,), [[0]]])
def test_seeds_are_one_or_more_integers_of_32_bits(seeds):
    with pytest.raises(ValueError, match=r"seeds=.*: expected one or more integers"):
        checks.seeds("seeds", seeds)


def test_seeds_may_repeat_only_where_it_is_said():
    with pytest.raises(ValueError, match="different seeds"):
        checks.seeds("seeds", (1, 1))
    checks.seeds("seeds", (1, 1), different=False)
    checks.seeds("seeds", np.array([0, 2**32 - 1]))


ROLES = {name: GIVEN[name] for name in ("model", "selector", "solver", "aggregator")}


@pytest.mark.parametrize("given", [*ROLES, None])
@pytest.mark.parametrize("role", ROLES)
def test_roles_are_not_swapped(role, given, as_users_call):
    if role == given:
        make_round(**ROLES)
        return
    other = selectors.uniform if given is None else ROLES[given]
    kind = type(ROLES[role]).__name__
    with pytest.raises(ValueError, match=rf"{role} is a {type(other).__name__}: expected a {kind}"):
        make_round(**ROLES | {role: other})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"round": SOLVER}, "round is a Solver: expected a Round"),
        ({"data": np.ones((4, 2))}, "data is a ndarray: expected a FederatedData"),
    ],
)
def test_what_is_fitted_is_a_round_and_a_federation(given, said, federation, as_users_call):
    with pytest.raises(ValueError, match=said):
        fit(**{"round": GIVEN["round"], "data": federation, "rounds": 1} | given)
