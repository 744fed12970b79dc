"""Registry of the metrics that every evaluation computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.metrics import fairness, groups, performance
from fedjax_fair.metrics.sensitive import PEOPLE, PEOPLE_SUMMARIES, people_summaries
from fedjax_fair.roles import ClientMetrics, Metric
from fedjax_fair.utils.tree import Tree

__all__ = [
    "ALL_SUMMARIES",
    "GROUP_SUMMARIES",
    "OF_TESTS",
    "SEQUENCE_SUMMARIES",
    "SUMMARIES",
    "summaries_of",
]

TESTED = "clients with test examples"
TRAINED = "clients with a measured training loss"
EVERYONE = "all clients"
COHORT = "clients that trained last"
TESTED_TWICE = "clients with two or more test examples"

OF_TESTS = (TESTED, TESTED_TWICE, PEOPLE)
"""Populations of the metrics that depend on test examples alone."""


class FunctionOf(Tree):
    """Function of some fields of `ClientMetrics`.

    Args:
        function: The function.
        names: The fields that are its arguments.
    """

    function: Callable[..., Float[Array, ""]]
    names: tuple[str, ...]

    def __call__(self, metrics: ClientMetrics) -> Float[Array, ""]:
        return self.function(*(getattr(metrics, name) for name in self.names))


_OVER_EXAMPLES = (performance.mean_over_examples, performance.pooled_perplexity)


def _entries(quantity: str, unit: str, population: str, *fields: str) -> Callable[..., Metric]:
    """Returns a constructor of metrics that are functions of fields of `ClientMetrics`."""

    def entry(name: str, summary: str, function: Callable[..., Array]) -> Metric:
        weighting = "examples" if function in _OVER_EXAMPLES else "uniform"
        of_fields = FunctionOf(function, fields)
        is_of_model = population != EVERYONE
        return Metric(name, quantity + summary, unit, population, weighting, of_fields, is_of_model)

    return entry


def _participation_gini(participation: Array, accuracy: Array) -> Array:
    return fairness.gini(participation.astype(accuracy.dtype))


def _num_participated(participation: Array, accuracy: Array) -> Array:
    return jnp.sum(participation > 0).astype(accuracy.dtype)


_accuracy = _entries("Test accuracy, ", "1", TESTED, "test_accuracy")
_of_sizes = _entries("Test accuracy, ", "1", TESTED, "test_accuracy", "test_sizes")
_of_groups = _entries("Test accuracy, ", "1", TESTED, "test_accuracy", "groups")
_entropy = _entries("Test accuracy, ", "nat", TESTED, "test_accuracy")
_pairs = _entries("Client dissimilarity: mean difference ", "1", TESTED, "test_accuracy")
_noise = _entries("Client dissimilarity that ", "1", TESTED_TWICE, "test_accuracy", "test_sizes")
_groups_and_sizes = _entries(
    "Test accuracy of the clients' groups, ", "1", TESTED, "test_accuracy", "test_sizes", "groups"
)
_loss = _entries("Test loss, ", "nat", TESTED, "test_loss")
_loss_of_sizes = _entries("Test loss, ", "nat", TESTED, "test_loss", "test_sizes")
_loss_of_groups = _entries("Test loss, ", "nat", TESTED, "test_loss", "groups")
_perplexity = _entries("Test perplexity, ", "1", TESTED, "test_loss")
_perplexity_of_sizes = _entries("Test perplexity, ", "1", TESTED, "test_loss", "test_sizes")
_training = _entries("Training loss, ", "nat", TRAINED, "train_loss")
_training_of_sizes = _entries("Training loss, ", "nat", TRAINED, "train_loss", "train_sizes")
_cohort = _entries("Client disagreement: ", "nat", COHORT, "test_loss", "cohort")
_times = _entries("Times trained, ", "1", EVERYONE, "participation", "test_accuracy")
_count = _entries("Clients that have ", "clients", EVERYONE, "participation", "test_accuracy")
_mean, _pooled = performance.mean_over_clients, performance.mean_over_examples
_deviation, _difference = fairness.standard_deviation, fairness.client_dissimilarity
_disagreement, _floor = fairness.client_disagreement, fairness.dissimilarity_noise
_distance = "root mean square distance to the pooled value"

SUMMARIES: tuple[Metric, ...] = (
    _accuracy("accuracy_mean_clients", "mean over clients", _mean),
    _of_sizes("accuracy_mean_examples", "pooled examples", _pooled),
    _accuracy("accuracy_minimum", "worst client", performance.minimum),
    _accuracy("accuracy_worst_10pct", "mean of the worst 10% of clients", performance.worst_10pct),
    _accuracy("accuracy_best_10pct", "mean of the best 10% of clients", performance.best_10pct),
    _accuracy("accuracy_standard_deviation", "standard deviation over clients", _deviation),
    _of_sizes("sigma_acc", _distance, fairness.sigma_acc),
    _pairs("client_dissimilarity", "of test accuracy over pairs", _difference),
    _noise("client_dissimilarity_noise", "finite test sets alone would produce", _floor),
    _accuracy("accuracy_gini", "Gini index over clients", fairness.gini),
    _accuracy("accuracy_jain_index", "Jain's index over clients", fairness.jain_index),
    _entropy("accuracy_entropy", "entropy of the clients' shares", fairness.entropy),
    _loss("test_loss_mean_clients", "mean over clients", _mean),
    _loss_of_sizes("test_loss_mean_examples", "pooled examples", _pooled),
    _training("train_loss_mean_clients", "mean over clients", _mean),
    _training_of_sizes("train_loss_mean_examples", "pooled examples", _pooled),
    _cohort("client_disagreement", "mean difference of test loss over pairs", _disagreement),
    _times("participation_gini", "Gini index over clients", _participation_gini),
    _count("num_clients_participated", "trained at least once", _num_participated),
)
"""Metrics of every evaluation. Their functions are pure, hence work inside ``jit``."""

GROUP_SUMMARIES: tuple[Metric, ...] = (
    _of_groups("group_accuracy_minimum", "worst ground-truth group", groups.lowest),
    _of_groups("group_accuracy_gap", "best ground-truth group less worst", groups.gap),
    _groups_and_sizes("group_sigma_acc", _distance, groups.sigma_acc),
    _loss_of_groups("group_loss_gap", "worst ground-truth group less best", groups.gap),
)
"""Metrics of evaluations with ground-truth groups."""


SEQUENCE_SUMMARIES: tuple[Metric, ...] = (
    _perplexity_of_sizes("perplexity_pooled", "pooled labels", performance.pooled_perplexity),
    _perplexity("perplexity_mean_clients", "mean over clients", performance.mean_perplexity),
    _perplexity(
        "perplexity_worst_10pct",
        "mean of the worst 10% of clients",
        performance.worst_10pct_perplexity,
    ),
)
"""Metrics of evaluations on sequences of labels, such as text."""


def _on_validation(metric: Metric) -> Metric:
    """Returns the metric of validation examples that corresponds to one of test examples."""
    function = metric.function
    assert isinstance(function, FunctionOf)
    names = tuple(name.replace("test", "validation") for name in function.names)
    return metric.replace(
        name=f"validation_{metric.name.removeprefix('test_')}",
        description=metric.description.replace("Test", "Validation").replace("test", "validation"),
        population=metric.population.replace("test", "validation"),
        function=function.replace(names=names),
    )


_VALIDATION = tuple(_on_validation(metric) for metric in SUMMARIES if metric.population in OF_TESTS)
_GROUP_VALIDATION = tuple(map(_on_validation, GROUP_SUMMARIES))
_SEQUENCE_VALIDATION = tuple(map(_on_validation, SEQUENCE_SUMMARIES))

ALL_SUMMARIES: tuple[Metric, ...] = (
    *(SUMMARIES + GROUP_SUMMARIES + SEQUENCE_SUMMARIES + PEOPLE_SUMMARIES),
    *(_VALIDATION + _GROUP_VALIDATION + _SEQUENCE_VALIDATION),
)
"""All metrics that an evaluation can have."""


def summaries_of(
    *,
    groups: bool,
    validation: bool,
    sequences: bool = False,
    people_classes: int | None = None,
) -> tuple[Metric, ...]:
    """Selects the metrics that apply to a federated dataset.

    Args:
        groups: Whether it has ground-truth groups.
        validation: Whether it has validation examples. The metrics of test examples are then
            repeated for these: ``test`` in a name becomes ``validation``, and other names are
            prefixed by ``validation_``.
        sequences: Whether examples have sequences of labels.
        people_classes: Number of classes if it has sensitive features, or None.

    Returns:
        The metrics.

    Examples:
        >>> names = [metric.name for metric in summaries_of(groups=False, validation=True)]
        >>> names[-1], "validation_accuracy_mean_clients" in names
        ('validation_loss_mean_examples', True)
    """
    selected = SUMMARIES + (GROUP_SUMMARIES if groups else ())
    selected += SEQUENCE_SUMMARIES if sequences else ()
    selected += () if people_classes is None else people_summaries(people_classes)
    selected += _VALIDATION if validation else ()
    selected += _GROUP_VALIDATION if groups and validation else ()
    return selected + (_SEQUENCE_VALIDATION if sequences and validation else ())


def accuracy_summaries(
    names: Sequence[str],
    accuracy: Float[Array, " clients"],
    sizes: Int[Array, " clients"],
    groups: Int[Array, " clients"] | None = None,
) -> list[Float[Array, ""]]:
    """Computes metrics that depend on accuracies, numbers of test examples and groups alone."""
    zeros, counts = jnp.zeros(sizes.shape), jnp.zeros_like(sizes)
    measured = ClientMetrics(accuracy, zeros, zeros, sizes, sizes, counts, counts[:1], groups)
    functions = {metric.name: metric.function for metric in SUMMARIES + GROUP_SUMMARIES}
    return [functions[name](measured) for name in names]
