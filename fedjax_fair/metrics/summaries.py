"""Registry of the metrics that every evaluation computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.metrics import client_groups, fairness, performance, quantities
from fedjax_fair.metrics.quantities import TESTED
from fedjax_fair.metrics.sensitive_group_metrics import (
    PEOPLE,
    PERPLEXITY_PARITY,
    SENSITIVE_GROUP_SUMMARIES,
    sensitive_group_summaries,
)
from fedjax_fair.roles import ClientMetric, ClientMetrics, Metric, Task
from fedjax_fair.utils.tree import Tree

__all__ = [
    "ALL_SUMMARIES",
    "BY_NAME",
    "CENTRAL_SUMMARIES",
    "CLIENT_GROUP_SUMMARIES",
    "COMPARED",
    "OF_TESTS",
    "SEQUENCE_SUMMARIES",
    "SUMMARIES",
    "central_summaries",
    "summaries_of",
]

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

    # Measurements of a central test set are of NumPy, with axes of runs.
    def __call__(self, metrics: ClientMetrics) -> Any:
        return self.function(*(getattr(metrics, name) for name in self.names))


_OVER_EXAMPLES = (performance.mean_over_examples, performance.pooled_perplexity)


def _entries(quantity: str, unit: str, population: str, *fields: str) -> Callable[..., Metric]:
    """Returns a constructor of metrics that are functions of fields of `ClientMetrics`."""

    def entry(
        name: str,
        summary: str,
        function: Callable[..., Array],
        formula: str,
        range: str = "0 to 1",
        better: Literal["higher", "lower"] | None = "higher",
        **about: Any,
    ) -> Metric:
        return Metric(
            name,
            quantity + summary,
            unit,
            population,
            "examples" if function in _OVER_EXAMPLES else "uniform",
            FunctionOf(function, fields),
            is_of_model=population != EVERYONE,
            better=better,
            formula=formula,
            range=range,
            **about,
        )

    return entry


def _participation_gini(participation: Array, accuracy: Array) -> Array:
    return fairness.gini(participation.astype(accuracy.dtype))


def _num_participated(participation: Array, accuracy: Array) -> Array:
    return jnp.sum(participation > 0).astype(accuracy.dtype)


def _deviation_of_perplexity(losses: Array) -> Array:
    return fairness.standard_deviation(jnp.exp(losses))


def _dissimilarity_of_perplexity(losses: Array) -> Array:
    return fairness.client_dissimilarity(jnp.exp(losses))


_accuracy = partial(_entries("Test accuracy, ", "1", TESTED, "test_accuracy"), has_noise_floor=True)
_pooled = _entries("Test accuracy, ", "1", TESTED, "test_accuracy", "test_sizes")
_pairs = _entries("Client dissimilarity: mean difference ", "1", TESTED, "test_accuracy")
_noise = _entries("Client dissimilarity that ", "1", TESTED_TWICE, "test_accuracy", "test_sizes")
_entropy = _entries("Test accuracy, ", "nat", TESTED, "test_accuracy")
_loss = _entries("Test loss, ", "nat", TESTED, "test_loss")
_pooled_loss = _entries("Test loss, ", "nat", TESTED, "test_loss", "test_sizes")
_training = _entries("Training loss, ", "nat", TRAINED, "train_loss")
_pooled_training = _entries("Training loss, ", "nat", TRAINED, "train_loss", "train_sizes")
_cohort = _entries("Client disagreement: ", "nat", COHORT, "test_loss", "cohort")
_times = _entries("Times trained, ", "1", EVERYONE, "participation", "test_accuracy")
_number = _entries("Clients that have ", "clients", EVERYONE, "participation", "test_accuracy")
_of_groups = _entries("Test accuracy, ", "1", TESTED, "test_accuracy", "groups")
_groups_and_sizes = _entries(
    "Test accuracy of the clients' groups, ", "1", TESTED, "test_accuracy", "test_sizes", "groups"
)
_loss_of_groups = _entries("Test loss, ", "nat", TESTED, "test_loss", "groups")
_perplexity = _entries("Test perplexity, ", "1", TESTED, "test_loss")
_pooled_perplexity = _entries("Test perplexity, ", "1", TESTED, "test_loss", "test_sizes")
_distance = "root mean square distance to the pooled value"
_FAIR_ALLOCATION = "Li et al., 2020, https://arxiv.org/abs/1905.10497"
_EQUITABLE = "Equitable Federated Learning with Activation Clustering"
_UNIFORM_GINI = "0 to 1 - 1 / m"

# Name, summary, function, formula, range and direction.
SUMMARIES: tuple[Metric, ...] = (
    _accuracy(
        "accuracy_mean_clients", "mean over clients", performance.mean_over_clients,
        "sum_i a_i / m", heading="accuracy", has_noise_floor=False,
    ),
    _pooled(
        "accuracy_mean_examples", "pooled examples", performance.mean_over_examples,
        "p = sum_i n_i a_i / sum_i n_i",
    ),
    _accuracy("accuracy_minimum", "worst client", performance.minimum, "min_i a_i"),
    _accuracy(
        "accuracy_worst_10pct", "mean of the worst 10% of clients", performance.worst_10pct,
        "mean of the ceil(m / 10) smallest a_i", source=_FAIR_ALLOCATION, heading="worst 10%",
    ),
    _accuracy(
        "accuracy_best_10pct", "mean of the best 10% of clients", performance.best_10pct,
        "mean of the ceil(m / 10) largest a_i",
    ),
    _accuracy(
        "accuracy_standard_deviation", "standard deviation over clients",
        fairness.standard_deviation,
        "sqrt(sum_i (a_i - mean)^2 / m)", "0 to 0.5", "lower", heading="dispersion",
    ),
    _pooled(
        "sigma_acc", _distance, fairness.sigma_acc,
        "sqrt(sum_i (a_i - p)^2 / m)", "0 to 1", "lower", source=_EQUITABLE, has_noise_floor=True,
    ),
    _pairs(
        "client_dissimilarity", "of test accuracy over pairs", fairness.client_dissimilarity,
        "mean of abs(a_i - a_j) over pairs i < j", "0 to 1", "lower",
        source=(
            "Submodular Maximization Approaches for Equitable Client Selection in Federated "
            "Learning"
        ),
        heading="dissimilarity", has_noise_floor=True,
    ),
    _noise(
        "client_dissimilarity_noise", "finite test sets alone would produce",
        fairness.dissimilarity_noise,
        "2 sqrt(mean_i(a_i (1 - a_i) / (n_i - 1)) / pi)", ">= 0", None,
    ),
    _accuracy(
        "accuracy_gini", "Gini index over clients", fairness.gini,
        "sum_i sum_j abs(a_i - a_j) / (2 m sum_i a_i)", _UNIFORM_GINI, "lower",
    ),
    _accuracy(
        "accuracy_jain_index", "Jain's index over clients", fairness.jain_index,
        "(sum_i a_i)^2 / (m sum_i a_i^2)", "1 / m to 1",
        source="Jain et al., 1984, https://arxiv.org/abs/cs/9809099",
    ),
    _entropy(
        "accuracy_entropy", "entropy of the clients' shares", fairness.entropy,
        "-sum_i s_i log(s_i) with s_i = a_i / sum_j a_j", "0 to log(m)", source=_FAIR_ALLOCATION,
        has_noise_floor=True,
    ),
    _loss(
        "test_loss_mean_clients", "mean over clients", performance.mean_over_clients,
        "sum_i l_i / m", ">= 0", "lower",
    ),
    _pooled_loss(
        "test_loss_mean_examples", "pooled examples", performance.mean_over_examples,
        "sum_i n_i l_i / sum_i n_i", ">= 0", "lower",
    ),
    _training(
        "train_loss_mean_clients", "mean over clients", performance.mean_over_clients,
        "sum_i t_i / m", ">= 0", "lower",
    ),
    _pooled_training(
        "train_loss_mean_examples", "pooled examples", performance.mean_over_examples,
        "sum_i k_i t_i / sum_i k_i", ">= 0", "lower",
    ),
    _cohort(
        "client_disagreement", "mean difference of test loss over pairs",
        fairness.client_disagreement,
        "mean of abs(l_i - l_j) over pairs of participants", ">= 0", "lower", source=_EQUITABLE,
    ),
    _times(
        "participation_gini", "Gini index over clients", _participation_gini,
        "sum_i sum_j abs(r_i - r_j) / (2 m sum_i r_i)", _UNIFORM_GINI, "lower",
    ),
    _number(
        "num_clients_participated", "trained at least once", _num_participated,
        "number of clients with r_i > 0", "0 to m",
    ),
)  # fmt: skip
"""Metrics of every evaluation. Their functions are pure, hence work inside ``jit``."""

CLIENT_GROUP_SUMMARIES: tuple[Metric, ...] = (
    _of_groups(
        "group_accuracy_minimum", "worst ground-truth group", client_groups.lowest,
        "min_g A_g", has_noise_floor=True,
    ),
    _of_groups(
        "group_accuracy_gap", "best ground-truth group less worst", client_groups.gap,
        "max_g A_g - min_g A_g", "0 to 1", "lower", heading="gap of groups", has_noise_floor=True,
    ),
    _groups_and_sizes(
        "group_sigma_acc", _distance, client_groups.sigma_acc,
        "sqrt(sum_i (A_g(i) - p)^2 / m) with g(i) the group of i", "0 to 1", "lower",
        source=_EQUITABLE, has_noise_floor=True,
    ),
    _loss_of_groups(
        "group_loss_gap", "worst ground-truth group less best", client_groups.gap,
        "max_g L_g - min_g L_g", ">= 0", "lower",
    ),
)  # fmt: skip
"""Metrics of evaluations with ground-truth groups of clients."""

SEQUENCE_SUMMARIES: tuple[Metric, ...] = (
    _pooled_perplexity(
        "perplexity_pooled", "pooled labels", performance.pooled_perplexity,
        "exp(sum_i n_i l_i / sum_i n_i)", ">= 1", "lower", heading="pooled",
    ),
    _perplexity(
        "perplexity_mean_clients", "mean over clients", performance.mean_perplexity,
        "sum_i exp(l_i) / m", ">= 1", "lower", heading="mean of clients",
    ),
    _perplexity(
        "perplexity_worst_10pct", "mean of the worst 10% of clients",
        performance.worst_10pct_perplexity,
        "mean of the ceil(m / 10) largest exp(l_i)", ">= 1", "lower", heading="worst 10%",
    ),
    _perplexity(
        "perplexity_standard_deviation", "standard deviation over clients",
        _deviation_of_perplexity,
        "sqrt(sum_i (exp(l_i) - mean)^2 / m)", ">= 0", "lower",
    ),
    _perplexity(
        "perplexity_dissimilarity", "mean difference over pairs of clients",
        _dissimilarity_of_perplexity,
        "mean of abs(exp(l_i) - exp(l_j)) over pairs i < j", ">= 0", "lower",
    ),
)  # fmt: skip
"""Metrics of evaluations on sequences of labels, such as text."""


def _of_only_client(values: Any) -> Any:
    return values[..., 0]  # Of JAX in a trace, of NumPy on the host.


CENTRAL_SUMMARIES: tuple[Metric, ...] = (
    Metric(
        "central_accuracy", "Accuracy on the central test set", "1", "central test set", "examples",
        FunctionOf(_of_only_client, ("test_accuracy",)), is_of_model=False, better="higher",
        formula="share of its examples predicted correctly", range="0 to 1",
        heading="central test",
    ),
    Metric(
        "central_loss", "Loss on the central test set", "nat", "central test set", "examples",
        FunctionOf(_of_only_client, ("test_loss",)), is_of_model=False, better="lower",
        formula="mean over its examples", range=">= 0",
    ),
)  # fmt: skip
"""Metrics of global models on a central test set, whose examples are those of one client."""


def central_summaries(
    task: Task, custom: Sequence[Metric | ClientMetric] = ()
) -> tuple[Metric, ...]:
    """Returns the metrics of a central test set, those of the quantities of a task first.

    Examples:
        >>> [metric.name for metric in central_summaries("multi_label")]
        ['central_label_f1', 'central_label_accuracy', 'central_accuracy', 'central_loss']
    """
    found = tuple(
        Metric(
            f"central_{each.name}",
            f"{each.description}, central test set",
            each.unit,
            "central test set",
            "examples",
            quantities.OfClients(_of_only_client, f"test_{each.name}"),
            is_of_model=False,
            better=each.better,
        )
        for each in quantities.client_metrics(task, custom)
    )
    return found + (CENTRAL_SUMMARIES if task != "regression" else CENTRAL_SUMMARIES[1:])


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
_GROUP_VALIDATION = tuple(map(_on_validation, CLIENT_GROUP_SUMMARIES))
_SEQUENCE_VALIDATION = tuple(map(_on_validation, SEQUENCE_SUMMARIES))

ALL_SUMMARIES: tuple[Metric, ...] = (
    *(SUMMARIES + CLIENT_GROUP_SUMMARIES + SEQUENCE_SUMMARIES + SENSITIVE_GROUP_SUMMARIES),
    PERPLEXITY_PARITY,
    *(_VALIDATION + _GROUP_VALIDATION + _SEQUENCE_VALIDATION + CENTRAL_SUMMARIES),
)
"""All metrics that an evaluation can have."""

BY_NAME = {metric.name: metric for metric in ALL_SUMMARIES}
"""`ALL_SUMMARIES` by name."""

COMPARED = (
    "accuracy_mean_clients", "accuracy_worst_10pct", "client_dissimilarity", "group_accuracy_gap",
)  # fmt: skip
"""Names of the metrics that tables compare methods by, where results have them."""


def summaries_of(
    *,
    client_groups: bool,
    validation: bool,
    sequences: bool = False,
    sensitive_classes: int | None = None,
    task: Task = "classification",
    custom: Sequence[Metric | ClientMetric] = (),
) -> tuple[Metric, ...]:
    """Selects the metrics that apply to a federated dataset and a task.

    Args:
        client_groups: Whether it has ground-truth groups of clients.
        validation: Whether it has validation examples. The metrics of test examples are then
            repeated for these: ``test`` in a name becomes ``validation``, and other names are
            prefixed by ``validation_``.
        sequences: Whether examples have sequences of labels.
        sensitive_classes: Number of classes if it has sensitive features, or None.
        task: What the model predicts. A regression has metrics of errors instead of accuracies.
        custom: Metrics of the user; a `ClientMetric` has those of `quantities.summaries`.

    Returns:
        The metrics.

    Examples:
        >>> names = [metric.name for metric in summaries_of(client_groups=False, validation=True)]
        >>> names[-1], "validation_accuracy_mean_clients" in names
        ('validation_loss_mean_examples', True)
    """
    selected = SUMMARIES + (CLIENT_GROUP_SUMMARIES if client_groups else ())
    selected += SEQUENCE_SUMMARIES if sequences else ()
    is_sensitive = sensitive_classes is not None
    if sensitive_classes is not None:
        # Several labels or targets are no classes.
        are_classes = task == "classification" and not sequences
        of_groups = sensitive_group_summaries(sensitive_classes if are_classes else 0)
        if task == "regression":
            of_groups = tuple(each for each in of_groups if "accuracy" not in each.name)
        selected += (*of_groups, *([PERPLEXITY_PARITY] if sequences else ()))
    selected += _VALIDATION if validation else ()
    selected += _GROUP_VALIDATION if client_groups and validation else ()
    selected += _SEQUENCE_VALIDATION if sequences and validation else ()
    if task == "regression":
        selected = tuple(metric for metric in selected if not _is_of_accuracy(metric))
    names = {metric.name for metric in selected}
    for metric in quantities.client_metrics(task, custom):
        of_quantity = quantities.summaries(
            metric, client_groups=client_groups, validation=validation, sensitive=is_sensitive
        )
        # The perplexity of sequences is known from losses.
        selected += tuple(each for each in of_quantity if each.name not in names)
    return selected + tuple(metric for metric in custom if isinstance(metric, Metric))


def _is_of_accuracy(metric: Metric) -> bool:
    function = metric.function
    return isinstance(function, FunctionOf) and function.names[0].endswith("_accuracy")


def accuracy_summaries(
    names: Sequence[str],
    accuracy: Float[Array, " clients"],
    sizes: Int[Array, " clients"],
    groups: Int[Array, " clients"] | None = None,
) -> list[Float[Array, ""]]:
    """Computes metrics that depend on accuracies, numbers of test examples and groups alone."""
    zeros, counts = jnp.zeros(sizes.shape), jnp.zeros_like(sizes)
    measured = ClientMetrics(accuracy, zeros, zeros, sizes, sizes, counts, counts[:1], groups)
    functions = {metric.name: metric.function for metric in SUMMARIES + CLIENT_GROUP_SUMMARIES}
    return [functions[name](measured) for name in names]
