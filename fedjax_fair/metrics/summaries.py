"""Registry of the metrics that every evaluation computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.metrics import client_groups, fairness, performance, quantities
from fedjax_fair.metrics.quantities import TESTED, FunctionOf
from fedjax_fair.metrics.sensitive_group_metrics import (
    PEOPLE,
    PERPLEXITY_PARITY,
    SENSITIVE_GROUP_SUMMARIES,
    sensitive_group_summaries,
)
from fedjax_fair.roles import ClientMetric, ClientMetrics, Metric, Task

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


_OF_FIELD = {
    "test_accuracy": ("1", TESTED),
    "test_loss": ("nat", TESTED),
    "train_loss": ("nat", TRAINED),
    "participation": ("1", EVERYONE),
}
"""Unit and population of a metric by the first field that it reads."""
_OVER_EXAMPLES = (performance.mean_over_examples, performance.pooled_perplexity)


def _summary(
    name: str,
    description: str,
    fields: tuple[str, ...],
    function: Callable[..., Array],
    formula: str,
    range: str = "0 to 1",
    better: Literal["higher", "lower"] | None = "higher",
    **about: Any,
) -> Metric:
    """Returns a metric that is a function of fields of `ClientMetrics`."""
    unit, population = _OF_FIELD[fields[0]]
    weighting = "examples" if function in _OVER_EXAMPLES else "uniform"
    metric = Metric(name, description, unit, population, weighting, FunctionOf(function, fields))
    about = {"better": better, "formula": formula, "range": range} | about
    return metric.replace(is_of_model=population != EVERYONE, **about)


def _participation_gini(participation: Array, accuracy: Array) -> Array:
    return fairness.gini(participation.astype(accuracy.dtype))


def _num_participated(participation: Array, accuracy: Array) -> Array:
    return jnp.sum(participation > 0).astype(accuracy.dtype)


def _deviation_of_perplexity(losses: Array) -> Array:
    return fairness.standard_deviation(jnp.exp(losses))


def _dissimilarity_of_perplexity(losses: Array) -> Array:
    return fairness.client_dissimilarity(jnp.exp(losses))


_ACCURACY, _POOLED_ACCURACY = ("test_accuracy",), ("test_accuracy", "test_sizes")
_LOSS, _POOLED_LOSS = ("test_loss",), ("test_loss", "test_sizes")
_PARTICIPATION = ("participation", "test_accuracy")
_SUBMODULAR = (
    "Submodular Maximization Approaches for Equitable Client Selection in Federated Learning"
)
_FAIR_ALLOCATION = "Li et al., 2020, https://arxiv.org/abs/1905.10497"
_EQUITABLE = "Equitable Federated Learning with Activation Clustering"
_UNIFORM_GINI = "0 to 1 - 1 / m"

# Name, description, fields, function, formula, range and direction.
SUMMARIES: tuple[Metric, ...] = (
    _summary(
        "accuracy_mean_clients", "Test accuracy, mean over clients",
        _ACCURACY, performance.mean_over_clients, "sum_i a_i / m", heading="accuracy",
    ),
    _summary(
        "accuracy_mean_examples", "Test accuracy, pooled examples",
        _POOLED_ACCURACY, performance.mean_over_examples, "p = sum_i n_i a_i / sum_i n_i",
    ),
    _summary(
        "accuracy_minimum", "Test accuracy, worst client",
        _ACCURACY, performance.minimum, "min_i a_i", has_noise_floor=True,
    ),
    _summary(
        "accuracy_worst_10pct", "Test accuracy, mean of the worst 10% of clients",
        _ACCURACY, performance.worst_10pct, "mean of the ceil(m / 10) smallest a_i",
        source=_FAIR_ALLOCATION, heading="worst 10%", has_noise_floor=True,
    ),
    _summary(
        "accuracy_best_10pct", "Test accuracy, mean of the best 10% of clients",
        _ACCURACY, performance.best_10pct, "mean of the ceil(m / 10) largest a_i",
        has_noise_floor=True,
    ),
    _summary(
        "accuracy_standard_deviation", "Test accuracy, standard deviation over clients",
        _ACCURACY, fairness.standard_deviation, "sqrt(sum_i (a_i - mean)^2 / m)", "0 to 0.5",
        "lower", heading="dispersion", has_noise_floor=True,
    ),
    _summary(
        "sigma_acc", "Test accuracy, root mean square distance to the pooled value",
        _POOLED_ACCURACY, fairness.sigma_acc, "sqrt(sum_i (a_i - p)^2 / m)", "0 to 1", "lower",
        source=_EQUITABLE, has_noise_floor=True,
    ),
    _summary(
        "client_dissimilarity", "Client dissimilarity: mean difference of test accuracy over pairs",
        _ACCURACY, fairness.client_dissimilarity, "mean of abs(a_i - a_j) over pairs i < j",
        "0 to 1", "lower", source=_SUBMODULAR, heading="dissimilarity", has_noise_floor=True,
    ),
    _summary(
        "client_dissimilarity_noise",
        "Client dissimilarity that finite test sets alone would produce",
        _POOLED_ACCURACY, fairness.dissimilarity_noise,
        "2 sqrt(mean_i(a_i (1 - a_i) / (n_i - 1)) / pi)", ">= 0", None, population=TESTED_TWICE,
    ),
    _summary(
        "accuracy_gini", "Test accuracy, Gini index over clients",
        _ACCURACY, fairness.gini, "sum_i sum_j abs(a_i - a_j) / (2 m sum_i a_i)", _UNIFORM_GINI,
        "lower", has_noise_floor=True,
    ),
    _summary(
        "accuracy_jain_index", "Test accuracy, Jain's index over clients",
        _ACCURACY, fairness.jain_index, "(sum_i a_i)^2 / (m sum_i a_i^2)", "1 / m to 1",
        source="Jain et al., 1984, https://arxiv.org/abs/cs/9809099", has_noise_floor=True,
    ),
    _summary(
        "accuracy_entropy", "Test accuracy, entropy of the clients' shares",
        _ACCURACY, fairness.entropy, "-sum_i s_i log(s_i) with s_i = a_i / sum_j a_j",
        "0 to log(m)", source=_FAIR_ALLOCATION, has_noise_floor=True, unit="nat",
    ),
    _summary(
        "test_loss_mean_clients", "Test loss, mean over clients",
        _LOSS, performance.mean_over_clients, "sum_i l_i / m", ">= 0", "lower",
    ),
    _summary(
        "test_loss_mean_examples", "Test loss, pooled examples",
        _POOLED_LOSS, performance.mean_over_examples, "sum_i n_i l_i / sum_i n_i", ">= 0", "lower",
    ),
    _summary(
        "train_loss_mean_clients", "Training loss, mean over clients",
        ("train_loss",), performance.mean_over_clients, "sum_i t_i / m", ">= 0", "lower",
    ),
    _summary(
        "train_loss_mean_examples", "Training loss, pooled examples",
        ("train_loss", "train_sizes"), performance.mean_over_examples, "sum_i k_i t_i / sum_i k_i",
        ">= 0", "lower",
    ),
    _summary(
        "client_disagreement", "Client disagreement: mean difference of test loss over pairs",
        ("test_loss", "cohort"), fairness.client_disagreement,
        "mean of abs(l_i - l_j) over pairs of participants", ">= 0", "lower", source=_EQUITABLE,
        population=COHORT,
    ),
    _summary(
        "participation_gini", "Times trained, Gini index over clients",
        _PARTICIPATION, _participation_gini, "sum_i sum_j abs(r_i - r_j) / (2 m sum_i r_i)",
        _UNIFORM_GINI, "lower",
    ),
    _summary(
        "num_clients_participated", "Clients that have trained at least once",
        _PARTICIPATION, _num_participated, "number of clients with r_i > 0", "0 to m",
        unit="clients",
    ),
)  # fmt: skip
"""Metrics of every evaluation. Their functions are pure, hence work inside ``jit``."""

CLIENT_GROUP_SUMMARIES: tuple[Metric, ...] = (
    _summary(
        "group_accuracy_minimum", "Test accuracy, worst ground-truth group",
        ("test_accuracy", "groups"), client_groups.lowest, "min_g A_g", has_noise_floor=True,
    ),
    _summary(
        "group_accuracy_gap", "Test accuracy, best ground-truth group less worst",
        ("test_accuracy", "groups"), client_groups.gap, "max_g A_g - min_g A_g", "0 to 1", "lower",
        heading="gap of groups", has_noise_floor=True,
    ),
    _summary(
        "group_sigma_acc",
        "Test accuracy of the clients' groups, root mean square distance to the pooled value",
        ("test_accuracy", "test_sizes", "groups"), client_groups.sigma_acc,
        "sqrt(sum_i (A_g(i) - p)^2 / m) with g(i) the group of i", "0 to 1", "lower",
        source=_EQUITABLE, has_noise_floor=True,
    ),
    _summary(
        "group_loss_gap", "Test loss, worst ground-truth group less best",
        ("test_loss", "groups"), client_groups.gap, "max_g L_g - min_g L_g", ">= 0", "lower",
    ),
)  # fmt: skip
"""Metrics of evaluations with ground-truth groups of clients."""

SEQUENCE_SUMMARIES: tuple[Metric, ...] = (
    _summary(
        "perplexity_pooled", "Test perplexity, pooled labels",
        _POOLED_LOSS, performance.pooled_perplexity, "exp(sum_i n_i l_i / sum_i n_i)", ">= 1",
        "lower", heading="pooled", unit="1",
    ),
    _summary(
        "perplexity_mean_clients", "Test perplexity, mean over clients",
        _LOSS, performance.mean_perplexity, "sum_i exp(l_i) / m", ">= 1", "lower",
        heading="mean of clients", unit="1",
    ),
    _summary(
        "perplexity_worst_10pct", "Test perplexity, mean of the worst 10% of clients",
        _LOSS, performance.worst_10pct_perplexity, "mean of the ceil(m / 10) largest exp(l_i)",
        ">= 1", "lower", heading="worst 10%", unit="1",
    ),
    _summary(
        "perplexity_standard_deviation", "Test perplexity, standard deviation over clients",
        _LOSS, _deviation_of_perplexity, "sqrt(sum_i (exp(l_i) - mean)^2 / m)", ">= 0", "lower",
        unit="1",
    ),
    _summary(
        "perplexity_dissimilarity", "Test perplexity, mean difference over pairs of clients",
        _LOSS, _dissimilarity_of_perplexity, "mean of abs(exp(l_i) - exp(l_j)) over pairs i < j",
        ">= 0", "lower", unit="1",
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
            FunctionOf(_of_only_client, (("custom", f"test_{each.name}"),)),
            is_of_model=False,
            better=each.better,
        )
        for each in quantities.client_metrics(task, custom)
    )
    return found + (CENTRAL_SUMMARIES if task != "regression" else CENTRAL_SUMMARIES[1:])


def _on_validation(metrics: Sequence[Metric]) -> Iterator[Metric]:
    """Returns the metrics of validation examples that correspond to those of test examples.

    Metrics of sensitive groups have none.
    """
    for metric in metrics:
        function = metric.function
        if metric.population in OF_TESTS and isinstance(function, FunctionOf):
            names = tuple(str(name).replace("test", "validation") for name in function.names)
            description = metric.description.replace("Test", "Validation")
            yield metric.replace(
                name=f"validation_{metric.name.removeprefix('test_')}",
                description=description.replace("test", "validation"),
                population=metric.population.replace("test", "validation"),
                function=function.replace(names=names),
            )


_OF_EXAMPLES = SUMMARIES + CLIENT_GROUP_SUMMARIES + SEQUENCE_SUMMARIES

ALL_SUMMARIES: tuple[Metric, ...] = (
    *(*_OF_EXAMPLES, *SENSITIVE_GROUP_SUMMARIES, PERPLEXITY_PARITY),
    *(*_on_validation(_OF_EXAMPLES), *CENTRAL_SUMMARIES),
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
    if task == "regression":
        selected = tuple(metric for metric in selected if not _is_of_accuracy(metric))
    if sensitive_classes is not None:
        # Several labels or targets are no classes.
        are_classes = task == "classification" and not sequences
        of_groups = sensitive_group_summaries(sensitive_classes if are_classes else 0)
        if task == "regression":
            of_groups = tuple(each for each in of_groups if "accuracy" not in each.name)
        selected += (*of_groups, *([PERPLEXITY_PARITY] if sequences else ()))
    selected += tuple(_on_validation(selected)) if validation else ()
    names = {metric.name for metric in selected}
    is_sensitive = sensitive_classes is not None
    for metric in quantities.client_metrics(task, custom):
        of_quantity = quantities.summaries(
            metric, client_groups=client_groups, validation=validation, sensitive=is_sensitive
        )
        # The perplexity of sequences is known from losses.
        selected += tuple(each for each in of_quantity if each.name not in names)
    return selected + tuple(metric for metric in custom if isinstance(metric, Metric))


def _is_of_accuracy(metric: Metric) -> bool:
    return isinstance(metric.function, FunctionOf) and metric.function.names[0] == "test_accuracy"


def accuracy_summaries(
    names: Sequence[str],
    accuracy: Float[Array, " clients"],
    sizes: Int[Array, " clients"],
    groups: Int[Array, " clients"] | None = None,
) -> list[Float[Array, ""]]:
    """Computes metrics that depend on accuracies, numbers of test examples and groups alone."""
    zeros, counts = jnp.zeros(sizes.shape), jnp.zeros_like(sizes)
    measured = ClientMetrics(accuracy, zeros, zeros, sizes, sizes, counts, counts[:1], groups)
    return [BY_NAME[name].function(measured) for name in names]
