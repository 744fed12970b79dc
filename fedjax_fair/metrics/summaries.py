"""The metrics that every evaluation of a run computes, as entries that describe themselves."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.base import ClientMetrics, Metric
from fedjax_fair.metrics import fairness, groups, performance
from fedjax_fair.tree import Tree

__all__ = ["ALL_SUMMARIES", "GROUP_SUMMARIES", "OF_TESTS", "SUMMARIES", "summaries_of"]

TESTED = "clients with test examples"
TRAINED = "clients with a measured training loss"
EVERYONE = "all clients"
COHORT = "clients that trained last"
TESTED_TWICE = "clients with two or more test examples"

OF_TESTS = (TESTED, TESTED_TWICE)
"""Populations of what test examples alone determine, however the model was trained."""


class FunctionOf(Tree):
    """A function of some of what is measured.

    Args:
        function: The function.
        names: Its arguments, by their names in ``ClientMetrics``.
    """

    function: Callable[..., Float[Array, ""]]
    names: tuple[str, ...]

    def __call__(self, metrics: ClientMetrics) -> Float[Array, ""]:
        return self.function(*(getattr(metrics, name) for name in self.names))


def _num_clients_participated(metrics: ClientMetrics) -> Float[Array, ""]:
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
        FunctionOf(performance.mean_over_clients, ("test_accuracy",)),
    ),
    Metric(
        "accuracy_mean_examples",
        "Test accuracy, pooled examples",
        "1",
        TESTED,
        "examples",
        FunctionOf(performance.mean_over_examples, ("test_accuracy", "test_sizes")),
    ),
    Metric(
        "accuracy_minimum",
        "Test accuracy, worst client",
        "1",
        TESTED,
        "uniform",
        FunctionOf(performance.minimum, ("test_accuracy",)),
    ),
    Metric(
        "accuracy_worst_10pct",
        "Test accuracy, mean of the worst 10 % of clients",
        "1",
        TESTED,
        "uniform",
        FunctionOf(performance.worst_10pct, ("test_accuracy",)),
    ),
    Metric(
        "accuracy_best_10pct",
        "Test accuracy, mean of the best 10 % of clients",
        "1",
        TESTED,
        "uniform",
        FunctionOf(performance.best_10pct, ("test_accuracy",)),
    ),
    Metric(
        "accuracy_standard_deviation",
        "Test accuracy, standard deviation over clients",
        "1",
        TESTED,
        "uniform",
        FunctionOf(fairness.standard_deviation, ("test_accuracy",)),
    ),
    Metric(
        "sigma_acc",
        "Test accuracy, root mean square distance to the pooled value",
        "1",
        TESTED,
        "uniform",
        FunctionOf(fairness.sigma_acc, ("test_accuracy", "test_sizes")),
    ),
    Metric(
        "client_dissimilarity",
        "Client dissimilarity: mean difference of test accuracy over pairs",
        "1",
        TESTED,
        "uniform",
        FunctionOf(fairness.client_dissimilarity, ("test_accuracy",)),
    ),
    Metric(
        "client_dissimilarity_noise",
        "Client dissimilarity that finite test sets alone would produce",
        "1",
        TESTED_TWICE,
        "uniform",
        FunctionOf(fairness.dissimilarity_noise, ("test_accuracy", "test_sizes")),
    ),
    Metric(
        "accuracy_gini",
        "Test accuracy, Gini index over clients",
        "1",
        TESTED,
        "uniform",
        FunctionOf(fairness.gini, ("test_accuracy",)),
    ),
    Metric(
        "accuracy_jain_index",
        "Test accuracy, Jain's index over clients",
        "1",
        TESTED,
        "uniform",
        FunctionOf(fairness.jain_index, ("test_accuracy",)),
    ),
    Metric(
        "accuracy_entropy",
        "Test accuracy, entropy of the clients' shares",
        "nat",
        TESTED,
        "uniform",
        FunctionOf(fairness.entropy, ("test_accuracy",)),
    ),
    Metric(
        "test_loss_mean_clients",
        "Test loss, mean over clients",
        "nat",
        TESTED,
        "uniform",
        FunctionOf(performance.mean_over_clients, ("test_loss",)),
    ),
    Metric(
        "test_loss_mean_examples",
        "Test loss, pooled examples",
        "nat",
        TESTED,
        "examples",
        FunctionOf(performance.mean_over_examples, ("test_loss", "test_sizes")),
    ),
    Metric(
        "train_loss_mean_clients",
        "Training loss, mean over clients",
        "nat",
        TRAINED,
        "uniform",
        FunctionOf(performance.mean_over_clients, ("train_loss",)),
    ),
    Metric(
        "train_loss_mean_examples",
        "Training loss, pooled examples",
        "nat",
        TRAINED,
        "examples",
        FunctionOf(performance.mean_over_examples, ("train_loss", "train_sizes")),
    ),
    Metric(
        "client_disagreement",
        "Client disagreement: mean difference of test loss over pairs",
        "nat",
        COHORT,
        "uniform",
        FunctionOf(fairness.client_disagreement, ("test_loss", "cohort")),
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
        "num_clients_participated",
        "Clients that have trained at least once",
        "clients",
        EVERYONE,
        "uniform",
        _num_clients_participated,
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
        FunctionOf(groups.lowest, ("test_accuracy", "groups")),
    ),
    Metric(
        "group_accuracy_gap",
        "Test accuracy, best planted group less worst",
        "1",
        TESTED,
        "uniform",
        FunctionOf(groups.gap, ("test_accuracy", "groups")),
    ),
    Metric(
        "group_sigma_acc",
        "Test accuracy of the clients' groups, root mean square distance to the pooled value",
        "1",
        TESTED,
        "uniform",
        FunctionOf(groups.sigma_acc, ("test_accuracy", "test_sizes", "groups")),
    ),
    Metric(
        "group_loss_gap",
        "Test loss, worst planted group less best",
        "nat",
        TESTED,
        "uniform",
        FunctionOf(groups.gap, ("test_loss", "groups")),
    ),
)
"""What is measured besides where groups are known."""


def _on_validation(metric: Metric) -> Metric:
    """The same of validation examples."""
    function = metric.function
    assert isinstance(function, FunctionOf)
    names = tuple(name.replace("test", "validation") for name in function.names)
    return Metric(
        f"validation_{metric.name.removeprefix('test_')}",
        metric.description.replace("Test", "Validation").replace("test", "validation"),
        metric.unit,
        metric.population.replace("test", "validation"),
        metric.weighting,
        function.replace(names=names),
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
