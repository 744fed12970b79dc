"""Checks of a method before it enters the benchmark.

A method is trained for some rounds and has to fulfill three rules:

1. *Conformance*: all updates are finite, cohorts and weights are valid, results and states have
   the right structure, shapes and types, and some model changes.
2. *Test examples*: other labels of validation, test and unassigned examples give the same models
   and states, bit for bit.
3. *Client ids*: with other ids of the same clients the models are equal up to rounding, and the
   selector draws each client as often.

For the third rule, solvers get keys that belong to clients and not to ids. Cohorts are equal
because the selector sees the original ids, so that solver and aggregator are compared exactly. The
selector is compared separately by the cohorts of many keys at the trained model, with six standard
errors of tolerance. A selector whose ``sampling`` is ``"round_robin"`` may go by ids.

These are checks against mistakes, not against intent. They do not find a method that loads a
dataset itself, acts after more rounds, or uses ids so little that draws or models hardly change.
Faults, compression, privacy and secure aggregation, whose keys belong to ids, are left out of the
third rule, and so is training on pooled examples. Keys in the states of aggregators are not
permuted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from fedjax_fair.app.build import largest_client, make_model, method_round
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.named_methods import resolve_method
from fedjax_fair.benchmark.relabeling import RelabeledSelector, RelabeledSolver, permute_clients
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData, validate
from fedjax_fair.numerics.labels import MASKED_LABEL
from fedjax_fair.roles import Model, Selector, Variables, checked_calls
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.rounds.round_context import make_context
from fedjax_fair.rounds.round_state import RoundInfo
from fedjax_fair.training.diagnosis import check_participants
from fedjax_fair.utils import checks

__all__ = ["check_method", "check_round"]

NUM_ROUNDS = 3
_SEED = 0
_MAX_PERSONALIZED = 8
"""Participants of the last round whose personalized models are compared."""

_MODELS = ("variables", "clients", "aggregator")
"""Parts of a state that can have a model."""

_NUM_DRAWS, _DRAWS_PER_BATCH = 200, 20
_MAX_STANDARD_ERRORS = 6.0
_RTOL, _ATOL = 1e-3, 1e-5
"""Tolerances of models; rounding is far below."""


def check_method(name: str, config: Config, data: FederatedData) -> None:
    """Checks that a method of the registry may enter the benchmark.

    Args:
        name: The method, as on the command line.
        config: Its settings; None stands for the defaults of the data set.
        data: A federated dataset to train on, of which the first partition is used.

    Raises:
        ValueError: If it violates a rule, which the message names, or a setting is invalid.

    Examples:
        >>> import fedjax_fair as ff
        >>> check_method("fedavg", Config(), ff.data.load("digits"))
    """
    config = presets.resolve(replace(config, methods=(name,)))
    data = data.partition(0)
    largest, num_clients = largest_client(data), data.num_clients
    model = make_model(resolve_method(config, name)[1].model, data, config.data)
    round = method_round(config, name, data.num_classes, largest, model, num_clients=num_clients)
    check_round(name, round, data)


def check_round(name: str, round: BaseRound, data: FederatedData) -> None:
    """Checks the round of a method; see `check_method`.

    Raises:
        ValueError: If it violates a rule.
    """
    checks.instance("round", round, BaseRound, "Round(model, selector, solver, aggregator)")
    data = data.partition(0).without_names().map_parts(ClientExamples.without_padding)
    validate(data)
    program = _make_program()
    try:
        trained = program(round, data)
        _check_conformance(round, data, trained)
    except ValueError as error:
        raise ValueError(f"{name}: conformance: {error}") from error
    if not _is_same(trained, program(round, _alter_labels(data))):
        raise ValueError(
            f"{name}: test examples: other labels of validation or test examples change the "
            "trained models; use the training examples of clients only, examples.order[offset : "
            "offset + size]."
        )
    if isinstance(round, Round) and data.num_clients > 1:
        order = _other_order(data.num_clients)
        _check_ids_of_models(name, round, data, order)
        _check_ids_of_selector(name, round, data, order, trained)


class _Trained(NamedTuple):
    """Models and states before and after training, and cohorts.

    Attributes:
        start: Global model, and states of clients and roles, before the first round.
        end: The same after the last round.
        personalized: Personalized models of participants of the last round, or None.
        info: Diagnostics, with a leading axis ``rounds``.
    """

    start: dict[str, PyTree]
    end: dict[str, PyTree]
    personalized: Variables | None
    info: RoundInfo


def _make_program() -> Callable[[BaseRound, FederatedData], _Trained]:
    """Returns a function that trains; new, because the code of a method may have changed."""

    def states(state):
        names = ("variables", "clients", "selector", "aggregator")
        return {name: getattr(state, name) for name in names}

    def program(round, data):
        start = round.init(jax.random.key(_SEED), data)
        end, info = run(round, start, data, NUM_ROUNDS)
        personalized = None
        if round.is_personalized:
            clients = info.clients[-1, :_MAX_PERSONALIZED]
            personalized = jax.lax.map(round.personalize(end, data), clients)
        return _Trained(states(start), states(end), personalized, info)

    jitted = jax.jit(program)
    return lambda round, data: jitted(round, jax.tree.map(jnp.asarray, data))


def _check_conformance(round: BaseRound, data: FederatedData, trained: _Trained) -> None:
    """Checks cohorts, weights and updates of the rounds, and that some model changes."""
    info = trained.info
    if not round.is_centralized:
        check_participants(np.asarray(info.clients)[None], data.num_clients, 0, (_SEED,))
    weights = np.asarray(info.weights, np.float64)
    is_distribution = np.abs(weights.sum(axis=1) - 1) <= checked_calls.MAX_WEIGHT_ERROR
    # A comparison with NaN is false.
    invalid = ~(is_distribution & (weights >= 0).all(axis=1))
    if invalid.any():
        raise ValueError(
            f"weights={weights[invalid][0].tolist()} in round {np.argmax(invalid)}: expected "
            "numbers >= 0 that sum to 1."
        )
    diagnostics = {"update of the model": ~info.finite}
    diagnostics["update of a client"] = info.nonfinite.any(axis=1)
    if info.state_nonfinite is not None:
        diagnostics["state of a client"] = info.state_nonfinite.any(axis=1)
    for what, is_nonfinite in diagnostics.items():
        if is_nonfinite.any():
            raise ValueError(f"the {what} in round {np.argmax(is_nonfinite)} is not finite.")
    if all(_is_same(trained.start[part], trained.end[part]) for part in _MODELS):
        raise ValueError(f"no model changed in {NUM_ROUNDS} rounds.")


def _check_ids_of_models(
    name: str, round: Round, data: FederatedData, order: Int[np.ndarray, " clients"]
) -> None:
    """Checks that models are equal with other ids of clients."""
    program, ids = _make_program(), np.arange(data.num_clients, dtype=np.int32)
    plain = round.replace(faults=(), aggregation="plain", compression=None, privacy=None)

    def models(ids, data_of_ids):
        relabeled = plain.replace(
            selector=RelabeledSelector(round.selector, data, ids),
            solver=RelabeledSolver(round.solver, ids),
        )
        trained = program(relabeled, data_of_ids)
        return trained.end["variables"], trained.personalized

    expected, actual = models(ids, data), models(order, permute_clients(data, order))
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True)
    if not all(np.allclose(*pair, rtol=_RTOL, atol=_ATOL, equal_nan=True) for pair in pairs):
        raise ValueError(
            f"{name}: client ids: other ids of the same clients change the trained models; use "
            "the id of a client as an index only."
        )


def _check_ids_of_selector(
    name: str,
    round: Round,
    data: FederatedData,
    order: Int[np.ndarray, " clients"],
    trained: _Trained,
) -> None:
    """Checks that clients are drawn as often, with as much weight, with other ids."""
    sampling = round.selector.sampling
    if sampling is not None and sampling.kind == "round_robin":
        return

    @jax.jit
    def draws(selector, model, variables, data):
        return _draw_cohorts(selector, model, variables, data)

    def sample(data):
        arguments = round.model, trained.end["variables"], jax.tree.map(jnp.asarray, data)
        return np.asarray(draws(round.selector, *arguments), np.float64)

    first, second = sample(data)[..., order], sample(permute_clients(data, order))
    difference = np.abs(first.mean(axis=0) - second.mean(axis=0))
    standard_error = np.sqrt((first.var(axis=0) + second.var(axis=0)) / _NUM_DRAWS)
    if (difference > _MAX_STANDARD_ERRORS * standard_error + _RTOL).any():
        raise ValueError(
            f"{name}: client ids: other ids of the same clients change how often or with which "
            "weight the selector draws them."
        )


def _draw_cohorts(
    selector: Selector, model: Model, variables: Variables, data: FederatedData
) -> Float[Array, "draws 2 clients"]:
    """Returns how often each client is in the cohort of each draw, and its weight there."""
    context = make_context(model, jnp.int32(NUM_ROUNDS), variables, data)
    root = jax.random.key(_SEED)
    state = checked_calls.init(selector, context._replace(key=root))

    def draw(key: Key[Array, ""]) -> Float[Array, "2 clients"]:
        cohort, _, _ = checked_calls.select(selector, key, state, context)
        values = jnp.stack([jnp.ones_like(cohort.weights), cohort.weights])
        return jnp.zeros((2, data.num_clients)).at[:, cohort.clients].add(values)

    # Vmapped draws share what does not depend on the key, such as losses of all clients.
    return jax.lax.map(draw, jax.random.split(root, _NUM_DRAWS), batch_size=_DRAWS_PER_BATCH)


def _alter_labels(data: FederatedData) -> FederatedData:
    """Returns a federated dataset with other labels of all examples that are not for training."""
    train, rng = data.train, np.random.default_rng(_SEED)
    labels = np.array(train.labels)
    is_other = np.ones(len(labels), bool)
    is_other[train.order] = False
    labels[is_other] = _other_labels(labels[is_other], data.num_classes, rng)

    def alter(part: ClientExamples) -> ClientExamples:
        if part.labels is train.labels:  # As held-out examples do.
            return part._replace(labels=labels)
        return part._replace(labels=_other_labels(np.asarray(part.labels), data.num_classes, rng))

    return data.map_parts(alter)


def _other_labels(
    labels: Shaped[np.ndarray, "..."], num_classes: int, rng: np.random.Generator
) -> Shaped[np.ndarray, "..."]:
    """Returns labels that all differ from the given ones."""
    if np.issubdtype(labels.dtype, np.floating):
        return (1 - labels).astype(labels.dtype)
    shift = rng.integers(1, max(2, num_classes), labels.shape)
    changed = ((labels + shift) % num_classes).astype(labels.dtype)
    return np.where(labels == MASKED_LABEL, labels, changed)


def _other_order(num_clients: int) -> Int[np.ndarray, " clients"]:
    """Returns a permutation that is not the identity."""
    rng = np.random.default_rng(_SEED)
    order = np.arange(num_clients, dtype=np.int32)
    while (order == np.arange(num_clients)).all():
        order = rng.permutation(order)
    return order


def _is_same(one: Any, other: Any) -> bool:
    """Returns whether all arrays are equal bit for bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
