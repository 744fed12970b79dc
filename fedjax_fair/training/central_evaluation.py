"""Evaluation of global models on a central test set, whose examples belong to no client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np

from fedjax_fair.data.device_layout import on_device
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.metrics import central_summaries
from fedjax_fair.roles import ClientMetric, Metric, Variables
from fedjax_fair.rounds.round_state import RoundState
from fedjax_fair.training.jitted import make_evaluation
from fedjax_fair.training.stacked import Stacked

__all__ = ["make_central_evaluation"]


def make_central_evaluation(
    method: Stacked, data: FederatedData, custom: Sequence[Metric | ClientMetric]
) -> Callable[[Variables], dict[str, np.ndarray]] | None:
    """Returns a function from variables, leaves ``[runs, ...]``, to summaries ``[runs]``.

    Without a central test set it is None. Methods without a global model have NaN. ``custom`` are
    metrics of the user, of which those of single clients are measured.
    """
    central = data.central_test
    if central is None:
        return None
    # The set is the only client. Its training examples are not measured.
    one = central._replace(**{name: getattr(central, name)[:1] for name in ("features", "labels")})
    one = one._replace(order=one.order[:1], sizes=np.ones_like(one.sizes))
    alone = FederatedData(one, central, None, data.num_classes, "central")
    model, placed = method.field("model"), on_device(alone)
    custom = [metric for metric in custom if isinstance(metric, ClientMetric)]
    evaluate = make_evaluation(model, train_loss=False, custom_metrics=custom)
    metrics = central_summaries(method.first.model.task, custom)

    def measure(variables: Variables) -> dict[str, np.ndarray]:
        num_runs = len(jax.tree.leaves(variables)[0])
        if not method.first.has_global_model:
            return {metric.name: np.full(num_runs, np.nan) for metric in metrics}
        never = np.zeros((num_runs, 1), np.int32)
        runs = (RoundState.of_model(variables, never), never[:, :0]), model.per_run
        _, clients = jax.device_get(evaluate(runs, model.shared, placed))
        values = {metric.name: metric.function(clients) for metric in metrics}
        return jax.device_get(values)

    return measure
