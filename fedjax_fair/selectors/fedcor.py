"""FedCor: clients whose losses are correlated with the losses of many other clients."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fedjax_fair.numerics.products import product
from fedjax_fair.roles import Integer, Number, setting
from fedjax_fair.selectors.uniform import FixedSizeSelector, sample_clients, uniform_cohort
from fedjax_fair.submodular import SetFunction, greedy
from fedjax_fair.utils import checks

__all__ = ["FedCor"]

_NOISE = 0.01  # Standard deviation of a loss change that is not explained by the embedding.
# Of Adam. The learning rate decreases to 0, without which a fit does not converge.
_LEARNING_RATE, _FIT_STEPS = 0.01, 1000


class _State(NamedTuple):
    """The Gaussian process and its observations.

    Attributes:
        embeddings: A vector of each client; their products are covariances.
        annealing: The factor of each client's expected decrease.
        losses: Losses of all clients at the start of the last round that measured them.
        changes: Observed changes of the losses, in a ring buffer.
        rounds: The round of each observation; -1 in unused rows.
        num_changes: Number of observations so far.
        log_likelihood: Mean of the observations at the last fit, per client.
    """

    embeddings: Float[Array, "width clients"]
    annealing: Float[Array, " clients"]
    losses: Float[Array, " clients"]
    changes: Float[Array, "history clients"]
    rounds: Int[Array, " history"]
    num_changes: Int[Array, ""]
    log_likelihood: Float[Array, ""]


class FedCor(FixedSizeSelector):
    r"""Selects the clients that are expected to reduce the mean loss of all clients the most.

    The changes of the clients' losses in a round are modeled as Gaussian with mean 0 and covariance
    :math:`\Sigma = X^T X + 0.01^2 I`, where :math:`X` has a column for each client. Greedily,

    .. math:: k = \arg\max_k \alpha_k \sum_i p_i \Sigma_{ik} / \sqrt{\Sigma_{kk}}, \qquad
        \Sigma \leftarrow \Sigma - \Sigma_{:k} \Sigma_{k:} / \Sigma_{kk},

    with :math:`p_i = n_i / \sum_j n_j`. Afterwards :math:`\alpha_k`, initially 1, is multiplied by
    ``annealing`` for the selected clients.

    The first ``warmup`` rounds, and then the last one of every ``interval``, select uniformly. The
    change of all losses in such a round is an observation. After it, from the end of the warm-up
    on, :math:`X` is fitted by 1000 steps of Adam on the Gaussian log-likelihood, starting from the
    last :math:`X`, and all :math:`\alpha_k` are 1 again. An observation that is :math:`r` rounds
    old has the weight ``history_discount**r``.

    Readings: The paper has an extra round on a copy of the model in place of the uniform rounds
    after the warm-up. The mean of the Gaussian is 0. The age of observations counts rounds. The
    learning rate of Adam decreases linearly from 0.01 to 0. All clients report losses, also those
    that are not available for training. A round that changes no loss, because nobody has responded,
    is no observation. Losses that are not finite count as unchanged.

    In a uniform round and the round after it all clients receive the model and send a loss, which
    ``bytes_up`` and ``bytes_down`` of participants do not contain.

    Cohorts have uniform weights. Info: ``is_uniform``, and ``log_likelihood``, of the observations
    at the last fit, in nats per client. Differential privacy does not cover a selection by losses.
    Seeds that run in parallel (on an accelerator) measure and fit in every round.

    Args:
        cohort_size: Clients per round.
        warmup: Uniform rounds at the start, >= 1.
        interval: Rounds from one fit to the next after the warm-up, >= 1; 1 selects uniformly.
        annealing: Factor in ``[0, 1]``; 1 selects the same clients until the next fit.
        history_discount: Weight of observations per round of age, in ``(0, 1]``.
        history_length: Number of observations that are stored, which takes memory of ``[length,
            clients]``.
        embedding_size: Rows of :math:`X`.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Tang, Ning, Wang, Sun, Wang, Li, Chen, *FedCor: Correlation-Based Active Client Selection
        Strategy for Heterogeneous Federated Learning*, 2022, https://arxiv.org/abs/2103.13822

    Examples:
        >>> FedCor(cohort_size=10, warmup=20)
        FedCor(cohort_size=10, warmup=20)
    """

    server_view = "scalars"

    _: KW_ONLY
    warmup: Integer = setting(checks.integer, default=15, at_most=checks.MAX_INT)
    interval: Integer = setting(checks.integer, default=10, at_most=checks.MAX_INT)
    annealing: Number = setting(checks.fraction, default=0.95)
    history_discount: Number = setting(checks.positive, default=0.95, at_most=1)
    history_length: int = setting(checks.positive_int, default=100)
    embedding_size: int = setting(checks.positive_int, default=15)

    def init(self, context):
        super().init(context)
        count = context.num_clients
        return _State(
            embeddings=jnp.zeros((self.embedding_size, count)),
            annealing=jnp.ones(count),
            losses=jnp.zeros(count),
            changes=jnp.zeros((self.history_length, count)),
            rounds=jnp.full(self.history_length, -1, jnp.int32),
            num_changes=jnp.zeros((), jnp.int32),
            log_likelihood=jnp.full((), jnp.nan),
        )

    def _is_uniform(self, round: Int[Array, ""]):
        return (round < self.warmup) | ((round - self.warmup + 1) % self.interval == 0)

    def select(self, key, state, context):
        key_uniform, key_embeddings = jax.random.split(key)
        is_uniform = self._is_uniform(context.round)
        was_uniform = (context.round > 0) & self._is_uniform(context.round - 1)

        def measured():
            # The first round draws the embeddings.
            drawn = jax.random.normal(key_embeddings, state.embeddings.shape)
            embeddings = jnp.where(
                context.round == 0, drawn / jnp.sqrt(self.embedding_size), state.embeddings
            )
            losses = context.losses(context.variables)
            observed = _observe_losses(
                state._replace(embeddings=embeddings), losses, context, was_uniform
            )
            is_fitted = (observed.num_changes > state.num_changes) & (context.round >= self.warmup)
            return jax.lax.cond(is_fitted, lambda: self._fit(observed, context), lambda: observed)

        state = jax.lax.cond(is_uniform | was_uniform, measured, lambda: state)
        sizes = context.sizes.astype(jnp.float32)
        function = ExpectedDecrease(
            state.embeddings, sizes / jnp.sum(sizes), state.annealing, self.cohort_size
        )
        greedily = greedy(function, self.cohort_size, candidate_mask=context.available).items
        uniformly = sample_clients(key_uniform, self.cohort_size, context)
        clients = jnp.where(is_uniform, uniformly, greedily.astype(jnp.int32))
        factor = jnp.where(is_uniform, 1.0, self.annealing)
        state = state._replace(annealing=state.annealing.at[clients].multiply(factor))
        info = {"is_uniform": is_uniform, "log_likelihood": state.log_likelihood}
        return uniform_cohort(clients), state, info

    def _fit(self, state: _State, context) -> _State:
        age = (context.round - state.rounds).astype(jnp.float32)
        weights = jnp.where(state.rounds >= 0, self.history_discount**age, 0)
        optimizer = optax.adam(optax.linear_schedule(_LEARNING_RATE, 0, _FIT_STEPS))

        def loss_fn(embeddings):
            return -log_likelihood(embeddings, state.changes, weights)

        def step(_, carry):
            embeddings, optimizer_state = carry
            gradient = jax.grad(loss_fn)(embeddings)
            with jax.numpy_dtype_promotion("standard"):  # Adam takes powers of counts.
                change, optimizer_state = optimizer.update(gradient, optimizer_state)
            return optax.apply_updates(embeddings, change), optimizer_state

        start = state.embeddings, optimizer.init(state.embeddings)
        embeddings, _ = jax.lax.fori_loop(0, _FIT_STEPS, step, start)
        return state._replace(
            embeddings=embeddings,
            annealing=jnp.ones_like(state.annealing),
            log_likelihood=-loss_fn(embeddings),
        )


def _observe_losses(state: _State, losses: Float[Array, " clients"], context, was_uniform):
    """Stores the losses, and their change as an observation if the last round was uniform."""
    change = losses - state.losses
    change = jnp.where(jnp.isfinite(change), change, 0)
    is_new = was_uniform & jnp.any(change != 0)
    row = jnp.where(is_new, state.num_changes % state.rounds.shape[0], state.rounds.shape[0])
    return state._replace(
        losses=losses,
        changes=state.changes.at[row].set(change, mode="drop"),
        rounds=state.rounds.at[row].set(context.round, mode="drop"),
        num_changes=state.num_changes + is_new.astype(jnp.int32),
    )


def log_likelihood(
    embeddings: Float[Array, "width clients"],
    changes: Float[Array, "history clients"],
    weights: Float[Array, " history"],
) -> Float[Array, ""]:
    """Returns the weighted mean log-likelihood of changes per client, without its constant.

    By the matrix inversion lemma the only factorization has ``width`` rows.
    """
    width, num_clients = embeddings.shape
    variance = _NOISE**2
    gram = product(embeddings, embeddings.T) + variance * jnp.eye(width)
    factor = jnp.linalg.cholesky(gram)
    latent = jax.scipy.linalg.cho_solve((factor, True), product(embeddings, changes.T))
    # A sum of squares, in which nothing cancels.
    residual = jnp.sum((changes - product(latent.T, embeddings)) ** 2, axis=1)
    square = residual / variance + jnp.sum(latent**2, axis=0)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    log_det += (num_clients - width) * jnp.log(variance)
    return -0.5 * (jnp.sum(weights * square) / jnp.sum(weights) + log_det) / num_clients


class _Memo(NamedTuple):
    """Condition of the process on the selected clients.

    Attributes:
        count: Number of selected clients.
        rows: Their rows of the pivoted Cholesky factor of the covariance.
        variance: Conditional variance of each client.
        covariance: Conditional covariance of each client with the mean over all clients.
    """

    count: Int[Array, ""]
    rows: Float[Array, "steps clients"]
    variance: Float[Array, " clients"]
    covariance: Float[Array, " clients"]


class ExpectedDecrease(SetFunction):
    """The greedy objective of `FedCor`; a sum of gains that depend on the order of selection.

    The value of a set is computed with its items in ascending order.
    """

    embeddings: Float[Array, "width clients"]
    shares: Float[Array, " clients"]
    annealing: Float[Array, " clients"]
    max_items: int

    @property
    def size(self):
        return self.embeddings.shape[-1]

    def value(self, mask):
        def step(carry, item):
            memo, total = carry
            added = self.add(memo, item), total + self.gain(memo, item)
            return jax.tree.map(lambda new, old: jnp.where(mask[item], new, old), added, carry), ()

        items = jnp.arange(self.size, dtype=jnp.int32)
        return jax.lax.scan(step, (self.init(), jnp.zeros(())), items)[0][1]

    def init(self):
        noise = _NOISE**2
        covariance = product(product(self.embeddings, self.shares), self.embeddings)
        return _Memo(
            jnp.zeros((), jnp.int32),
            jnp.zeros((self.max_items, self.size)),
            jnp.sum(self.embeddings**2, axis=0) + noise,
            covariance + noise * self.shares,
        )

    def gains(self, memo):
        return self.annealing * memo.covariance / jnp.sqrt(memo.variance)

    def add(self, memo, item):
        row = product(self.embeddings[:, item], self.embeddings).at[item].add(_NOISE**2)
        row = (row - product(memo.rows[:, item], memo.rows)) / jnp.sqrt(memo.variance[item])
        # Other clients explain nothing of the noise.
        variance = jnp.maximum(memo.variance - row**2, _NOISE**2)
        covariance = memo.covariance - product(self.shares, row) * row
        rows = memo.rows.at[memo.count].set(row)
        return _Memo(memo.count + 1, rows, variance, covariance)
