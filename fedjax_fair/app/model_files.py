"""Files of the trained models in a run folder."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import jax
import numpy as np

from fedjax_fair import checks, results
from fedjax_fair.app.build import method_round
from fedjax_fair.app.config import Config
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.base import Variables
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel import processes
from fedjax_fair.results.files import verify_checksum, write_checksum, written_by_orbax
from fedjax_fair.training.fit_result import FitResult

__all__ = ["folder_name", "load_model", "save_model"]


def folder_name(method: str) -> str:
    """Returns the name of the folder of a method."""
    return quote(method, safe="=,")


def save_model(variables: Variables, path: Path) -> None:
    """Writes the variables of all seeds, leaves ``[seeds, ...]``; all processes must call it.

    An existing model is replaced.
    """
    import orbax.checkpoint as ocp

    # A background thread would print its errors instead of raising them.
    writer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    path.parent.mkdir(exist_ok=True)
    with written_by_orbax(path, tree_bytes(variables)), writer as checkpointer:
        arguments = ocp.args.StandardSave(variables._asdict())
        checkpointer.save(path.absolute(), arguments, force=True)
    if processes.is_main_process():
        write_checksum(path)


def load_model(folder: str | Path, method: str, seed: int | None = None) -> FitResult:
    """Reads the trained models of a method.

    Args:
        folder: A run folder of ``fedjax-fair run``.
        method: One of its methods.
        seed: One of its seeds; by default all.

    Returns:
        The method's results, and the models after the last round.

    Raises:
        ValueError: If there is no such run, method or seed, or the files are damaged.
    """
    run = RunFolder(folder)
    config = run.config()
    if not isinstance(config, Config):
        raise ValueError(f"folder={str(folder)!r}: expected the folder of a training run.")
    dataset = results.open(run.path)
    checks.one_of("method", method, tuple(dataset["algorithm"].values.tolist()))
    seeds = dataset["seed"].values.tolist()
    if seed is not None and seed not in seeds:
        raise ValueError(f"seed={seed!r}: expected one of {', '.join(map(str, seeds))}.")
    variables = _read(run.models / folder_name(method))
    dataset = dataset.sel(algorithm=method, drop=True)
    if seed is not None:
        place = seeds.index(seed)
        dataset = dataset.sel(seed=[seed])
        variables = jax.tree.map(lambda leaf: leaf[place : place + 1], variables)
    model = method_round(config, method, dataset.sizes["class"]).model
    rounds = np.full(dataset.sizes["seed"], dataset["round"].values[-1])
    return FitResult(dataset, variables, model, rounds)


def _read(path: Path) -> Variables:
    import orbax.checkpoint as ocp

    if not path.is_dir():
        raise ValueError(f"folder: no model in {path}; run `fedjax-fair resume` to write it.")
    try:
        verify_checksum(path)
        with ocp.StandardCheckpointer() as checkpointer:
            restored = checkpointer.restore(path.absolute())
    except Exception as error:  # Orbax raises whatever the damage leads to.
        reason = " ".join(str(error).split())
        raise ValueError(f"folder: the model in {path} is damaged ({reason}).") from error
    return Variables(**jax.tree.map(np.asarray, restored))
