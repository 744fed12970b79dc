"""Power-of-choice: the clients of a random pool with the highest losses."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Selector
from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.numerics.successive import draw_successively
from fedjax_fair.selectors.by_size import ends_of_available
from fedjax_fair.selectors.uniform import draw

__all__ = ["power_of_choice"]


def power_of_choice(
    cohort_size: int,
    pool: int | None = None,
    *,
    variant: Literal["pow", "cpow", "rpow"] = "pow",
    loss_examples: int = 64,
) -> Selector:
    """Draws a pool in proportion to size, and of it takes the clients with the highest loss.

    The pool is drawn without replacement, one client after another in proportion to the sizes of
    those left. Clients are ranked by their loss, equal ones by the order in which they were drawn:

    * ``"pow"``: the mean over all their examples at the current model;
    * ``"cpow"``: an estimate of it from one minibatch, which costs less;
    * ``"rpow"``: the mean minibatch loss they reported when they last trained, which costs nothing;
      infinite for clients that have not trained yet.

    In the first round the cohort is uniform. A loss that is not a number ranks lowest. Info:
    ``pool_loss``, the mean of the losses that were ranked (infinite ones aside).

    No guarantee of differential privacy covers it, because whom it chooses depends on what clients
    have.

    Args:
        cohort_size: Clients per round, ``m``.
        pool: Clients drawn before ranking, ``d``, at least ``m`` and at most all; twice ``m``,
            at most all, by default. With ``d = m`` clients are drawn in proportion to size alone.
        variant: Which losses are ranked.
        loss_examples: Examples of the minibatch of ``"cpow"``; a smaller client uses all of its
            own.

    Returns:
        A ``Selector`` whose cohort has uniform weights.

    Raises:
        ValueError: If a setting is out of range, or (at ``init``) ``pool`` exceeds the number of
            clients.

    References:
        Cho, Wang, Joshi, *Client Selection in Federated Learning: Convergence Analysis and
        Power-of-Choice Selection Strategies*, 2020, https://arxiv.org/abs/2010.01243

    Examples:
        >>> selector = power_of_choice(cohort_size=10, pool=20)
    """
    if pool is None:
        checks.positive_int("cohort_size", cohort_size)
    else:
        checks.positive_int("pool", pool)
        checks.positive_int("cohort_size", cohort_size, at_most=pool)
    checks.positive_int("loss_examples", loss_examples)
    checks.one_of("variant", variant, ("pow", "cpow", "rpow"))

    def init(context):
        if pool is None:
            checks.positive_int("cohort_size", cohort_size, at_most=context.num_clients)
        else:
            checks.positive_int("pool", pool, at_most=context.num_clients)
        reported = jnp.full(context.num_clients, jnp.inf, jnp.float32) if variant == "rpow" else ()
        return jnp.cumsum(context.sizes), reported

    def losses_of(key, reported, context, drawn):
        if variant == "pow":
            return context.losses(context.variables, drawn)
        if variant == "cpow":
            return _minibatch_losses(key, context, drawn, loss_examples)
        return reported[drawn]

    def select(key, state, context):
        ends, reported = state
        key_first, key_pool, key_batch = jax.random.split(key, 3)
        uniform = draw(key_first, cohort_size, context)
        size = min(2 * cohort_size, context.num_clients) if pool is None else pool
        drawn = draw_successively(key_pool, ends_of_available(ends, context), size)
        losses = losses_of(key_batch, reported, context, drawn)
        worth = jnp.where(jnp.isnan(losses), -jnp.inf, losses)
        if context.available is not None:
            worth = jnp.where(context.available[drawn], worth, -jnp.inf)
        ranked = jnp.argsort(worth, descending=True)
        highest = drawn[ranked[:cohort_size]]
        cohort = Cohort(
            clients=jnp.where(context.round == 0, uniform, highest),
            weights=jnp.full(cohort_size, 1 / cohort_size, jnp.float32),
        )
        return cohort, state, {"pool_loss": jnp.mean(losses, where=jnp.isfinite(losses))}

    def observe(state, cohort, results, context):
        if variant != "rpow":
            return state
        ends, reported = state
        return ends, reported.at[cohort.answered].set(results.loss, mode="drop")

    return Selector(init, select, observe, sees="numbers")


def _minibatch_losses(
    key: Key[Array, ""], context: Context, clients: Int[Array, " pool"], batch_size: int
) -> Float[Array, " pool"]:
    """Mean loss of each client on ``min(batch_size, size)`` different examples of its own."""
    examples, (params, state) = context.examples, context.variables
    lanes = jnp.arange(min(batch_size, examples.order.shape[0]), dtype=jnp.int32)

    def loss(client, _):
        size = context.sizes[client]
        entries = permutation_at(jax.random.fold_in(key, client), lanes % size, size)
        rows = examples.order[examples.offsets[client] + entries]
        features = examples.features[rows]
        outputs, _ = context.model.apply(params, state, features, train=False, key=None)
        losses = context.model.loss(outputs, examples.labels[rows])
        return jnp.mean(losses, where=lanes < size)

    return context.map_clients(loss, clients)
