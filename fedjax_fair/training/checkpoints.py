"""Checkpoints of a run, written by Orbax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_fair.results import History
from fedjax_fair.simulate import RoundState

__all__ = ["Checkpoints"]


class Checkpoints:
    """A folder with the latest state of a run and what it has recorded so far.

    A checkpoint is complete or absent: Orbax writes it under another name and renames it, and the
    previous one is deleted only afterwards.

    Args:
        folder: Where to keep them; created if needed.
        seeds: The seeds of the run, to refuse the checkpoints of another one.
    """

    def __init__(self, folder: str | Path, seeds: tuple[int, ...]) -> None:
        import orbax.checkpoint as ocp

        self._arguments = ocp.args
        self._seeds = np.asarray(seeds, np.int64)
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
        recorded = {"seeds": self._seeds, **history.arrays()}
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
            ValueError: If the checkpoint belongs to a run with other seeds or another structure.
        """
        restored = self._manager.restore(
            self.latest,
            args=self._arguments.Composite(
                state=self._arguments.StandardRestore(_plain(state)),
                history=self._arguments.StandardRestore(),
            ),
        )
        recorded: dict[str, Any] = jax.tree.map(np.asarray, restored["history"])
        if not np.array_equal(recorded["seeds"], self._seeds):
            raise ValueError(
                f"seeds={self._seeds.tolist()}: the checkpoints in {self._manager.directory} are "
                f"of a run with seeds {recorded['seeds'].tolist()}."
            )
        return _like(state, restored["state"]), History.from_arrays(recorded)


def _plain(state: RoundState) -> Any:
    """Turns random keys into ordinary arrays, which is what can be stored."""
    return state._replace(key=jax.random.key_data(state.key))


def _like(state: RoundState, plain: Any) -> RoundState:
    key = jax.random.wrap_key_data(plain.key, impl=jax.random.key_impl(state.key))
    return plain._replace(key=key)
