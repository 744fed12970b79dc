"""Checkpoints of a run, written by Orbax."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from time import monotonic
from typing import Any

import jax
import numpy as np

from fedjax_fair.parallel import processes
from fedjax_fair.results import History
from fedjax_fair.results.files import verify_checksum, write_checksum, written_by_orbax
from fedjax_fair.simulate import RoundState
from fedjax_fair.training.best import BestModelTracker
from fedjax_fair.training.fingerprint import differences

__all__ = ["Checkpoints"]

SECONDS_BETWEEN = 30.0
"""Between two checkpoints, at least: a kill costs no more, and writing them hardly anything."""


class Checkpoints:
    """A folder with the latest states of a run and what it has recorded so far.

    A checkpoint is complete or absent: Orbax writes it under another name and renames it, and older
    ones are deleted only afterwards. The last two are kept, each with a digest of its files, which
    Orbax does not check: where the newest is damaged the one before is read.

    Args:
        folder: Where to keep them; created if needed.
        seeds: The seeds of the run, to refuse the checkpoints of another one.
        description: What else the run is made of (`training.fingerprint`), for the same purpose.
        rounds: Rounds of the run.
        eval_every: Rounds between its evaluations. A checkpoint of the end of a shorter run that
            falls between two of them is deleted: the run goes on from the one before.

    Attributes:
        history: What the run has recorded so far, or None before the first checkpoint.

    Raises:
        ValueError: If there are checkpoints, of a run with other seeds, data or settings, or all of
            them damaged.
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
        self._written = monotonic()
        self.history: History | None = None
        while (recorded := self._newest_intact()) is not None:
            self._check_the_same(recorded)
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
        """Whether the last one was written long ago; all processes are of the same opinion."""
        long_ago = monotonic() - self._written >= SECONDS_BETWEEN
        return processes.broadcast_from_main(lambda: "yes" if long_ago else "no") == "yes"

    def save(
        self, state: RoundState, history: History, best: BestModelTracker | None = None
    ) -> None:
        """Writes a checkpoint for the round the history has reached, with the best model so far.

        Raises:
            FileNotFoundError: If the folder was deleted since.
        """
        if not self._folder.is_dir():  # Orbax would make a new one, without what was in it.
            raise FileNotFoundError(
                f"checkpoints={str(self._folder)!r}: the folder was deleted during the run."
            )
        described = np.frombuffer(json.dumps(self._description).encode(), np.uint8)
        recorded = {"seeds": self._seeds, "description": described, **history.arrays()}
        items = {"state": _plain(state), "history": recorded}
        if best is not None:
            items["best"] = best.kept
        saved = {name: self._arguments.StandardSave(item) for name, item in items.items()}
        with written_by_orbax(self._folder, sum(leaf.nbytes for leaf in jax.tree.leaves(items))):
            self._manager.save(history.round, args=self._arguments.Composite(**saved))
        if processes.is_main_process():
            write_checksum(self._folder / str(history.round))
        self._written = monotonic()

    def restore(self, state: RoundState, best: BestModelTracker | None = None) -> RoundState:
        """Reads the state that belongs to ``history``.

        Args:
            state: A state of the same run, for its structure, shapes and types.
            best: What gets the best model so far.
        """
        assert self.history is not None
        items: dict[str, Any] = {"state": _plain(state)}
        if best is not None:
            each = np.zeros(len(self._seeds))
            rounds = each.astype(np.int64)
            variables = jax.tree.map(np.asarray, jax.device_get(state.variables))
            items["best"] = {"scores": each, "rounds": rounds, "variables": variables}
        wanted = {name: self._arguments.StandardRestore(item) for name, item in items.items()}
        restored = self._manager.restore(
            self.history.round, args=self._arguments.Composite(**wanted)
        )
        if best is not None:
            best.kept = restored["best"]
        return _like(state, restored["state"])

    def _newest_intact(self) -> dict[str, Any] | None:
        """What the newest undamaged checkpoint recorded; damaged ones are deleted."""
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            try:
                verify_checksum(self._folder / str(step))
                history = self._manager.restore(
                    step, args=self._arguments.Composite(history=self._arguments.StandardRestore())
                )["history"]
            except Exception as error:  # Orbax raises whatever the damage leads to.
                reason = " ".join(str(error).split())
                damaged = f"the checkpoint of round {step} in {self._folder} is damaged ({reason})"
                if step == steps[-1]:
                    raise ValueError(
                        f"{damaged} and none is left; delete the folder to start anew."
                    ) from error
                warnings.warn(f"{damaged}; continuing from the one before.", stacklevel=2)
                self._manager.delete(step)
            else:
                return jax.tree.map(np.asarray, history)
        return None

    def _check_the_same(self, recorded: dict[str, Any]) -> None:
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
