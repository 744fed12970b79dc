"""The server of HetLoRA: weights of clients by the norms of their products of factors."""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_fair.aggregators.adapters import gather_adapters
from fedjax_fair.aggregators.whole_cohort import normalize_or_equal
from fedjax_fair.models.lora_variants import check_lora
from fedjax_fair.numerics.products import product
from fedjax_fair.roles import Aggregation, Aggregator

__all__ = ["HetLoRAMean"]


class HetLoRAMean(Aggregator):
    r"""Averages the padded factors of adapters, with weights by the norm of their products.

    .. math:: p_i \propto \lVert A_i B_i \rVert_F

    over all adapters, equal if all are zero. Factors of a lower rank count as zeros beyond it, so
    that the mean shrinks there. Clients of `solvers.HetLoRA` send them. Info: the ``product_norm``
    of every participant.

    Raises:
        ValueError: In `Round`, without adapters of which both factors are trained.

    References:
        Cho, Liu, Xu, Fahrezi, Joshi, *Heterogeneous LoRA for Federated Fine-tuning of On-Device
        Foundation Models*, 2024, https://arxiv.org/abs/2401.06432

    Examples:
        >>> HetLoRAMean()
        HetLoRAMean()
    """

    def check_model(self, model):
        check_lora("aggregator: HetLoRAMean", model)

    def aggregate(self, state, cohort, results, context):
        before = context.variables.params["adapters"]
        square = jnp.zeros(cohort.clients.shape)
        for path, update in gather_adapters(cohort, results, context).items():
            a, b = (before[path][name][None] + update[name] for name in ("a", "b"))
            # ||AB||^2 = tr(A'A BB'), from matrices [rank, rank].
            grams = product(a.mT, a) * product(b, b.mT)
            square += jnp.sum(grams, axis=(1, 2))
        norms = jnp.sqrt(jnp.maximum(square, 0))
        weights = normalize_or_equal(cohort.responded_mask, norms)
        update = context.weighted_sum(weights, results.update)
        return update, state, Aggregation(weights, {"product_norm": norms})
