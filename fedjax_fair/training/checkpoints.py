"""Checkpoints of a run, written by Orbax."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_fair.results import History
from fedjax_fair.simulate import RoundState
from fedjax_fair.training.fingerprint import differences

__all__ = ["Checkpoints"]


class Checkpoints:
    """A folder with the latest state of a run and what it has recorded so far.

    A checkpoint is complete or absent: Orbax writes it under another name and renames it, and the
    previous one is deleted only afterwards.

    Args:
        folder: Where to keep them; created if needed.
        seeds: The seeds of the run, to refuse the checkpoints of another one.
        description: What else the run is made of (`training.fingerprint`), for the same purpose.
    """

    def __init__(
        self, folder: str | Path, seeds: tuple[int, ...], description: dict[str, str]
    ) -> None:
        import orbax.checkpoint as ocp

        self._arguments = ocp.args
        self._seeds = np.asarray(seeds, np.int64)
        self._description = description
        self._manager = ocp.CheckpointManager(
            Path(folder).absolute(),
            options=ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False),
        )

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *exception: object) -> None:
        self._manager.close()

    @property
    def latest(self) -> int | None:
        """The round of the latest checkpoint, or None."""
        return self._manager.latest_step()

    def save(self, state: RoundState, history: History) -> None:
        """Writes a checkpoint for the round the history has reached."""
        described = np.frombuffer(json.dumps(self._description).encode(), np.uint8)
        recorded = {"seeds": self._seeds, "description": described, **history.arrays()}
        self._manager.save(
            history.round,
            args=self._arguments.Composite(
                state=self._arguments.StandardSave(_plain(state)),
                history=self._arguments.StandardSave(recorded),
            ),
        )

    def restore(self, state: RoundState) -> tuple[RoundState, History]:
        """Reads the latest checkpoint.

        Args:
            state: A state of the same run, for its structure, shapes and types.

        Returns:
            The state and the history.

        Raises:
            ValueError: If the checkpoint belongs to a run with other seeds, data or settings.
        """
        history = self._manager.restore(
            self.latest, args=self._arguments.Composite(history=self._arguments.StandardRestore())
        )["history"]
        recorded: dict[str, Any] = jax.tree.map(np.asarray, history)
        self._require_the_same(recorded)
        restored = self._manager.restore(
            self.latest,
            args=self._arguments.Composite(
                state=self._arguments.StandardRestore(_plain(state)),
            ),
        )
        return _like(state, restored["state"]), History.from_arrays(recorded)

    def _require_the_same(self, recorded: dict[str, Any]) -> None:
        """Raises unless the checkpoint is of this run; says where it differs."""
        where = f"the checkpoints in {self._manager.directory} are of a run with"
        if not np.array_equal(recorded["seeds"], self._seeds):
            raise ValueError(
                f"seeds={self._seeds.tolist()}: {where} seeds {recorded['seeds'].tolist()}."
            )
        kept = json.loads(recorded["description"].tobytes()) if "description" in recorded else {}
        gaps = differences(self._description, kept)
        if gaps:
            place, own, other = gaps[0]
            more = f" ({len(gaps) - 1} more differences)" if len(gaps) > 1 else ""
            raise ValueError(f"{place}={own}: {where} {other}{more}.")


def _plain(state: RoundState) -> Any:
    """Turns random keys into ordinary arrays, which is what can be stored."""
    return state._replace(key=jax.random.key_data(state.key))


def _like(state: RoundState, plain: Any) -> RoundState:
    key = jax.random.wrap_key_data(plain.key, impl=jax.random.key_impl(state.key))
    return plain._replace(key=key)
