"""How a round applies uploads: what participants send of their updates, and what arrives.

The order is fixed. A participant compresses its update, then clips it, so that what it sends is not
longer than the clip that privacy relies on, then weighs it; the server learns the sum, masked or
not, and adds noise. What a Byzantine client sends in place of it (`fedjax_fair.faults`) is not
compressed and not clipped.
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
from fedjax_fair.communication.opaque import sums_of_round
from fedjax_fair.communication.secure import check_sums
from fedjax_fair.faults.apply import renormalize_sum
from fedjax_fair.metrics.communication import bytes_per_round
from fedjax_fair.numerics.finite import all_finite
from fedjax_fair.numerics.secure_sum import SecureAggregation
from fedjax_fair.numerics.sketch import ravel

__all__ = ["Communication", "Received", "bytes_up", "check", "init", "receive", "send"]

# What randomness of uploads is for.
_MASKS, _NOISE, _COUNT, _ROUNDING = range(4)


class Communication(NamedTuple):
    """Settings of what participants send; None for nothing of the kind."""

    secure: SecureAggregation | None = None
    compression: Compression | None = None
    privacy: PrivacyMechanism | None = None


class Received(NamedTuple):
    """What arrives of the uploads of a round.

    Attributes:
        results: Results of the cohort, with the sum that the server learns.
        state: State of the uploads after the round.
        info: What people look at.
        add: Adds up opaque values with weights; None where nothing is opaque.
    """

    results: LocalResult
    state: Any
    info: dict[str, Array]
    add: Callable[[Float[Array, " cohort"], PyTree], PyTree] | None


def check(
    settings: Communication, selector: Selector, aggregator: Aggregator, faults: Sequence[Faults]
) -> None:
    """Requires settings that go together, and with the roles.

    Raises:
        ValueError: If they do not.
    """
    if settings.compression is not None:
        example = "communication.TopK(0.1)"
        checks.instance("compression", settings.compression, Compression, example)
    if settings.secure is not None:
        check_sums(selector, aggregator, faults)
        if settings.compression is not None:
            raise ValueError(
                "compression: masks of aggregation='secure' take four bytes for every number, "
                "whatever is sent; expected one of the two."
            )
    if settings.privacy is not None:
        noise.check_equal_weights(settings.privacy, aggregator)


def init(settings: Communication, num_clients: int, variables: Variables) -> Any:
    """What the next round needs to know of the uploads of this one.

    Raises:
        ValueError: If privacy does not go with the model.
    """
    state = {}
    if settings.privacy is not None:
        noise.check_no_statistics(variables)
        if settings.privacy.adapt is not None:
            state["clipping_norm"] = settings.privacy.init_clipping_norm()
    if settings.compression is not None and settings.compression.error_feedback:
        state["residual"] = jnp.zeros((num_clients, ravel(variables).shape[0]))
    return state or ()


def bytes_up(settings: Communication, variables: Variables) -> int:
    """Bytes that a participant sends in a round, its update alone.

    Examples:
        >>> from fedjax_fair.communication import TopK
        >>> variables = Variables({"kernel": jnp.zeros((10, 5))}, {})
        >>> bytes_up(Communication(), variables), bytes_up(Communication(compression=TopK(0.1)), variables)
        (200, 40)
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
    """The result of a participant whose update is as it sends it, and what it keeps for later.

    Args:
        settings: What is done.
        key: Of the round.
        state: From ``init`` or the round before.
        client: The client.
        occurrence: How many earlier participants are the same client.
        result: Of its training.
    """
    new_residual = None
    if settings.compression is not None:
        own = jax.random.fold_in(jax.random.fold_in(key, _ROUNDING), client)
        own = jax.random.fold_in(own, occurrence)
        vector, unravel = ravel_pytree(result.update)
        residual = jnp.zeros_like(vector)
        if (
            settings.compression.error_feedback
        ):  # Once, if a client is in the cohort more than once.
            residual = jnp.where(occurrence == 0, state["residual"][client], 0)
        sent = settings.compression.compress(own, vector + residual)
        result = result._replace(update=unravel(sent))
        if settings.compression.error_feedback:
            new_residual = jnp.where(all_finite(vector), vector + residual - sent, residual)
    if settings.privacy is not None:
        update, short = noise.clipped(result.update, _clip(settings.privacy, state))
        result = result._replace(update=update)
        if settings.privacy.adapt is not None:
            unclipped = {"unclipped": short.astype(jnp.float32)}
            result = result._replace(reports=result.reports | unclipped)
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
    """What the server learns, from what participants have sent.

    Args:
        settings: What is done.
        key: Of the round.
        state: From ``init`` or the round before.
        cohort: Who takes part, and who has answered.
        occurrences: How many earlier participants are the same client.
        weights: Of the participants, if known beforehand.
        results: What they have sent.
        residuals: Their new residuals, on the devices of the participants.
        context: That of the start of the round.
    """
    add = None
    if settings.secure is not None:
        own = jax.random.fold_in(key, _MASKS)
        add = sums_of_round(own, context, cohort, settings.secure)

    def average(values):
        assert weights is not None
        return renormalize_sum(cohort, weights, (add or context.weighted_sum)(weights, values))

    if add is not None and weights is not None:
        results = results._replace(weighted_sum=average(results.update))
    state, info = dict(state), {}
    if settings.privacy is not None:
        clipping_norm = _clip(settings.privacy, state)
        own = jax.random.fold_in(key, _NOISE)
        assert results.weighted_sum is not None  # Equal weights are known beforehand.
        mean = noise.noisy(own, settings.privacy, clipping_norm, cohort, results.weighted_sum)
        results = results._replace(weighted_sum=mean)
        if settings.privacy.adapt is not None:
            own = jax.random.fold_in(key, _COUNT)
            unclipped = average(results.reports["unclipped"])
            state["clipping_norm"] = settings.privacy.adapt(own, clipping_norm, cohort, unclipped)
            info["clipping_norm"] = clipping_norm
    if residuals is not None:
        rows = context.map_clients(lambda client, own: own, cohort.clients, residuals)
        # What a client has left is settled by the first of its participants, and all of them may add to it again.
        none = jnp.iinfo(cohort.clients.dtype).max
        first = jnp.where(occurrences == 0, cohort.responder_ids, none)
        settled = state["residual"].at[first].set(0, mode="drop")
        state["residual"] = settled.at[cohort.responder_ids].add(rows, mode="drop")
    return Received(results, state or (), info, add)


def _clip(privacy: PrivacyMechanism, state: Any) -> Float[Array, ""]:
    return privacy.init_clipping_norm() if privacy.adapt is None else state["clipping_norm"]
