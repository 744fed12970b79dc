"""Equal weights for groups of clients that are estimated from activations."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.aggregators.whole_cohort import mask_updates
from fedjax_fair.metrics.clustering import adjusted_rand_index, normalized_mutual_information
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.spectral_clustering import (
    cluster_weights,
    eigengap,
    kmeans,
    spectral_embedding,
)
from fedjax_fair.roles import Aggregation, Aggregator, Cohort, Context, LocalResult, setting
from fedjax_fair.utils import checks

__all__ = ["Equitable"]


class Equitable(Aggregator):
    r"""Clusters the cohort by activations and gives every cluster the same weight.

    Participants send vectors of mean activations :math:`a_i`. The server embeds their similarities
    :math:`S = A A^\top` in the eigenvectors of the largest eigenvalues, runs k-means, and weights
    participants by

    .. math:: p_i = \frac{1}{C' \cdot |\text{cluster of } i|},

    where :math:`C'` is the number of non-empty clusters. (The paper divides by the requested
    number, which would shrink the model if there are fewer.)

    A participant whose vector is not finite gets no weight. If none is finite, the update is not
    finite either.

    Info: the ``cluster`` of every participant (slot of its first participant; -1 without weight),
    ``num_clusters``, and the agreement with known groups, ``nmi`` and ``ari``.

    Args:
        num_clusters: Number of clusters, or ``"eigengap"`` to choose from 2 up to the cohort size
            minus one by the largest gap between eigenvalues.
        groups: ``"oracle"`` takes the ground-truth groups as clusters, an upper bound.
        layer: Activations of the last hidden layer, or ``"logits"``.
        model: The locally ``"trained"`` model or the ``"received"`` one.
        examples: All training examples of the client, or the ``"last_batch"`` it trained on.
        center: Whether to subtract the mean vector of the cohort.
        cosine: Whether to scale vectors to unit norm.

    Raises:
        ValueError: If a setting is not one of those listed, or (at ``init``) an oracle has no
            groups.

    References:
        Anonymous, *Equitable Federated Learning with Activation Clustering*, 2024, algorithm 1,
        https://arxiv.org/abs/2410.19207

    Examples:
        >>> aggregator = Equitable(num_clusters=2)
        >>> oracle = Equitable(num_clusters=2, groups="oracle")
    """

    num_clusters: int | Literal["eigengap"] = setting(
        checks.positive_int, default=2, words=("eigengap",)
    )
    _: KW_ONLY
    groups: Literal["estimated", "oracle"] = "estimated"
    layer: Literal["penultimate", "logits"] = "penultimate"
    model: Literal["trained", "received"] = "trained"
    # All examples are a sixth pass next to five local epochs; `"last_batch"` avoids it.
    examples: Literal["all", "last_batch"] = "all"
    center: bool = False
    cosine: bool = False

    def init(self, context):
        if self.groups == "oracle" and context.groups is None:
            raise ValueError(
                "groups='oracle': expected a federated dataset with groups; use "
                "groups='estimated', or a partition with groups, such as planted_clusters."
            )
        return ()

    def aggregate(self, state, cohort, results, context):
        groups = None if context.groups is None else context.groups[cohort.clients]
        valid = cohort.responded_mask
        if self.groups == "oracle" and groups is not None:
            labels = jnp.where(valid, groups, -1)
        else:
            vectors = self.activation_vectors(cohort, results, context)
            valid &= jnp.all(jnp.isfinite(vectors), axis=1)
            key = jax.random.fold_in(jax.random.key(0), context.round)
            similarity = self._similarity(vectors, valid)
            labels = self._cluster(key, similarity, valid)
        # Clusters are named by the slot of their first participant.
        first = jnp.argmax(labels[:, None] == labels[None, :], axis=1).astype(jnp.int32)
        labels = jnp.where(labels >= 0, first, -1)
        weights = cluster_weights(labels, labels.size)
        updates = mask_updates(results.update, valid | ~jnp.any(valid))
        update = context.weighted_sum(weights, updates)
        slots = jnp.arange(labels.size, dtype=jnp.int32)
        info = {"cluster": labels, "num_clusters": jnp.sum(labels == slots, dtype=jnp.int32)}
        if groups is not None:
            # Computed here, because scikit-learn would take minutes for a sweep of a thousand runs.
            info["nmi"] = normalized_mutual_information(labels, groups)
            info["ari"] = adjusted_rand_index(labels, groups)
        return update, state, Aggregation(weights, info)

    def activation_vectors(
        self, cohort: Cohort, results: LocalResult, context: Context
    ) -> Float[Array, "cohort width"]:
        """Returns the mean log-softmax of each participant's activations (definition 1).

        Raises:
            ValueError: If ``examples`` is the last batch and the solver does not report it.
        """
        updates = results.update if self.model == "trained" else None

        def metric_fn(variables, features, labels):
            params, state = variables
            if self.layer == "logits":
                values, _ = context.model.apply(params, state, features, train=False, key=None)
            else:
                values = context.model.features(params, state, features)
            if values.ndim != 2:
                raise ValueError(
                    f"Equitable: layer={self.layer!r} has shape {list(values.shape[1:])} for an "
                    "example; expected a vector, such as the mean over positions from a method "
                    "`features` of the network."
                )
            return jax.nn.log_softmax(values)

        if self.examples == "all":
            return context.client_means(metric_fn, cohort.clients, updates)
        if "last_batch" not in results.reports:
            raise ValueError(
                "examples='last_batch': expected a solver that reports it, such as SGD."
            )

        def of_batch(client, participant):
            indices, update = participant
            variables = context.variables
            if update is not None:
                variables = jax.tree.map(jnp.add, variables, update)
            values = metric_fn(
                variables, context.examples.features[indices], context.examples.labels[indices]
            )
            return jnp.mean(values, axis=0, where=(indices >= 0)[:, None])

        return context.map_clients(
            of_batch, cohort.clients, (results.reports["last_batch"], updates)
        )

    def _similarity(
        self, vectors: Float[Array, "cohort width"], valid: Bool[Array, " cohort"]
    ) -> Float[Array, "cohort cohort"]:
        """Returns inner products, which are zero for invalid vectors."""
        mask = valid.astype(vectors.dtype)
        vectors = jnp.where(valid[:, None], vectors, 0)
        num_valid = jnp.maximum(1, jnp.sum(mask))
        if self.center:
            mean = jnp.sum(vectors, axis=0) / num_valid
            vectors = mask[:, None] * (vectors - mean[None, :])
        if self.cosine:
            norm = jnp.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / jnp.where(norm > 0, norm, 1)
        similarity = product(vectors, vectors.T)
        if self.center:
            # Centering removes the constant eigenvector, and C groups span only C - 1 directions.
            # Adding it back fills an eigenvector that would otherwise hold only noise.
            similarity += jnp.trace(similarity) / num_valid * (mask[:, None] * mask[None, :])
        return similarity

    def _cluster(self, key, similarity, valid) -> Int[Array, " cohort"]:
        size, active = similarity.shape[0], None
        limit = max(2, size - 1) if self.num_clusters == "eigengap" else self.num_clusters
        limit = min(limit, size)
        points = spectral_embedding(similarity, limit)
        if self.num_clusters == "eigengap" and size > 1:  # A single participant is one cluster.
            active = eigengap(similarity, limit)
            # Eigenvectors beyond the gap are left out.
            points = jnp.where(jnp.arange(limit)[None, :] < active, points, 0)
        return kmeans(key, points, limit, active=active, mask=valid).labels
