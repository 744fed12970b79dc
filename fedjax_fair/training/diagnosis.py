"""What the host notices about a run: cohorts that cannot be meant."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Int

from fedjax_fair.simulate import RoundInfo

__all__ = ["is_constant", "require_members"]


def is_constant(traced: Any, info: RoundInfo) -> bool:
    """Whether the clients of a traced chunk of rounds depend on nothing that goes into it.

    A selector that draws with NumPy draws once, while it is traced, and the cohort is a constant of
    the program.

    Args:
        traced: ``jax.jit(...).trace(...)`` of a function that returns a state and a ``RoundInfo``.
        info: Anything of the structure of that ``RoundInfo``.
    """
    state, _ = traced.out_info
    wanted = jax.tree.map(lambda _: False, (state, info))
    wanted = jax.tree.leaves((wanted[0], wanted[1]._replace(clients=True)))
    _, used = dce_jaxpr(traced.jaxpr.jaxpr, wanted)
    return not any(used)


def require_members(
    clients: Int[np.ndarray, "seeds rounds cohort"],
    num_clients: int,
    done: int,
    seeds: tuple[int, ...],
) -> None:
    """Requires cohorts of clients that exist; inside a program an id out of range is clamped.

    Raises:
        ValueError: If there is another id; it names the first round with one.
    """
    outside = (clients < 0) | (clients >= num_clients)
    if not outside.any():
        return
    late = int(np.argmax(outside.any(axis=(0, 2))))
    run, slot = np.argwhere(outside[:, late])[0]
    raise ValueError(
        f"selector: the cohort of round {done + late}, seed {seeds[run]}, names client "
        f"{clients[run, late, slot]}: expected ids in [0, {num_clients})."
    )
