"""How a round applies uploads: what a member makes of its update, and what is done to the mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fedjax_fair.base import Cohort, LocalResult
from fedjax_fair.uploads.privacy import Privacy, adapted, clipped, initial_clip, noisy

__all__ = ["MASKS", "init", "private_mean", "send"]

# What randomness of uploads is for.
MASKS, NOISE, COUNT = 0, 1, 2


def init(privacy: Privacy | None) -> Any:
    """What the next round needs to know of the uploads of this one."""
    if privacy is None or privacy.quantile is None:
        return ()
    return {"clip": initial_clip(privacy)}


def send(privacy: Privacy | None, state: Any, result: LocalResult) -> LocalResult:
    """The result of a member whose update is as it sends it."""
    if privacy is None:
        return result
    update, short = clipped(result.update, _clip(privacy, state))
    result = result._replace(update=update)
    if privacy.quantile is None:
        return result
    return result._replace(reports=result.reports | {"shorter": short.astype(jnp.float32)})


def private_mean(
    key: Key[Array, ""],
    privacy: Privacy,
    state: Any,
    cohort: Cohort,
    results: LocalResult,
    average: Callable[[PyTree], PyTree],
) -> tuple[LocalResult, Any, dict[str, Array]]:
    """Results with noise on the mean, the new state, and info of the round.

    Args:
        key: Of this round.
        privacy: The settings.
        state: From ``init`` or the round before.
        cohort: Who has answered.
        results: With the mean of updates over them.
        average: Means over them, of numbers ``[cohort]`` on the devices of the members.
    """
    assert results.weighted_sum is not None  # Equal weights are known beforehand.
    clip = _clip(privacy, state)
    mean = noisy(jax.random.fold_in(key, NOISE), privacy, clip, cohort, results.weighted_sum)
    results = results._replace(weighted_sum=mean)
    if privacy.quantile is None:
        return results, state, {}
    shorter = average(results.reports["shorter"])
    new = adapted(jax.random.fold_in(key, COUNT), privacy, clip, cohort, shorter)
    if cohort.answers is not None:
        new = jnp.where(jnp.any(cohort.answers), new, clip)
    return results, {"clip": jnp.where(jnp.isfinite(new), new, clip)}, {"clip": clip}


def _clip(privacy: Privacy, state: Any) -> Float[Array, ""]:
    return initial_clip(privacy) if privacy.quantile is None else state["clip"]
