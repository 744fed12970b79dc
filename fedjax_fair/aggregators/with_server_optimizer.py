"""An optimizer at the server, after any aggregator."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import PyTree

from fedjax_fair.aggregators.area import AREA
from fedjax_fair.aggregators.fedfb import FedFBMean
from fedjax_fair.aggregators.ifca_server import IFCAMean
from fedjax_fair.numerics.trees import keep_finite
from fedjax_fair.roles import Aggregator, Variables, checked_calls, setting
from fedjax_fair.server_optimizers import ServerOptimizer
from fedjax_fair.utils import checks

__all__ = ["WithServerOptimizer"]


_REFUSED = (
    (IFCAMean, "of one model", "change the first of several models only"),
    (FedFBMean, "that measures no losses at its new model", "lead to another model"),
    (AREA, "whose model is not a mean of stored models", "lead to another model"),
)
"""Aggregators that an optimizer would break: expectation and consequence."""


class OptimizerState(NamedTuple):
    """State of the wrapped aggregator and of the optimizer."""

    aggregator: PyTree
    optimizer: PyTree


class WithServerOptimizer(Aggregator):
    """Applies the update of another aggregator by an optimizer at the server.

    Weights, info, server view and normalization statistics come from the other aggregator. An
    update that is not finite does not change the state of the optimizer, nor does a round without
    response.

    Args:
        inner: The other aggregator.
        optimizer: The optimizer, of `fedjax_fair.server_optimizers`.

    Raises:
        ValueError: If an argument is not of its type, or the aggregator has several models,
            measures losses at its new model, or keeps it equal to a mean of stored models.

    References:
        Reddi et al., *Adaptive Federated Optimization*, 2021, https://arxiv.org/abs/2003.00295

    Examples:
        >>> from fedjax_fair import aggregators, server_optimizers
        >>> fedadam = WithServerOptimizer(
        ...     aggregators.Mean("num_examples"), server_optimizers.FedAdam(learning_rate=0.01)
        ... )
    """

    inner: Aggregator = setting(checks.instance, Aggregator, "aggregators.Mean()")
    optimizer: ServerOptimizer = setting(
        checks.instance, ServerOptimizer, "server_optimizers.FedAdam(0.01)"
    )

    def __post_init__(self):
        for kind, expected, reason in _REFUSED:
            if isinstance(self.inner, kind):
                raise ValueError(
                    f"inner={self.inner!r}: expected an aggregator {expected}; the optimizer would "
                    f"{reason}; use {kind.__name__} alone."
                )

    @property
    def server_view(self):
        return self.inner.server_view

    @property
    def equal_weights(self):
        return self.inner.equal_weights

    @property
    def needs_schedule(self):
        return self.inner.needs_schedule

    @property
    def uses_local_models(self):
        return self.inner.uses_local_models

    @property
    def compute_weights(self):
        return None if self.inner.compute_weights is None else self._inner_weights

    def _inner_weights(self, state, cohort, context):
        assert self.inner.compute_weights is not None
        return self.inner.compute_weights(state.aggregator, cohort, context)

    def check_solver(self, solver):
        self.inner.check_solver(solver)

    def check_buffer(self, size):
        self.inner.check_buffer(size)

    def check_model(self, model):
        self.inner.check_model(model)

    def init(self, context):
        inner = checked_calls.init(self.inner, context)
        return OptimizerState(inner, self.optimizer.init(context.variables.params))

    def broadcast(self, state, context):
        return self.inner.broadcast(state.aggregator, context)

    def prepare(self, state, cohort, context):
        return self.inner.prepare(state.aggregator, cohort, context)

    def aggregate(self, state, cohort, results, context):
        update, inner, aggregation = checked_calls.aggregate(
            self.inner, state.aggregator, cohort, results, context
        )
        params, optimizer = self.optimizer.step(
            update.params, state.optimizer, context.variables.params
        )
        update = Variables(params, update.state)
        optimizer = keep_finite(optimizer, state.optimizer, update)
        return update, OptimizerState(inner, optimizer), aggregation
