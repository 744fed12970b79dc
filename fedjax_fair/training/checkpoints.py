"""Checkpoints of runs, written by Orbax."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from time import monotonic
from typing import Any

import jax
import numpy as np

from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel import processes
from fedjax_fair.results import History
from fedjax_fair.results.files import verify_checksum, write_checksum, written_by_orbax
from fedjax_fair.simulate import RoundState
from fedjax_fair.training.best import BestModels, BestModelTracker
from fedjax_fair.training.fingerprint import differences

__all__ = ["Checkpoints"]

SAVE_INTERVAL_S = 30.0
"""Minimum seconds between checkpoints: the most that a killed run loses. Writing takes little."""


class Checkpoints:
    """A folder with the latest states and records of a batch of runs.

    Orbax renames a checkpoint when it is complete. The last two remain, each with a digest of its
    files, which Orbax does not verify. If the newest one is damaged, the one before is read. A
    checkpoint at the end of a shorter run, between two evaluations of this one, is deleted.
    ``description`` is a fingerprint of the runs.

    ``history`` has the records of the newest usable checkpoint, or is None.

    Raises:
        ValueError: If the checkpoints belong to other seeds, data or settings, or all are damaged.
    """

    def __init__(
        self,
        folder: str | Path,
        seeds: tuple[int, ...],
        description: dict[str, str],
        rounds: int,
        eval_every: int,
    ) -> None:
        import orbax.checkpoint as ocp

        self._arguments = ocp.args
        self._seeds = np.asarray(seeds, np.int64)
        self._description = description
        self._folder = Path(folder).absolute()
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False),
        )
        self._saved_at = monotonic()
        self.history: History | None = None
        while (recorded := self._newest_intact()) is not None:
            self._check_same_run(recorded)
            history = History.from_arrays(recorded)
            if history.round >= rounds or history.round % eval_every == 0:
                self.history = history
                break
            self._manager.delete(history.round)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *exception: object) -> None:
        self._manager.close()

    @property
    def latest(self) -> int | None:
        """The round of the latest checkpoint, or None."""
        return self._manager.latest_step()

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due. The main process decides for all processes."""
        elapsed = monotonic() - self._saved_at >= SAVE_INTERVAL_S
        return processes.broadcast_from_main(lambda: "yes" if elapsed else "no") == "yes"

    def save(
        self, state: RoundState, history: History, best_tracker: BestModelTracker | None = None
    ) -> None:
        """Writes a checkpoint of the latest evaluated round.

        Raises:
            FileNotFoundError: If the folder was deleted during the run.
        """
        if not self._folder.is_dir():  # Orbax would create it again, without older checkpoints.
            raise FileNotFoundError(
                f"checkpoints={str(self._folder)!r}: the folder was deleted during the run."
            )
        described = np.frombuffer(json.dumps(self._description).encode(), np.uint8)
        recorded = {"seeds": self._seeds, "description": described, **history.arrays()}
        items: dict[str, Any] = {"state": _without_key_type(state), "history": recorded}
        if best_tracker is not None and best_tracker.best is not None:
            items["best"] = best_tracker.best._asdict()
        saved = {name: self._arguments.StandardSave(item) for name, item in items.items()}
        with written_by_orbax(self._folder, tree_bytes(items)):
            self._manager.save(history.round, args=self._arguments.Composite(**saved))
        if processes.is_main_process():
            write_checksum(self._folder / str(history.round))
        self._saved_at = monotonic()

    def restore(
        self, state: RoundState, best_tracker: BestModelTracker | None = None
    ) -> RoundState:
        """Reads the state that belongs to ``history``, in the structure of the given one.

        The best models so far are assigned to ``best_tracker``.
        """
        assert self.history is not None
        items: dict[str, Any] = {"state": _without_key_type(state)}
        if best_tracker is not None:
            scores = np.zeros(len(self._seeds))
            variables = jax.tree.map(np.asarray, jax.device_get(state.variables))
            items["best"] = BestModels(scores, scores.astype(np.int64), variables)._asdict()
        restored = self._restore(self.history.round, **items)
        if best_tracker is not None:
            best_tracker.best = BestModels(**restored["best"])
        key = restored["state"].key
        key = jax.random.wrap_key_data(key, impl=jax.random.key_impl(state.key))
        return restored["state"]._replace(key=key)

    def _restore(self, step: int, **items: Any) -> Any:
        """Reads items of a checkpoint, in the structure of the given ones if any."""
        wanted = {name: self._arguments.StandardRestore(item) for name, item in items.items()}
        return self._manager.restore(step, args=self._arguments.Composite(**wanted))

    def _newest_intact(self) -> dict[str, Any] | None:
        """Returns the records of the newest intact checkpoint, and deletes damaged ones."""
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            try:
                verify_checksum(self._folder / str(step))
                history = self._restore(step, history=None)["history"]
            except Exception as error:  # The type of error depends on the damage.
                reason = " ".join(str(error).split())
                damaged = f"the checkpoint of round {step} in {self._folder} is damaged ({reason})"
                if step == steps[-1]:
                    raise ValueError(
                        f"{damaged} and none is left; delete the folder to start again."
                    ) from error
                warnings.warn(f"{damaged}; continuing from the one before.", stacklevel=2)
                self._manager.delete(step)
            else:
                return jax.tree.map(np.asarray, history)
        return None

    def _check_same_run(self, recorded: dict[str, Any]) -> None:
        """Raises unless a checkpoint belongs to these runs; names the first difference."""
        where = f"the checkpoints in {self._manager.directory} are of a run with"
        if not np.array_equal(recorded["seeds"], self._seeds):
            raise ValueError(
                f"seeds={self._seeds.tolist()}: {where} seeds {recorded['seeds'].tolist()}."
            )
        described = json.loads(recorded["description"].tobytes())
        different = differences(self._description, described)
        if different:
            path, value, recorded_value = different[0]
            more = f" ({len(different) - 1} more differences)" if len(different) > 1 else ""
            raise ValueError(f"{path}={value}: {where} {recorded_value}{more}.")


def _without_key_type(state: RoundState) -> RoundState:
    """Replaces the random keys by their data, because Orbax stores ordinary arrays only."""
    return state._replace(key=jax.random.key_data(state.key))
