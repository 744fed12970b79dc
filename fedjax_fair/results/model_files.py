"""The trained models of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import jax
import numpy as np

from fedjax_fair import checks
from fedjax_fair.base import Variables
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel import processes
from fedjax_fair.results.files import (
    open,
    verify_checksum,
    write_checksum,
    written_by_orbax,
)

if TYPE_CHECKING:
    from fedjax_fair.training.fit_result import FitResult

__all__ = ["folder_name", "load_model", "save_model"]


def folder_name(method: str) -> str:
    """What a method's own folder is called."""
    return quote(method, safe="=,")


def save_model(variables: Variables, path: Path) -> None:
    """Writes the variables of all seeds, leaves ``[seeds, ...]``; of several processes all call it.

    What was there is replaced.
    """
    import orbax.checkpoint as ocp

    # Not in the background, where Python would print what goes wrong.
    writer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    path.parent.mkdir(exist_ok=True)
    with written_by_orbax(path, tree_bytes(variables)), writer as checkpointer:
        arguments = ocp.args.StandardSave(variables._asdict())
        checkpointer.save(path.absolute(), arguments, force=True)
    if processes.is_main_process():
        write_checksum(path)


def load_model(folder: str | Path, method: str, seed: int | None = None) -> FitResult:
    """Reads what a method of a run was trained to.

    Args:
        folder: A run folder, of ``fedjax-fair run``.
        method: One of its methods.
        seed: One of its seeds; all by default.

    Returns:
        The method's results and the models after the last round, which predict.

    Raises:
        ValueError: If there is no such run, method or seed, or the files are damaged.

    Examples:
        >>> import tempfile
        >>> from fedjax_fair.app.cli import main
        >>> runs = tempfile.mkdtemp()
        >>> command = ["run", "--methods", "fedavg", "--training.rounds", "2", "--output", runs]
        >>> command += ["--model.name", "logistic", "--data.clients", "10"]
        >>> _ = main([*command, "--training.seeds", "7"])  # doctest: +ELLIPSIS
        Run folder: ...
        >>> (folder,) = Path(runs).iterdir()
        >>> load_model(folder, "fedavg", seed=7).predict(np.zeros((3, 8, 8, 1), np.uint8)).shape
        (1, 3)
    """
    # Networks come from what the folder was configured with, which is a layer above results.
    from fedjax_fair.app.build import method_round
    from fedjax_fair.app.config import Config
    from fedjax_fair.app.run_folder import RunFolder
    from fedjax_fair.training.fit_result import FitResult

    run = RunFolder(folder)
    config = run.config()
    if not isinstance(config, Config):
        raise ValueError(f"folder={str(folder)!r}: expected a run that trains models.")
    whole = open(run.path)
    checks.one_of("method", method, tuple(whole["algorithm"].values.tolist()))
    seeds = whole["seed"].values.tolist()
    if seed is not None and seed not in seeds:
        raise ValueError(f"seed={seed!r}: expected one of {', '.join(map(str, seeds))}.")
    variables = _read(run.models / folder_name(method))
    dataset = whole.sel(algorithm=method, drop=True)
    if seed is not None:
        place = seeds.index(seed)
        dataset = dataset.sel(seed=[seed])
        variables = jax.tree.map(lambda leaf: leaf[place : place + 1], variables)
    network = method_round(config, method, dataset.sizes["class"]).model
    rounds = np.full(dataset.sizes["seed"], dataset["round"].values[-1])
    return FitResult(dataset, variables, network, rounds)


def _read(path: Path) -> Variables:
    import orbax.checkpoint as ocp

    if not path.is_dir():
        raise ValueError(f"folder: no model in {path}; `fedjax-fair resume` writes it.")
    try:
        verify_checksum(path)
        with ocp.StandardCheckpointer() as checkpointer:
            restored = checkpointer.restore(path.absolute())
    except Exception as error:  # Orbax raises whatever the damage leads to.
        reason = " ".join(str(error).split())
        raise ValueError(f"folder: the model in {path} is damaged ({reason}).") from error
    return Variables(**jax.tree.map(np.asarray, restored))
