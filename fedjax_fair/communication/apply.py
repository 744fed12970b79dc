"""Application of privacy, secure aggregation and compression within a round.

A participant compresses its update, clips it, and weights and masks it. The server receives the sum
and adds noise. Clipping follows compression, because the privacy guarantee depends on the norm of
what is sent. Faults apply afterwards: Byzantine clients neither compress nor clip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from fedjax_fair import checks
from fedjax_fair.base import Aggregator, Cohort, Context, Faults, LocalResult, Selector, Variables
from fedjax_fair.communication import noise
from fedjax_fair.communication.compression import Compression
from fedjax_fair.communication.noise import PrivacyMechanism
from fedjax_fair.communication.opaque import secure_sums
from fedjax_fair.faults.apply import renormalize_sum
from fedjax_fair.metrics.communication import bytes_per_round
from fedjax_fair.numerics.secure_sum import SecureAggregation
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.numerics.trees import all_finite

__all__ = ["Communication", "Received", "bytes_up", "check", "init", "receive", "send"]

# Purposes of random keys.
_MASKS, _NOISE, _COUNT, _ROUNDING = range(4)

_AGGREGATE_ROLES = {
    "selector": "Uniform, BySize, Full, RoundRobin, PowerOfChoice, Agnostic or DRFA",
    "aggregator": "Mean, Tilted, QFedAvg, FairFed or GIFAIR",
}


class Communication(NamedTuple):
    """Settings of the communication of a round; None disables one."""

    secure: SecureAggregation | None = None
    compression: Compression | None = None
    privacy: PrivacyMechanism | None = None


class Received(NamedTuple):
    """Results of a round as the server receives them.

    Attributes:
        results: Results of the cohort, with the weighted sum of updates.
        state: Next state of the communication.
        info: Diagnostics.
        add: Weighted sum of opaque values; None without secure aggregation.
    """

    results: LocalResult
    state: Any
    info: dict[str, Array]
    add: Callable[[Float[Array, " cohort"], PyTree], PyTree] | None


def check(
    settings: Communication, selector: Selector, aggregator: Aggregator, faults: Sequence[Faults]
) -> None:
    """Checks that settings are compatible with each other and with the roles.

    Raises:
        ValueError: If they are not.
    """
    if settings.compression is not None:
        example = "communication.TopK(0.1)"
        checks.instance("compression", settings.compression, Compression, example)
    if settings.secure is not None:
        for role, given in {"selector": selector, "aggregator": aggregator}.items():
            if given.server_view == "vectors":
                raise ValueError(
                    f"{role}: {type(given).__name__} needs vectors of single clients, which "
                    f"aggregation='secure' hides; use {_AGGREGATE_ROLES[role]}."
                )
        if any(fault.collude is not None for fault in faults):
            raise ValueError(
                "faults: colluding attacks need individual updates, which aggregation='secure' "
                "hides; use 'sign_flip', 'scaling', 'noise' or 'nan'."
            )
        if settings.compression is not None:
            raise ValueError(
                "compression does not reduce the four bytes per parameter that masks of "
                "aggregation='secure' take; use one of the two."
            )
    if settings.privacy is not None:
        example = "communication.DifferentialPrivacy(1.0, 1.0)"
        checks.instance("privacy", settings.privacy, PrivacyMechanism, example)
        if not aggregator.equal_weights:
            raise ValueError("privacy requires equal weights; use aggregators.Mean('uniform').")


def init(settings: Communication, num_clients: int, variables: Variables) -> Any:
    """Returns the initial state.

    Raises:
        ValueError: If the model has running statistics, which noise would corrupt.
    """
    state = {}
    if settings.privacy is not None:
        if jax.tree.leaves(variables.state):
            raise ValueError(
                "privacy does not support models with running statistics; use one without, such as "
                "norm='group'."
            )
        if settings.privacy.adapt is not None:
            state["clipping_norm"] = settings.privacy.init_clipping_norm()
    if settings.compression is not None and settings.compression.error_feedback:
        state["residual"] = jnp.zeros((num_clients, ravel(variables).shape[0]))
    return state or ()


def bytes_up(settings: Communication, variables: Variables) -> int:
    """Returns the bytes of the update that a participant sends.

    Examples:
        >>> from fedjax_fair.communication import TopK
        >>> variables = Variables({"kernel": jnp.zeros((10, 5))}, {})
        >>> bytes_up(Communication(), variables)
        200
        >>> bytes_up(Communication(compression=TopK(0.1)), variables)
        40
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(variables))
    if settings.secure is not None:
        return 4 * size
    if settings.compression is not None:
        return settings.compression.num_bytes(size)
    return bytes_per_round(variables, cohort_size=1)


def send(
    settings: Communication,
    key: Key[Array, ""],
    state: Any,
    client: Int[Array, ""],
    occurrence: Int[Array, ""],
    result: LocalResult,
) -> tuple[LocalResult, Float[Array, " width"] | None]:
    """Compresses and clips the update of a participant.

    Args:
        settings: The settings.
        key: Key of the round.
        state: Current state.
        client: Id of the client.
        occurrence: Number of earlier slots of the cohort with the same client.
        result: Result of local training.

    Returns:
        The result that is sent, and the new residual (None without error feedback).
    """
    compression, privacy, new_residual = settings.compression, settings.privacy, None
    if compression is not None:
        key_client = jax.random.fold_in(jax.random.fold_in(key, _ROUNDING), client)
        vector, unravel = ravel_pytree(result.update)
        residual = jnp.zeros_like(vector)
        if compression.error_feedback:
            # A client that is in the cohort more than once adds its residual once.
            residual = jnp.where(occurrence == 0, state["residual"][client], 0)
        key_slot = jax.random.fold_in(key_client, occurrence)
        sent = compression.compress(key_slot, vector + residual)
        result = result._replace(update=unravel(sent))
        if compression.error_feedback:
            new_residual = jnp.where(all_finite(vector), vector + residual - sent, residual)
    if privacy is not None:
        update, unclipped = noise.clip_update(result.update, _clipping_norm(privacy, state))
        result = result._replace(update=update)
        if privacy.adapt is not None:
            reports = result.reports | {"unclipped": unclipped.astype(jnp.float32)}
            result = result._replace(reports=reports)
    return result, new_residual


def receive(
    settings: Communication,
    key: Key[Array, ""],
    state: Any,
    cohort: Cohort,
    occurrences: Int[Array, " cohort"],
    weights: Float[Array, " cohort"] | None,
    results: LocalResult,
    residuals: Float[Array, "cohort width"] | None,
    context: Context,
) -> Received:
    """Sums updates, adds noise, and updates the state.

    Args:
        settings: The settings.
        key: Key of the round.
        state: Current state.
        cohort: The cohort, with the mask of the responding clients.
        occurrences: Number of earlier slots of the cohort with the same client.
        weights: Aggregation weights, if they do not depend on the results.
        results: Results that were sent.
        residuals: New residuals of the participants.
        context: Context at the start of the round.
    """
    add = None
    if settings.secure is not None:
        add = secure_sums(jax.random.fold_in(key, _MASKS), context, cohort, settings.secure)

    def average(values):
        assert weights is not None
        return renormalize_sum(cohort, weights, (add or context.weighted_sum)(weights, values))

    if add is not None and weights is not None:
        results = results._replace(weighted_sum=average(results.update))
    state, info = dict(state), {}
    if (privacy := settings.privacy) is not None:
        clipping_norm = _clipping_norm(privacy, state)
        key_noise = jax.random.fold_in(key, _NOISE)
        assert results.weighted_sum is not None  # `check` requires equal weights.
        mean = noise.add_noise(key_noise, privacy, clipping_norm, cohort, results.weighted_sum)
        results = results._replace(weighted_sum=mean)
        if privacy.adapt is not None:
            key_count, fraction = jax.random.fold_in(key, _COUNT), results.reports["unclipped"]
            state["clipping_norm"] = privacy.adapt(
                key_count, clipping_norm, cohort, average(fraction)
            )
            info["clipping_norm"] = clipping_norm
    if residuals is not None:
        new = context.map_clients(lambda client, residual: residual, cohort.clients, residuals)
        # The first slot of a client used its residual up, and each of its slots leaves a new one.
        no_client = jnp.iinfo(cohort.clients.dtype).max
        first = jnp.where(occurrences == 0, cohort.responder_ids, no_client)
        used_up = state["residual"].at[first].set(0, mode="drop")
        state["residual"] = used_up.at[cohort.responder_ids].add(new, mode="drop")
    return Received(results, state or (), info, add)


def _clipping_norm(privacy: PrivacyMechanism, state: Any) -> Float[Array, ""]:
    return privacy.init_clipping_norm() if privacy.adapt is None else state["clipping_norm"]
