"""The metrics that every evaluation of a run computes, as entries that describe themselves."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.base import ClientMetrics, Metric
from fedjax_fair.metrics import fairness, groups, performance

__all__ = ["ALL_SUMMARIES", "GROUP_SUMMARIES", "OF_TESTS", "SUMMARIES", "summaries_of"]

TESTED = "clients with test examples"
TRAINED = "clients with a measured training loss"
EVERYONE = "all clients"
COHORT = "clients that trained last"
TESTED_TWICE = "clients with two or more test examples"

OF_TESTS = (TESTED, TESTED_TWICE)
"""Populations of what test examples alone determine, however the model was trained."""


def _clients_reached(metrics: ClientMetrics) -> Float[Array, ""]:
    return jnp.sum(metrics.participation > 0).astype(metrics.test_accuracy.dtype)


def _participation_gini(metrics: ClientMetrics) -> Float[Array, ""]:
    return fairness.gini(metrics.participation.astype(metrics.test_accuracy.dtype))


SUMMARIES: tuple[Metric, ...] = (
    Metric(
        "accuracy_mean_clients",
        "Test accuracy, mean over clients",
        "1",
        TESTED,
        "uniform",
        lambda m: performance.mean_over_clients(m.test_accuracy),
    ),
    Metric(
        "accuracy_mean_examples",
        "Test accuracy, pooled examples",
        "1",
        TESTED,
        "examples",
        lambda m: performance.mean_over_examples(m.test_accuracy, m.test_sizes),
    ),
    Metric(
        "accuracy_minimum",
        "Test accuracy, worst client",
        "1",
        TESTED,
        "uniform",
        lambda m: performance.minimum(m.test_accuracy),
    ),
    Metric(
        "accuracy_worst_tenth",
        "Test accuracy, mean of the worst 10 % of clients",
        "1",
        TESTED,
        "uniform",
        lambda m: performance.worst_tenth(m.test_accuracy),
    ),
    Metric(
        "accuracy_best_tenth",
        "Test accuracy, mean of the best 10 % of clients",
        "1",
        TESTED,
        "uniform",
        lambda m: performance.best_tenth(m.test_accuracy),
    ),
    Metric(
        "accuracy_standard_deviation",
        "Test accuracy, standard deviation over clients",
        "1",
        TESTED,
        "uniform",
        lambda m: fairness.standard_deviation(m.test_accuracy),
    ),
    Metric(
        "sigma_acc",
        "Test accuracy, root mean square distance to the pooled value",
        "1",
        TESTED,
        "uniform",
        lambda m: fairness.sigma_acc(m.test_accuracy, m.test_sizes),
    ),
    Metric(
        "client_dissimilarity",
        "Client dissimilarity: mean difference of test accuracy over pairs",
        "1",
        TESTED,
        "uniform",
        lambda m: fairness.client_dissimilarity(m.test_accuracy),
    ),
    Metric(
        "client_dissimilarity_noise",
        "Client dissimilarity that finite test sets alone would produce",
        "1",
        TESTED_TWICE,
        "uniform",
        lambda m: fairness.dissimilarity_noise(m.test_accuracy, m.test_sizes),
    ),
    Metric(
        "accuracy_gini",
        "Test accuracy, Gini index over clients",
        "1",
        TESTED,
        "uniform",
        lambda m: fairness.gini(m.test_accuracy),
    ),
    Metric(
        "accuracy_jain_index",
        "Test accuracy, Jain's index over clients",
        "1",
        TESTED,
        "uniform",
        lambda m: fairness.jain_index(m.test_accuracy),
    ),
    Metric(
        "accuracy_entropy",
        "Test accuracy, entropy of the clients' shares",
        "nat",
        TESTED,
        "uniform",
        lambda m: fairness.entropy(m.test_accuracy),
    ),
    Metric(
        "test_loss_mean_clients",
        "Test loss, mean over clients",
        "nat",
        TESTED,
        "uniform",
        lambda m: performance.mean_over_clients(m.test_loss),
    ),
    Metric(
        "test_loss_mean_examples",
        "Test loss, pooled examples",
        "nat",
        TESTED,
        "examples",
        lambda m: performance.mean_over_examples(m.test_loss, m.test_sizes),
    ),
    Metric(
        "train_loss_mean_clients",
        "Training loss, mean over clients",
        "nat",
        TRAINED,
        "uniform",
        lambda m: performance.mean_over_clients(m.train_loss),
    ),
    Metric(
        "train_loss_mean_examples",
        "Training loss, pooled examples",
        "nat",
        TRAINED,
        "examples",
        lambda m: performance.mean_over_examples(m.train_loss, m.train_sizes),
    ),
    Metric(
        "client_disagreement",
        "Client disagreement: mean difference of test loss over pairs",
        "nat",
        COHORT,
        "uniform",
        lambda m: fairness.client_disagreement(m.test_loss, m.cohort),
    ),
    Metric(
        "participation_gini",
        "Rounds trained in, Gini index over clients",
        "1",
        EVERYONE,
        "uniform",
        _participation_gini,
    ),
    Metric(
        "clients_reached",
        "Clients that have trained at least once",
        "clients",
        EVERYONE,
        "uniform",
        _clients_reached,
    ),
)
"""Every entry's function is pure, so that all of them can be evaluated inside ``jit``."""


GROUP_SUMMARIES: tuple[Metric, ...] = (
    Metric(
        "group_accuracy_minimum",
        "Test accuracy, worst planted group",
        "1",
        TESTED,
        "uniform",
        lambda m: groups.lowest(m.test_accuracy, m.groups),
    ),
    Metric(
        "group_accuracy_gap",
        "Test accuracy, best planted group less worst",
        "1",
        TESTED,
        "uniform",
        lambda m: groups.gap(m.test_accuracy, m.groups),
    ),
    Metric(
        "group_sigma_acc",
        "Test accuracy of the clients' groups, root mean square distance to the pooled value",
        "1",
        TESTED,
        "uniform",
        lambda m: groups.sigma_acc(m.test_accuracy, m.test_sizes, m.groups),
    ),
    Metric(
        "group_loss_gap",
        "Test loss, worst planted group less best",
        "nat",
        TESTED,
        "uniform",
        lambda m: groups.gap(m.test_loss, m.groups),
    ),
)
"""What is measured besides where groups are known."""


def _on_validation(metric: Metric) -> Metric:
    """The same of validation examples."""

    def function(metrics: ClientMetrics) -> Float[Array, ""]:
        measured = metrics._replace(
            test_accuracy=metrics.validation_accuracy,
            test_loss=metrics.validation_loss,
            test_sizes=metrics.validation_sizes,
        )
        return metric.function(measured)

    return Metric(
        f"validation_{metric.name.removeprefix('test_')}",
        metric.description.replace("Test", "Validation").replace("test", "validation"),
        metric.unit,
        metric.population.replace("test", "validation"),
        metric.weighting,
        function,
    )


_VALIDATION = tuple(_on_validation(one) for one in SUMMARIES if one.population in OF_TESTS)
_GROUP_VALIDATION = tuple(map(_on_validation, GROUP_SUMMARIES))

ALL_SUMMARIES: tuple[Metric, ...] = SUMMARIES + GROUP_SUMMARIES + _VALIDATION + _GROUP_VALIDATION
"""Whatever a federation may have."""


def summaries_of(*, groups: bool, validation: bool) -> tuple[Metric, ...]:
    """What is measured of a federation.

    Args:
        groups: Whether it has planted groups.
        validation: Whether it has validation examples.

    Returns:
        ``SUMMARIES`` and what comes with groups; both once more for validation examples, where
        ``test`` in a name becomes ``validation`` and others begin with ``validation_``.

    Examples:
        >>> names = [one.name for one in summaries_of(groups=False, validation=True)]
        >>> names[-1], "validation_accuracy_mean_clients" in names
        ('validation_loss_mean_examples', True)
    """
    chosen = SUMMARIES + (GROUP_SUMMARIES if groups else ())
    chosen += _VALIDATION if validation else ()
    return chosen + (_GROUP_VALIDATION if groups and validation else ())
