"""Checkpoints of runs, written by Orbax."""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel import processes
from fedjax_fair.results import History
from fedjax_fair.results.files import (
    check_orbax_path,
    locked,
    verify_checksum,
    write_checksum,
    written_by_orbax,
)
from fedjax_fair.rounds.round_state import RoundState
from fedjax_fair.training.best import BestModels, BestModelTracker
from fedjax_fair.training.fingerprint import differences, is_code
from fedjax_fair.utils.terminal import one_line
from fedjax_fair.utils.warning import warn

__all__ = ["Checkpoints", "SavedState"]

SAVE_INTERVAL_S = 30.0
"""Minimum seconds between checkpoints: the most that a killed run loses. Writing takes little."""

_CONTENTS = ("state", "history", "_CHECKPOINT_METADATA")
"""Names in the folder of a checkpoint, also of a damaged one."""


class SavedState(NamedTuple):
    """The state of runs as checkpoints have it, independent of devices and platform.

    Attributes:
        state: The state of the round, without client states.
        clients: Vectors of all clients by name, ``[runs, clients, width]``, in client order.
        shapes: Type and shape of each leaf of the state of a client, by path.
    """

    state: RoundState
    clients: dict[str, np.ndarray]
    shapes: dict[str, str]


class Checkpoints:
    """A folder with the latest states and records of a batch of runs.

    The last two remain, each with a checksum of its files. If the newest one is damaged, the one
    before is read. A checkpoint at the end of a shorter run, between two evaluations of this one,
    is deleted. ``description`` is a fingerprint of the runs, whose
    code may differ with ``allow_changed_code``. ``history`` has the records of the
    newest usable checkpoint, or is None.

    Raises:
        ValueError: If the checkpoints belong to other seeds, data or settings, all are damaged, or
            another process or thread uses the folder.
    """

    def __init__(
        self,
        folder: str | Path,
        seeds: tuple[int, ...],
        description: dict[str, str],
        rounds: int,
        eval_every: int,
        *,
        allow_changed_code: bool = False,
    ) -> None:
        import orbax.checkpoint as ocp

        check_orbax_path(folder)
        self._arguments = ocp.args
        self._seeds = np.asarray(seeds, np.int64)
        self._description = description
        self._allow_changed_code = allow_changed_code
        self._folder = Path(folder).absolute()
        if self._folder.is_file():
            raise ValueError(
                f"checkpoints={str(folder)!r}: expected a folder, found a file; choose another "
                "path."
            )
        for path in self._folder.glob("[0-9]*"):
            with suppress(OSError):
                path.rmdir()  # An empty folder, which could have the name of the next checkpoint.
        # Two threads that write a checkpoint of the same round end in errors of Orbax.
        with ExitStack() as opened:
            if processes.is_main_process():
                self._folder.mkdir(parents=True, exist_ok=True)
                opened.enter_context(locked(self._folder))
            options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
            self._manager = ocp.CheckpointManager(self._folder, options=options)
            opened.callback(self._manager.close)
            self._find(rounds, eval_every)
            self._opened = opened.pop_all()

    def _find(self, rounds: int, eval_every: int) -> None:
        """Finds the newest usable checkpoint."""
        self._saved_at = monotonic()
        self.history: History | None = None
        while (recorded := self._newest_intact()) is not None:
            self._check_same_run(recorded)
            shapes = recorded.pop("client_state", None)
            self._recorded_shapes = {} if shapes is None else json.loads(shapes.tobytes())
            history = History.from_arrays(recorded)
            if history.round >= rounds or history.round % eval_every == 0:
                self.history = history
                break
            self._manager.delete(history.round)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    @property
    def latest(self) -> int | None:
        """The round of the latest checkpoint, or None."""
        return max(self._steps(), default=None)

    @property
    def due(self) -> bool:
        """True if a checkpoint is due. The main process decides for all processes."""
        elapsed = monotonic() - self._saved_at >= SAVE_INTERVAL_S
        return processes.broadcast_from_main(lambda: "yes" if elapsed else "no") == "yes"

    def save(
        self, saved: SavedState, history: History, best_tracker: BestModelTracker | None = None
    ) -> None:
        """Writes a checkpoint of the latest evaluated round.

        Raises:
            FileNotFoundError: If the folder was deleted during the run.
        """
        if not self._folder.is_dir():  # Orbax would create it again, without older checkpoints.
            raise FileNotFoundError(
                f"checkpoints={str(self._folder)!r}: the folder was deleted during the run; start "
                "again, and keep the folder until the end."
            )
        described = np.frombuffer(json.dumps(self._description).encode(), np.uint8)
        recorded = {"seeds": self._seeds, "description": described, **history.arrays()}
        if saved.shapes:
            recorded["client_state"] = np.frombuffer(json.dumps(saved.shapes).encode(), np.uint8)
        items: dict[str, Any] = {**_items(saved), "history": recorded}
        if best_tracker is not None and best_tracker.best is not None:
            items["best"] = best_tracker.best._asdict()
        arguments = {name: self._arguments.StandardSave(item) for name, item in items.items()}
        with written_by_orbax(self._folder, tree_bytes(items)):
            # Forced, because a foreign folder may have the number of a later round.
            composite = self._arguments.Composite(**arguments)
            self._manager.save(history.round, args=composite, force=True)
        if processes.is_main_process():
            write_checksum(self._folder / str(history.round))
        for step in self._steps()[2:]:
            self._manager.delete(step)
        self._saved_at = monotonic()

    def restore(
        self, template: SavedState, best_tracker: BestModelTracker | None = None
    ) -> SavedState:
        """Reads the state that belongs to ``history``, in the structure of the given one.

        The best models so far are assigned to ``best_tracker``.

        Raises:
            ValueError: If clients kept a state of another shape.
        """
        assert self.history is not None
        different = differences(template.shapes, self._recorded_shapes)
        if different:
            path, shape, recorded_shape = different[0]
            raise ValueError(
                f"client state: {path} has shape {shape}; the checkpoints in "
                f"{self._manager.directory} are of a run with shape {recorded_shape}; expected "
                "equal shapes; use another folder, or the settings of that run."
            )
        state, items = template.state, _items(template)
        if best_tracker is not None:
            scores = np.zeros(len(self._seeds))
            variables = jax.tree.map(np.asarray, jax.device_get(state.variables))
            items["best"] = BestModels(scores, scores.astype(np.int64), variables)._asdict()
        restored = self._restore(self.history.round, **items)
        if best_tracker is not None:
            best_tracker.best = BestModels(**restored["best"])
        fields = restored["state"]
        key = jax.random.wrap_key_data(fields.pop("key"), impl=jax.random.key_impl(state.key))
        state = state._replace(key=key, **fields)
        return SavedState(state, restored.get("clients", {}), template.shapes)

    def _restore(self, step: int, **items: Any) -> Any:
        """Reads items of a checkpoint, in the structure of the given ones if any."""
        wanted = {name: self._arguments.StandardRestore(item) for name, item in items.items()}
        return self._manager.restore(step, args=self._arguments.Composite(**wanted))

    def _steps(self) -> list[int]:
        """Returns the rounds of all checkpoints, newest first; other folders are ignored."""
        folders = {step: self._folder / str(step) for step in self._manager.all_steps()}
        return sorted(
            (
                step
                for step, folder in folders.items()
                if not folder.is_symlink() and any((folder / name).exists() for name in _CONTENTS)
            ),
            reverse=True,
        )

    def _newest_intact(self) -> dict[str, Any] | None:
        """Returns the records of the newest intact checkpoint, and deletes damaged ones."""
        steps = self._steps()
        for step in steps:
            try:
                verify_checksum(self._folder / str(step))
                history = self._restore(step, history=None)["history"]
            except Exception as error:  # The type of error depends on the damage.
                reason = one_line(error)
                damaged = f"the checkpoint of round {step} in {self._folder} is damaged ({reason})"
                if step == steps[-1]:
                    raise ValueError(
                        f"{damaged} and none is left; delete the folder to start again."
                    ) from error
                warn(f"{damaged}; continuing from the one before.")
                self._manager.delete(step)
            else:
                return jax.tree.map(np.asarray, history)
        return None

    def _check_same_run(self, recorded: dict[str, Any]) -> None:
        """Raises unless a checkpoint belongs to these runs; names the first difference."""
        where = f"the checkpoints in {self._manager.directory} are of a run with"
        if not np.array_equal(recorded["seeds"], self._seeds):
            raise ValueError(
                f"seeds={self._seeds.tolist()}: {where} seeds {recorded['seeds'].tolist()}; use "
                "these or another folder."
            )
        described = json.loads(recorded["description"].tobytes())
        different = differences(
            self._description, described, allow_changed_code=self._allow_changed_code
        )
        if different:
            path, value, recorded_value = different[0]
            more = f" ({len(different) - 1} more differences)" if len(different) > 1 else ""
            fix = (
                " The code has changed since then; restore it, or continue with the changed code "
                "by --allow-changed-code (in Python allow_changed_code=True)."
                if is_code(path)
                else ""
            )
            raise ValueError(f"{path}={value}: {where} {recorded_value}{more}.{fix}")


def _items(saved: SavedState) -> dict[str, Any]:
    """Returns the items of a checkpoint that have a state.

    Random keys are replaced by their data, because Orbax stores ordinary arrays only.
    """
    fields = saved.state._replace(key=jax.random.key_data(saved.state.key))._asdict()
    del fields["clients"]
    return {"state": fields} | ({"clients": saved.clients} if saved.clients else {})
