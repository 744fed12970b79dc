"""Interface of a round, which training needs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from jaxtyping import Array, Int, Key

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.roles import Model, Variables
from fedjax_fair.rounds.round_state import RoundInfo, RoundState, Traffic
from fedjax_fair.schedules import Schedule
from fedjax_fair.utils.tree import Tree

__all__ = ["BaseRound"]


class BaseRound(Tree):
    """A method with a model, as pure functions of state and data.

    Attributes:
        model: The network.
        is_centralized: Whether it trains on pooled examples, with client ids of -1 in `RoundInfo`.
        schedule: When results arrive in virtual time; None without a clock.
    """

    model: Model
    is_centralized: ClassVar[bool] = False
    schedule: ClassVar[Schedule | None] = None

    @abstractmethod
    def init(self, key: Key[Array, ""], data: FederatedData) -> RoundState:
        """Returns the state before the first round."""

    @abstractmethod
    def step(
        self,
        state: RoundState,
        data: FederatedData,
        drop_nonfinite: bool = False,
        skip_nonfinite: bool = False,
    ) -> tuple[RoundState, RoundInfo]:
        """Runs one round; an update of the model that is not finite is not applied.

        With ``drop_nonfinite``, a participant whose update is not finite counts as not responding.
        With ``skip_nonfinite``, a round whose update is not applied changes neither the state of
        the aggregator nor the states of clients, and the selector does not observe it.
        """

    def check_tasks(self, data: FederatedData, traffic: Traffic) -> None:
        """Checks the durations of tasks by this traffic, on the host; by default there are none."""

    @property
    def is_personalized(self) -> bool:
        """True if clients have personalized models."""
        return False

    @property
    def has_global_model(self) -> bool:
        """True if the global model is a result."""
        return True

    def personalize(
        self, state: RoundState, data: FederatedData
    ) -> Callable[[Int[Array, ""]], Variables]:
        """Returns a function from a client's id to its model, where its examples are."""
        raise ValueError(
            f"{type(self).__name__} has no personalized models; use its global model, or define "
            "personalize."
        )
