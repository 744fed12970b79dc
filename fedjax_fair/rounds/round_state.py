"""State and diagnostics of rounds, and the random keys of their purposes."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.roles import Info, Variables
from fedjax_fair.rounds import client_state
from fedjax_fair.schedules.asynchronous import InFlight
from fedjax_fair.schedules.schedule import RoundTiming
from fedjax_fair.utils.tree import Tree

__all__ = [
    "Keys",
    "Purpose",
    "RoundInfo",
    "RoundState",
    "Traffic",
    "derive_key",
]


class Purpose(IntEnum):
    """Purposes of random numbers, each of which has a separate stream."""

    INIT = 0
    SELECT = 1
    SOLVE = 2
    FAULTS = 3
    COMMUNICATION = 4
    CLIENTS = 5
    PERSONALIZE = 6
    ROLES = 7
    SCHEDULE = 8


Keys = dict[Purpose, Key[Array, ""]]


class RoundState(NamedTuple):
    """State between rounds.

    Attributes:
        key: The root key of the run, which never changes.
        round: Number of completed rounds, which is the index of the next one.
        variables: The global model.
        selector: State of the selector.
        aggregator: State of the aggregator.
        participation: Times each client has trained, once per slot of a cohort, ``[clients]``.
        communication: State of privacy; empty without.
        model_history: Past global models, ``[history_length, ...]``, with that of round ``r`` at
            ``r % history_length``; empty unless a fault needs them.
        clients: State of all clients (`fedjax_fair.rounds.client_state.Store`); empty if they have
            none.
        schedule: Clock and tasks of a schedule; empty without.
    """

    key: Key[Array, ""]
    round: Int[Array, ""]
    variables: Variables
    selector: PyTree
    aggregator: PyTree
    participation: Int[Array, " clients"]
    communication: PyTree = ()
    model_history: Variables | tuple[()] = ()
    clients: client_state.Store | tuple[()] = ()
    schedule: PyTree = ()

    @classmethod
    def of_model(cls, variables: Variables, participation: Any) -> RoundState:
        """Makes the part of a state that the evaluation of a global model reads."""
        nothing: Any = ()
        return cls(nothing, nothing, variables, nothing, nothing, participation)

    @property
    def models_in_flight(self) -> PyTree:
        """Models that clients of an asynchronous schedule were sent, ``[rows, ...]``; or none."""
        return self.schedule.models if isinstance(self.schedule, InFlight) else ()


class Traffic(Tree):
    """Bytes that one participant communicates in a round.

    What roles measure through `Context`, such as losses or counts by group, does not count: neither
    the values nor models that clients receive for them.

    Attributes:
        up: Bytes that it sends: its compressed update and other sends.
        down: Bytes that it receives: the model and what the server broadcasts.
    """

    up: int
    down: int


class RoundInfo(NamedTuple):
    """Diagnostics of one round.

    Attributes:
        clients: Ids of the selected clients.
        weights: Their weights in the update.
        loss: Their mean minibatch losses during local training, nats.
        steps: Their numbers of local steps.
        finite: Whether the update was finite and therefore applied.
        responded: Whether each result has arrived.
        nonfinite: Whether each sent update had a NaN or an infinity.
        selector: Info of the selector.
        aggregator: Info of the aggregator and of privacy.
        traffic: Bytes per participant, which are structure; upper bounds if they vary.
        state_nonfinite: Whether each new state of a client had a NaN or an infinity and was not
            stored; None without state.
        available: Whether each selected client was available; None if all were.
        bytes_up: Bytes that each participant sends, in place of ``traffic.up``; None if they do not
            vary (`Solver.is_sent`).
        bytes_down: Bytes that each participant receives, in place of ``traffic.down``.
        timing: Times of the round; None without a schedule.
    """

    clients: Int[Array, " cohort"]
    weights: Float[Array, " cohort"]
    loss: Float[Array, " cohort"]
    steps: Int[Array, " cohort"]
    finite: Bool[Array, ""]
    responded: Bool[Array, " cohort"]
    nonfinite: Bool[Array, " cohort"]
    selector: Info
    aggregator: Info
    traffic: Traffic
    state_nonfinite: Bool[Array, " cohort"] | None = None
    available: Bool[Array, " cohort"] | None = None
    bytes_up: Int[Array, " cohort"] | None = None
    bytes_down: Int[Array, " cohort"] | None = None
    timing: RoundTiming | None = None


def derive_key(
    key: Key[Array, ""], purpose: Purpose, round: Int[Array, ""] | int = 0
) -> Key[Array, ""]:
    """Returns the key of one purpose in one absolute round.

    A resumed run therefore equals an uninterrupted one, and cohorts do not depend on the solver.
    """
    return jax.random.fold_in(jax.random.fold_in(key, purpose), round)
