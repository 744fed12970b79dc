"""Quantities that clients are measured by, such as the accuracy, and the metrics of each.

The task of a model determines the quantities: accuracy of classes; errors and R^2 of a regression;
F1 and accuracy of several labels; perplexity of sequences. `ClientMetric` of the user come first.
Each has the same metrics: level, worst tail and spread over clients, value on pooled examples, and
gaps between groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_fair.metrics import client_groups, fairness, performance, predictions
from fedjax_fair.metrics.group_fairness import group_range, highest, lowest
from fedjax_fair.metrics.sensitive_group_metrics import CLIENTS, PEOPLE
from fedjax_fair.roles import ClientMetric, ClientMetrics, Metric, Task
from fedjax_fair.utils.tree import Tree

__all__ = [
    "ACCURACY",
    "PERPLEXITY",
    "TESTED",
    "FunctionOf",
    "Quantity",
    "client_metrics",
    "known_quantities",
    "quantities_of",
    "summaries",
    "tails",
]


Better = Literal["higher", "lower", "zero"]


class Quantity(NamedTuple):
    """A quantity that clients are measured by. Its properties are names of variables of results.

    Attributes:
        name: Its name.
        heading: Short name in tables.
        better: Which values are better; "zero" for those closer to 0.
        description: What it is.
        unit: Unit of its values.
    """

    name: str
    heading: str
    better: Better
    description: str
    unit: str = "1"

    @property
    def client(self) -> str:
        """The value of each client."""
        return f"test_{self.name}"

    @property
    def mean(self) -> str:
        """The mean over clients."""
        return f"{self.name}_mean_clients"

    @property
    def pooled(self) -> str:
        """The value on the pooled examples of all clients."""
        return f"{self.name}_{'mean_examples' if self.name == 'accuracy' else 'pooled'}"

    @property
    def worst(self) -> str:
        """The mean of the worst tenth of the clients: the largest errors, or the lowest scores."""
        return f"{self.name}_worst_10pct"

    @property
    def spread(self) -> str:
        """The standard deviation over clients."""
        return f"{self.name}_standard_deviation"

    @property
    def dissimilarity(self) -> str:
        """The mean difference over pairs of clients."""
        return f"{'client' if self.name == 'accuracy' else self.name}_dissimilarity"

    @property
    def group(self) -> str:
        """The mean over the clients of each ground-truth group."""
        return f"group_{self.name}"

    @property
    def group_gap(self) -> str:
        """The difference of the best and the worst ground-truth group."""
        return f"group_{self.name}_gap"

    @property
    def sensitive_group(self) -> str:
        """The value on the pooled examples of each sensitive group."""
        return f"sensitive_group_{self.name}"

    @property
    def parity(self) -> str:
        """The difference of the best and the worst sensitive group."""
        return f"{self.name}_parity_difference"

    @property
    def unseen(self) -> str:
        """The mean over unseen clients, before local steps."""
        return f"unseen_{self.mean}"

    @property
    def adapted(self) -> str:
        """The mean over unseen clients, after local steps."""
        return f"adapted_{self.mean}"


TESTED = "clients with test examples"
ACCURACY = Quantity("accuracy", "accuracy", "higher", "Test accuracy")
PERPLEXITY = Quantity("perplexity", "perplexity", "lower", "Test perplexity")

_OF_TASK = {
    "classification": (),
    "regression": (
        predictions.mean_absolute_error(),
        predictions.root_mean_squared_error(),
        predictions.r2(),
    ),
    "multi_label": (predictions.label_f1(), predictions.label_accuracy()),
}


def client_metrics(task: Task, custom: Sequence[Metric | ClientMetric]) -> list[ClientMetric]:
    """Returns the metrics of clients that an evaluation computes, the most important one first.

    Args:
        task: What the model predicts.
        custom: Metrics of the user.

    Examples:
        >>> [metric.name for metric in client_metrics("regression", [predictions.r2()])]
        ['r2', 'mean_absolute_error', 'root_mean_squared_error']
    """
    given = [metric for metric in custom if isinstance(metric, ClientMetric)]
    names = {metric.name for metric in given}
    return given + [metric for metric in _OF_TASK[task] if metric.name not in names]


def quantities_of(
    task: Task, custom: Sequence[Metric | ClientMetric], *, sequences: bool = False
) -> tuple[Quantity, ...]:
    """Returns the quantities of a task, the one that tables show first at the start.

    Args:
        task: What the model predicts.
        custom: Metrics of the user, which come first.
        sequences: Whether examples have sequences of labels.

    Examples:
        >>> [quantity.name for quantity in quantities_of("classification", [], sequences=True)]
        ['perplexity', 'accuracy']
        >>> quantities_of("regression", [])[0].worst
        'mean_absolute_error_worst_10pct'
    """
    found = [_quantity_of(each) for each in client_metrics(task, custom)]
    if sequences and PERPLEXITY.name not in {each.name for each in found}:
        found.append(PERPLEXITY)
    found += [ACCURACY] if task == "classification" else []
    # Values near 0 do not rank clients and methods, so that they are not the primary quantity.
    return tuple(sorted(found, key=lambda each: each.better == "zero"))


def _quantity_of(metric: ClientMetric) -> Quantity:
    heading = metric.heading or metric.name
    return Quantity(metric.name, heading, metric.better, metric.description, metric.unit)


def known_quantities() -> tuple[Quantity, ...]:
    """Returns the quantities of all tasks, in the order of importance, the accuracy last."""
    of_tasks = [each for task in ("regression", "multi_label") for each in quantities_of(task, ())]
    return (*of_tasks, PERPLEXITY, ACCURACY)


class FunctionOf(Tree):
    """Function of some fields of `ClientMetrics`.

    Args:
        function: The function.
        names: The fields that are its arguments; a tuple is a path of keys, such as
            ``("custom", "test_r2")``.
    """

    function: Callable[..., Float[Array, ""]]
    names: tuple[str | tuple[str, ...], ...]

    # Measurements of a central test set are of NumPy, with axes of runs.
    def __call__(self, metrics: ClientMetrics) -> Any:
        """Calls the function."""
        return self.function(*(_find(metrics, name) for name in self.names))


def _find(metrics: Any, name: str | tuple[str, ...]) -> Any:
    for key in (name,) if isinstance(name, str) else name:
        metrics = metrics[key] if isinstance(metrics, dict) else getattr(metrics, key)
    return metrics


def _same(value: Float[Array, ""]) -> Float[Array, ""]:
    return value


def _mean_range(values: Float[Array, "clients groups"]) -> Float[Array, ""]:
    return jnp.nanmean(group_range(values))


def _largest_range(values: Float[Array, "clients groups"]) -> Float[Array, ""]:
    return highest(group_range(values))


def _farthest(values: Float[Array, " groups"]) -> Float[Array, ""]:
    """Returns the value that is farthest from 0, with its sign."""
    sizes = jnp.where(jnp.isnan(values), -1, jnp.abs(values))
    return values[jnp.argmax(sizes)]


def tails(better: Better) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """Returns the functions of the worst and of the best tenth of clients.

    If values close to 0 are better, both are means of absolute values.

    Examples:
        >>> worst, best = tails("zero")
        >>> errors = jnp.array([-3.0, 0.5, 2.0])
        >>> worst(errors).item(), best(errors).item()
        (3.0, 0.5)
    """
    if better == "zero":
        return _largest_sizes, _smallest_sizes
    lowest_tenth, highest_tenth = performance.worst_10pct, performance.best_10pct
    return (lowest_tenth, highest_tenth) if better == "higher" else (highest_tenth, lowest_tenth)


def _largest_sizes(values: Float[Array, " clients"]) -> Float[Array, ""]:
    return performance.best_10pct(jnp.abs(values))


def _smallest_sizes(values: Float[Array, " clients"]) -> Float[Array, ""]:
    return performance.worst_10pct(jnp.abs(values))


def summaries(
    metric: ClientMetric,
    *,
    client_groups: bool = False,
    validation: bool = False,
    sensitive: bool = False,
) -> tuple[Metric, ...]:
    """Returns the metrics of a quantity; arguments are as of `fedjax_fair.metrics.summaries_of`.

    Examples:
        >>> error = predictions.mean_absolute_error()
        >>> [each.name for each in summaries(error)][:2]
        ['mean_absolute_error_mean_clients', 'mean_absolute_error_pooled']
    """
    found = list(_over_clients(metric, "test", client_groups))
    if validation:
        found += _over_clients(metric, "validation", client_groups)
    return (*found, *(_over_sensitive_groups(metric) if sensitive else ()))


def _over_clients(metric: ClientMetric, kind: str, has_groups: bool) -> Iterator[Metric]:
    name, quantity = f"{kind}_{metric.name}", _quantity_of(metric)
    worst, best = tails(metric.better)
    of_tail = "lower" if metric.better == "zero" else metric.better
    tenth = "mean of the {} 10% of clients"
    gap = "difference of the best and the worst ground-truth group"
    entries: list[tuple[str, str, Any, Better]] = [
        (quantity.mean, "mean over clients", performance.mean_over_clients, metric.better),
        (quantity.pooled, "pooled examples", _same, metric.better),
        (quantity.worst, tenth.format("worst"), worst, of_tail),
        (f"{metric.name}_best_10pct", tenth.format("best"), best, of_tail),
        (quantity.spread, "standard deviation over clients", fairness.standard_deviation, "lower"),
        (
            quantity.dissimilarity,
            "mean difference over pairs of clients",
            fairness.client_dissimilarity,
            "lower",
        ),
    ]
    if has_groups:
        entries.append((quantity.group_gap, gap, client_groups.gap, "lower"))
    for title, about, function, better in entries:
        is_pooled, of_groups = title == quantity.pooled, title == quantity.group_gap
        values = ("quantities", "pooled", name) if is_pooled else ("custom", name)
        fields = (values, "groups") if of_groups else (values,)
        yield Metric(
            title if kind == "test" else f"validation_{title}",
            f"{metric.description} of {kind} examples, {about}",
            metric.unit,
            TESTED.replace("test", kind),
            "examples" if is_pooled else "uniform",
            FunctionOf(function, fields),
            better=better,
            heading=quantity.heading if title == quantity.mean else "",
        )


def _over_sensitive_groups(metric: ClientMetric) -> Iterator[Metric]:
    difference = f"{metric.name}_parity_difference"
    about = f"{metric.description}: difference between sensitive groups"
    worst = {"higher": lowest, "lower": highest, "zero": _farthest}[metric.better]
    entries: list[tuple[str, str, Any, bool, Better]] = [
        (difference, about, group_range, False, "lower"),
        (f"{difference}_mean_clients", f"{about}, mean over clients", _mean_range, True, "lower"),
        (f"{difference}_worst_client", f"{about}, worst client", _largest_range, True, "lower"),
        (
            f"worst_group_{metric.name}",
            f"{metric.description} of the worst sensitive group",
            worst,
            False,
            metric.better,
        ),
    ]
    for name, description, function, by_client, better in entries:
        population = CLIENTS if by_client else PEOPLE
        values = ("quantities", "client_groups" if by_client else "groups", metric.name)
        yield Metric(
            name,
            description,
            metric.unit,
            population,
            "uniform" if by_client else "examples",
            FunctionOf(function, (values,)),
            better=better,
        )
