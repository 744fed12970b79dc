"""What a run has recorded so far, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_fair.base import ClientMetrics
from fedjax_fair.simulate import RoundInfo

__all__ = ["PER_CLIENT", "PER_SLOT", "History"]

PER_CLIENT = ("test_accuracy", "test_loss", "train_loss", "participation")
"""Fields of ``ClientMetrics`` that change during a run."""

PER_SLOT = ("clients", "weights", "loss", "steps")
"""Fields of ``RoundInfo`` with one entry per slot of the cohort."""


class History:
    """Evaluations and rounds, in the order they happened.

    Arrays are kept as they come, with seeds first; ``arrays`` puts time second.
    """

    def __init__(self) -> None:
        self._evaluated: list[int] = []
        self._summaries: list[dict[str, np.ndarray]] = []
        self._clients: list[dict[str, np.ndarray]] = []
        self._rounds: list[dict[str, np.ndarray]] = []
        self._selection: list[dict[str, np.ndarray]] = []
        self._aggregation: list[dict[str, np.ndarray]] = []

    @property
    def round(self) -> int:
        """The round of the latest evaluation; -1 before the first."""
        return self._evaluated[-1] if self._evaluated else -1

    def add_evaluation(
        self, round: int, summaries: dict[str, np.ndarray], clients: ClientMetrics
    ) -> None:
        """Records an evaluation: summaries ``[seeds]`` and metrics ``[seeds, clients]``."""
        self._evaluated.append(round)
        self._summaries.append(summaries)
        self._clients.append({name: getattr(clients, name) for name in PER_CLIENT})

    def add_rounds(self, info: RoundInfo) -> None:
        """Records a chunk of rounds: leaves ``[seeds, rounds, cohort]`` or ``[seeds, rounds]``."""
        self._rounds.append({name: getattr(info, name) for name in PER_SLOT})
        self._selection.append({name: np.asarray(told) for name, told in info.selector.items()})
        self._aggregation.append({name: np.asarray(told) for name, told in info.aggregator.items()})

    def arrays(self) -> dict[str, Any]:
        """Everything as arrays: ``[seeds, evaluations, ...]`` and ``[seeds, rounds, ...]``."""
        return {
            "evaluated": np.asarray(self._evaluated, np.int64),
            "summaries": _join(self._summaries, np.stack),
            "clients": _join(self._clients, np.stack),
            "rounds": _join(self._rounds, np.concatenate),
            "selection": _join(self._selection, np.concatenate),
            "aggregation": _join(self._aggregation, np.concatenate),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> History:
        """Rebuilds a history from what ``arrays`` returned."""
        history = cls()
        history._evaluated = [int(round) for round in arrays["evaluated"]]
        history._summaries = _split(arrays["summaries"], len(history._evaluated))
        history._clients = _split(arrays["clients"], len(history._evaluated))
        history._rounds = [arrays["rounds"]] if arrays["rounds"] else []
        history._selection = [arrays["selection"]] if arrays["rounds"] else []
        history._aggregation = [arrays["aggregation"]] if arrays["rounds"] else []
        return history


def _join(records: list[dict[str, np.ndarray]], along_time) -> dict[str, np.ndarray]:
    names = records[0] if records else ()
    return {name: along_time([record[name] for record in records], axis=1) for name in names}


def _split(joined: dict[str, np.ndarray], count: int) -> list[dict[str, np.ndarray]]:
    return [{name: values[:, i] for name, values in joined.items()} for i in range(count)]
