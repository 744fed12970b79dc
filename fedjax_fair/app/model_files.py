"""Files of the trained models in a run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import jax
import numpy as np

from fedjax_fair import results
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.weights import check_base, write_base
from fedjax_fair.data import FederatedData
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel import processes
from fedjax_fair.results.files import (
    verify_checksum,
    write_checksum,
    write_text,
    written_by_orbax,
)
from fedjax_fair.roles import Model, Variables
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import one_line
from fedjax_fair.utils.warning import warn

__all__ = ["folder_name", "read_fitted", "save_base", "save_model", "save_personalized"]

_MAX_NAME = 120
_PERSONALIZED = ".personalized"
_BASE = "base.txt"
"""Has the name of the file with the frozen parameters of a model."""

_MAX_BYTES = 2**30
"""Size of the personalized models of a method that a run folder stores."""


def folder_name(method: str) -> str:
    """Returns the name of the folder of a method; a long one ends in a hash.

    Examples:
        >>> folder_name("fedprox:prox=0.1"), len(folder_name("fedprox:" + 99 * "prox=0.1,"))
        ('fedprox%3Aprox=0.1', 117)
    """
    name = quote(method, safe="=,")
    # File systems allow 255 bytes, and Orbax appends some to the names of unfinished folders.
    digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 20]}-{digest}"


def save_model(variables: Variables, path: Path, base: str | None = None) -> None:
    """Writes or replaces variables, leaves ``[seeds, ...]``; all processes must call it.

    ``base`` is the name of the file next to ``path`` that has the frozen parameters, if any.
    """
    import orbax.checkpoint as ocp

    # A background thread would print its errors instead of raising them.
    writer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    path.parent.mkdir(exist_ok=True)
    with written_by_orbax(path, tree_bytes(variables)), writer as checkpointer:
        arguments = ocp.args.StandardSave(variables._asdict())
        checkpointer.save(path.absolute(), arguments, force=True)
    if processes.is_main_process():
        if base is not None:
            write_text(path / _BASE, base)
        write_checksum(path)


def save_base(model: Model, data: FederatedData, folder: Path) -> str | None:
    """Writes the initial parameters of a network of which a part is frozen, once for all methods.

    Returns:
        The name of the file in ``folder``; None if no part is frozen.
    """
    if model.frozen == ():  # Not an empty tree, as of `freeze` with all arrays trained.
        return None
    network = model.merge(model.init(jax.random.key(0), data.train.features[:1]))
    folder.mkdir(exist_ok=True)
    return write_base(jax.device_get(network), folder)


def save_personalized(fitted: FitResult, path: Path) -> None:
    """Writes the personalized models of all clients, leaves ``[seeds, clients, ...]``."""
    if fitted.personalized is None:
        return
    path = path.with_name(f"{path.name}{_PERSONALIZED}")
    num_clients = fitted.dataset.sizes["client"]
    num_bytes = num_clients * tree_bytes(fitted.variables)
    if num_bytes > _MAX_BYTES:
        warn(
            f"{path.name}: personalized models of {num_bytes:,} bytes are not stored, more than "
            f"{_MAX_BYTES:,}."
        )
        return
    models = [
        fitted.personalized(run, client)
        for run in range(len(fitted.rounds))
        for client in range(num_clients)
    ]
    shape = len(fitted.rounds), num_clients
    stacked = jax.tree.map(lambda *v: np.stack(v).reshape(*shape, *np.shape(v[0])), *models)
    save_model(stacked, path)


def read_fitted(
    folder: str | Path,
    method: str,
    seed: int | None,
    client: int | str | None,
    make_model: Callable[[Config, Path | None, int], Model],
) -> FitResult:
    """Implements `fedjax_fair.load_model`.

    ``make_model`` makes the network from the configuration, the file with the frozen parameters if
    there are any, and the number of outputs.
    """
    run = RunFolder(folder)
    config = run.config()
    if not isinstance(config, Config):
        raise ValueError(
            f"folder={str(folder)!r}: expected the folder of a training run; "
            "pass the folder that has models in it."
        )
    dataset = results.open(run.path)
    checks.one_of("method", method, tuple(dataset["algorithm"].values.tolist()))
    seeds = dataset["seed"].values.tolist()
    if seed is not None and seed not in seeds:
        raise ValueError(f"seed={seed!r}: expected one of {', '.join(map(str, seeds))}.")
    saved = run.models / folder_name(method)
    variables, base = _read(saved), None
    if (saved / _BASE).exists():
        base = run.models / (saved / _BASE).read_text("utf8")
        check_base(base)
    dataset = dataset.sel(algorithm=method, drop=True)
    if seed is not None:
        place = seeds.index(seed)
        dataset = dataset.sel(seed=[seed])
        variables = jax.tree.map(lambda leaf: leaf[place : place + 1], variables)
    num_outputs = dataset.sizes.get("output", dataset.sizes["class"])
    model = make_model(config, base, num_outputs)
    rounds = np.full(dataset.sizes["seed"], dataset["round"].values[-1])
    own = run.models / f"{folder_name(method)}{_PERSONALIZED}"
    if not own.is_dir():
        fitted = FitResult(dataset, variables, model, rounds, encoding=run.encoding())
    else:
        stored, places = _read(own), [seeds.index(one) for one in dataset["seed"].values]

        def personalized(index: int, client: int) -> Variables:
            return jax.tree.map(lambda leaf: leaf[places[index], client], stored)

        fitted = FitResult(dataset, variables, model, rounds, personalized, run.encoding())
    if client is None:
        return fitted
    models = [fitted.variables_for(one, client) for one in dataset["seed"].values.tolist()]
    return fitted._replace(variables=jax.tree.map(lambda *leaves: np.stack(leaves), *models))


def _read(path: Path) -> Variables:
    import orbax.checkpoint as ocp

    if not path.is_dir():
        raise ValueError(f"folder: no model in {path}; run `fedjax-fair resume` to write it.")
    try:
        verify_checksum(path)
        with ocp.StandardCheckpointer() as checkpointer:
            restored = checkpointer.restore(path.absolute())
    except Exception as error:  # Orbax raises whatever the damage leads to.
        reason = one_line(error)
        raise ValueError(f"folder: the model in {path} is damaged ({reason}).") from error
    return Variables(**jax.tree.map(np.asarray, restored))
