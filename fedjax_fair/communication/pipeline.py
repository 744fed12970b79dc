"""Application of privacy, secure aggregation and compression within a round.

A participant compresses, clips, weights and masks its update. The server receives the sum and adds
noise. Clipping follows compression, because the privacy guarantee depends on the norm of what is
sent. Faults apply afterwards: Byzantine clients neither compress nor clip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from fedjax_fair.communication import differential_privacy
from fedjax_fair.communication.compression import Compression
from fedjax_fair.communication.differential_privacy import PrivacyMechanism
from fedjax_fair.communication.opaque import secure_sums
from fedjax_fair.faults.injection import renormalize_sum
from fedjax_fair.numerics.secure_sum import SecureAggregation
from fedjax_fair.numerics.trees import all_finite, tree_bytes
from fedjax_fair.roles import (
    Aggregator,
    Cohort,
    Context,
    Faults,
    LocalResult,
    Selector,
    Solver,
    Variables,
)
from fedjax_fair.utils import checks

__all__ = [
    "Communication", "Received", "bytes_up", "check", "init", "receive", "residual_width", "send",
    "shared_leaves",
]  # fmt: skip

# Purposes of random keys.
_MASKS, _NOISE, _COUNT, _ROUNDING = range(4)

_AGGREGATE_ROLES = {
    "selector": "Uniform, BySize, Full, RoundRobin, PowerOfChoice, Agnostic or DRFA",
    "aggregator": "Mean, Tilted, QFedAvg, FairFed or GIFAIR",
}


# Settings of a round and not wrappers of solvers. Wrappers would need random keys, could be nested
# in an order that voids a guarantee without an error, and could wrap a solver whose other sends
# they do not cover. Clipping comes last because it scales all elements equally and keeps a
# compressed update compressed; rounding after it could exceed the norm.
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
    settings: Communication,
    selector: Selector,
    solver: Solver,
    aggregator: Aggregator,
    faults: Sequence[Faults],
) -> None:
    """Raises a ``ValueError`` if settings are not compatible with each other or with the roles."""
    if settings.compression is not None:
        example = "communication.TopK(0.1)"
        checks.instance("compression", settings.compression, Compression, example)
    if settings.secure is not None:
        for role, given in (("selector", selector), ("aggregator", aggregator)):
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
    for name in ("compression", "privacy"):
        if solver.is_sent is not None and getattr(settings, name) is not None:
            raise ValueError(
                f"{name}: {type(solver).__name__} sends a part of the update, which varies, and "
                f"{name} would change the rest; use a solver that sends the same arrays in all "
                "rounds."
            )
    if settings.privacy is not None:
        example = "communication.DifferentialPrivacy(1.0, 1.0)"
        checks.instance("privacy", settings.privacy, PrivacyMechanism, example)
        if not aggregator.equal_weights:
            raise ValueError(
                "privacy requires equal weights; use aggregators.Mean('uniform'), which is "
                "--aggregator.weights uniform on the command line."
            )


def init(settings: Communication, variables: Variables) -> Any:
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
    return state or ()


def shared_leaves(variables: Variables, is_personal: Variables) -> list[Array]:
    """Returns the arrays that are communicated."""
    pairs = zip(*map(jax.tree.leaves, (variables, is_personal)), strict=True)
    return [leaf for leaf, personal in pairs if not personal]


def residual_width(settings: Communication, shared: Sequence[Array]) -> int:
    """Returns the elements of a client's residual; 0 without error feedback."""
    has_feedback = settings.compression is not None and settings.compression.error_feedback
    return sum(leaf.size for leaf in shared) if has_feedback else 0


def bytes_up(settings: Communication, shared: Sequence[Array]) -> int:
    """Returns the bytes that a participant sends of the arrays of an update.

    Examples:
        >>> from fedjax_fair.communication import TopK
        >>> shared = [jnp.zeros((10, 5))]
        >>> bytes_up(Communication(), shared)
        200
        >>> bytes_up(Communication(compression=TopK(0.1)), shared)
        40
    """
    size = sum(leaf.size for leaf in shared)
    if settings.secure is not None:
        return 4 * size
    if settings.compression is not None:
        return settings.compression.num_bytes(size) if size else 0
    return tree_bytes(shared)


def send(
    settings: Communication,
    key: Key[Array, ""],
    state: Any,
    is_personal: Variables,
    client: Int[Array, ""],
    occurrence: Int[Array, ""],
    result: LocalResult,
    residual: Float[Array, " width"] | tuple[()],
) -> tuple[LocalResult, Float[Array, " width"] | tuple[()]]:
    """Compresses and clips the update of a participant.

    Args:
        settings: The settings.
        key: Key of the round.
        state: Current state.
        is_personal: Which arrays of the update are not sent.
        client: Id of the client.
        occurrence: Number of earlier slots of the cohort with the same client.
        result: Result of local training.
        residual: The client's residual; ``()`` without error feedback.

    Returns:
        The result that is sent, and the new residual.
    """
    compression, privacy = settings.compression, settings.privacy
    for name, setting in (("compression", compression), ("privacy", privacy)):
        if setting is not None and result.sends:
            raise ValueError(
                f"{name}={setting!r}: the solver also sends {', '.join(sorted(result.sends))}, to "
                "which it would not apply; use a solver that sends updates only."
            )
    shared = shared_leaves(result.update, is_personal)
    if compression is not None and shared:
        key_client = jax.random.fold_in(jax.random.fold_in(key, _ROUNDING), client)
        vector, unravel = ravel_pytree(shared)
        key_slot = jax.random.fold_in(key_client, occurrence)
        if isinstance(residual, tuple):
            sent = compression.compress(key_slot, vector)
        else:
            sent = compression.compress(key_slot, vector + residual)
            residual = jnp.where(all_finite(vector), vector + residual - sent, residual)
        sent_leaves = iter(unravel(sent))
        update = jax.tree.map(
            lambda leaf, personal: leaf if personal else next(sent_leaves),
            result.update,
            is_personal,
        )
        result = result._replace(update=update)
    if privacy is not None:
        update, unclipped = differential_privacy.clip_update(
            result.update, _clipping_norm(privacy, state)
        )
        result = result._replace(update=update)
        if privacy.adapt is not None:
            reports = result.reports | {"unclipped": unclipped.astype(jnp.float32)}
            result = result._replace(reports=reports)
    return result, residual


def receive(
    settings: Communication,
    key: Key[Array, ""],
    state: Any,
    cohort: Cohort,
    weights: Float[Array, " cohort"] | None,
    results: LocalResult,
    context: Context,
) -> Received:
    """Sums updates, adds noise, and updates the state.

    Args:
        settings: The settings.
        key: Key of the round.
        state: Current state.
        cohort: The cohort, with the mask of the responding clients.
        weights: Aggregation weights, if they do not depend on the results.
        results: Results that were sent.
        context: Context at the start of the round.
    """
    add, add_indicators = None, context.weighted_sum
    if (secure := settings.secure) is not None:
        add = secure_sums(jax.random.fold_in(key, _MASKS), context, cohort, secure)
        # An indicator of 1 may exceed the bound of updates.
        add_indicators = partial(add, max_abs_value=max(1.0, secure.max_abs_value))

    def average(add, values):
        assert weights is not None
        return renormalize_sum(cohort, weights, add(weights, values))

    if add is not None and weights is not None:
        results = results._replace(weighted_sum=average(add, results.update))
    state, info = dict(state), {}
    if (privacy := settings.privacy) is not None:
        clipping_norm = _clipping_norm(privacy, state)
        key_noise = jax.random.fold_in(key, _NOISE)
        assert results.weighted_sum is not None  # `check` requires equal weights.
        mean = differential_privacy.add_noise(
            key_noise, privacy, clipping_norm, cohort, results.weighted_sum
        )
        results = results._replace(weighted_sum=mean)
        if privacy.adapt is not None:
            key_count, unclipped = jax.random.fold_in(key, _COUNT), results.reports["unclipped"]
            fraction = average(add_indicators, unclipped)
            adapted = privacy.adapt(key_count, clipping_norm, cohort, fraction)
            state["clipping_norm"], info["clipping_norm"] = adapted, clipping_norm
    return Received(results, state or (), info, add)


def _clipping_norm(privacy: PrivacyMechanism, state: Any) -> Float[Array, ""]:
    return privacy.init_clipping_norm() if privacy.adapt is None else state["clipping_norm"]
