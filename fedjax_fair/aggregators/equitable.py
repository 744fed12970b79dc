"""Equal weight for hidden groups of clients, estimated from the activations of their networks."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair import checks
from fedjax_fair.base import (
    Aggregation,
    Aggregator,
    Cohort,
    Context,
    Info,
    LocalResult,
    Variables,
)
from fedjax_fair.metrics.clustering import adjusted_rand_index, normalized_mutual_information
from fedjax_fair.numerics.clustering import cluster_weights, eigengap, kmeans, spectral_embedding
from fedjax_fair.numerics.products import product

__all__ = ["Equitable", "activation_vectors"]


class Equitable(Aggregator):
    r"""Clusters the cohort by its activations and gives every cluster the same weight.

    Each participant sends, besides its model, a vector of mean activations :math:`a_i`. The server
    embeds the similarities :math:`S = A A^\top` in the eigenvectors of their largest eigenvalues,
    finds clusters by k-means, and weighs a participant by

    .. math:: p_i = \frac{1}{C' \cdot |\text{cluster of } i|},

    where :math:`C'` counts the clusters that are not empty. (The paper divides by the number of
    clusters wanted; with fewer, for example of identical vectors, that would shrink the model.) A
    cohort smaller than ``num_clusters`` is split into single participants at most.

    A participant whose vector is not finite, because its training diverged, gets no weight, and its
    update is left out. Where none is finite weights are uniform, and the update of the round
    is not finite either.

    K-means starts from random seeds of its own, the same in every run: clusters depend only on
    the vectors and the round.

    Info: the ``cluster`` of every member (the slot of its first member, -1 for one that is left
    out), ``num_clusters``, and, where the federation has groups, how well clusters match those of
    the participants: ``nmi`` and ``ari``.

    Args:
        num_clusters: Clusters to look for, or ``"eigengap"`` to choose from 2 up to one less than
            the cohort in every round, by the largest gap between eigenvalues.
        groups: ``"oracle"`` takes the planted groups of the federation instead of looking for
            clusters: what the method could reach at best.
        layer: Activations of the last hidden layer, or ``"logits"``.
        model: Whether they are those of the locally trained model or of the ``"received"`` one.
        examples: Whether to average over all training examples of the client, or over the
            ``"last_batch"`` it trained on.
        center: Whether to subtract the mean over the cohort from the vectors.
        cosine: Whether to scale vectors to unit norm, so that similarities are cosines.

    Raises:
        ValueError: If a setting is not one of those listed, or (at ``init``) if the federation has
            no groups that an oracle could know.

    References:
        *Equitable Federated Learning with Activation Clustering*, algorithm 1.

    Examples:
        >>> aggregator = Equitable(num_clusters=2)
        >>> oracle = Equitable(num_clusters=2, groups="oracle")
    """

    num_clusters: int | Literal["eigengap"] = 2
    _: KW_ONLY
    groups: Literal["estimated", "oracle"] = "estimated"
    layer: Literal["penultimate", "logits"] = "penultimate"
    model: Literal["trained", "received"] = "trained"
    examples: Literal["all", "last_batch"] = "all"
    center: bool = False
    cosine: bool = False

    def __post_init__(self):
        checks.positive_int("num_clusters", self.num_clusters, words=("eigengap",))
        checks.one_of("groups", self.groups, ("estimated", "oracle"))
        checks.one_of("layer", self.layer, ("penultimate", "logits"))
        checks.one_of("model", self.model, ("trained", "received"))
        checks.one_of("examples", self.examples, ("all", "last_batch"))

    def init(self, context):
        if self.groups == "oracle" and context.groups is None:
            raise ValueError("groups='oracle': expected a federation with planted groups.")
        return ()

    def aggregate(self, state, cohort, results, context):
        planted = None if context.groups is None else context.groups[cohort.clients]
        if self.groups == "oracle" and planted is not None:
            participants = jnp.ones(planted.shape, bool)
            if cohort.responded is not None:
                participants = cohort.responded
            labels = jnp.where(participants, planted, -1)
        else:
            vectors = activation_vectors(
                cohort,
                results,
                context,
                layer=self.layer,
                model=self.model,
                examples=self.examples,
            )
            participants = jnp.all(jnp.isfinite(vectors), axis=1)
            if cohort.responded is not None:
                participants &= cohort.responded
            key = jax.random.fold_in(jax.random.key(0), context.round)
            similarity = _similarity(vectors, participants, self.center, self.cosine)
            labels = _clusters(key, similarity, participants, self.num_clusters)
        labels = _by_first_member(labels)
        weights = cluster_weights(labels, labels.size)
        update = context.weighted_sum(weights, _without(results.update, participants))
        return update, state, Aggregation(weights, _info(labels, planted))


def activation_vectors(
    cohort: Cohort,
    results: LocalResult,
    context: Context,
    *,
    layer: Literal["penultimate", "logits"] = "penultimate",
    model: Literal["trained", "received"] = "trained",
    examples: Literal["all", "last_batch"] = "all",
) -> Float[Array, "cohort width"]:
    """Mean log-softmax of the activations of each participant, in evaluation mode.

    Args:
        cohort: The clients that have trained.
        results: Their results.
        context: That of the start of the round.
        layer: See ``Equitable``.
        model: See ``Equitable``.
        examples: See ``Equitable``.

    Returns:
        One row a participant.

    Raises:
        ValueError: If ``examples`` is the last batch and the solver does not report it.

    References:
        *Equitable Federated Learning with Activation Clustering*, definition 1.
    """
    updates = results.update if model == "trained" else None

    def metric_fn(variables, features, labels):
        params, state = variables
        if layer == "logits":
            values, _ = context.model.apply(params, state, features, train=False, key=None)
        else:
            values = context.model.features(params, state, features)
        return jax.nn.log_softmax(values)

    if examples == "all":
        return context.client_means(metric_fn, cohort.clients, updates)
    if "last_batch" not in results.reports:
        raise ValueError("examples='last_batch': expected a solver that reports it.")

    def of_batch(client, participant):
        rows, update = participant
        own = context.variables
        if update is not None:
            own = jax.tree.map(jnp.add, own, update)
        values = metric_fn(own, context.examples.features[rows], context.examples.labels[rows])
        return jnp.mean(values, axis=0, where=(rows >= 0)[:, None])

    return context.map_clients(of_batch, cohort.clients, (results.reports["last_batch"], updates))


def _similarity(
    vectors: Float[Array, "cohort width"],
    participants: Bool[Array, " cohort"],
    center: bool,
    cosine: bool,
) -> Float[Array, "cohort cohort"]:
    """Inner products; those of participants that do not count are zero."""
    counts = participants.astype(vectors.dtype)
    vectors = jnp.where(participants[:, None], vectors, 0)
    number = jnp.maximum(1, jnp.sum(counts))
    if center:
        mean = jnp.sum(vectors, axis=0) / number
        vectors = counts[:, None] * (vectors - mean[None, :])
    if cosine:
        norm = jnp.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / jnp.where(norm > 0, norm, 1)
    similarity = product(vectors, vectors.T)
    if center:
        # Centering took the constant eigenvector away, and what is left of C groups is C - 1
        # directions. Given back, it keeps the place of one that would hold nothing but noise.
        similarity += jnp.trace(similarity) / number * (counts[:, None] * counts[None, :])
    return similarity


def _clusters(key, similarity, participants, num_clusters) -> Int[Array, " cohort"]:
    size = similarity.shape[0]
    if num_clusters != "eigengap":
        most = min(num_clusters, size)
        points = spectral_embedding(similarity, most)
        return kmeans(key, points, most, mask=participants).labels
    most = min(max(2, size - 1), size)
    active = eigengap(similarity, most)
    points = spectral_embedding(similarity, most)
    # The eigenvectors beyond the gap are what it leaves out.
    points = jnp.where(jnp.arange(most)[None, :] < active, points, 0)
    return kmeans(key, points, most, active=active, mask=participants).labels


def _without(updates: Variables, participants: Bool[Array, " cohort"]) -> Variables:
    """Updates of participants only: a weight of zero times NaN would still be NaN."""
    participants = participants | ~jnp.any(participants)

    def clear(leaf: Any) -> Any:
        return jnp.where(participants.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)

    return jax.tree.map(clear, updates)


def _by_first_member(labels: Int[Array, " cohort"]) -> Int[Array, " cohort"]:
    """Names every cluster by the slot of its first member; -1 stays."""
    first = jnp.argmax(labels[:, None] == labels[None, :], axis=1).astype(jnp.int32)
    return jnp.where(labels >= 0, first, -1)


def _info(labels: Int[Array, " cohort"], planted: Int[Array, " cohort"] | None) -> Info:
    slots = jnp.arange(labels.size, dtype=jnp.int32)
    info = {"cluster": labels, "num_clusters": jnp.sum(labels == slots, dtype=jnp.int32)}
    if planted is not None:
        info |= {
            "nmi": normalized_mutual_information(labels, planted),
            "ari": adjusted_rand_index(labels, planted),
        }
    return info
