"""Metrics of the global model on all clients, and what they are computed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from fedjax_fair.roles.model import Model
from fedjax_fair.utils.tree import Tree

PERSONALIZED = "personalized_"
"""Prefix of the names of metrics of personalized models."""

LABEL_UNIT = "unit of the label"
"""Unit of errors of a regression; results of a table name the column instead of the label."""


class GroupSums(NamedTuple):
    """Sums over the test examples of every client and sensitive group.

    Groups are the combinations of values of all sensitive features, in the order of
    `fedjax_fair.metrics.group_fairness.intersection_codes`. An example with a sequence of labels
    counts once for each label that is not masked.

    Attributes:
        examples: Numbers of examples.
        correct: Numbers of correct predictions.
        loss: Sums of losses.
        counts: Numbers by label and prediction; None unless labels are classes, at most
            `fedjax_fair.metrics.sensitive_group_metrics.MAX_COUNTED`.
        calibration_error: Calibration error of each group, from ten bins of the predicted
            probability of class 1 and all clients; None without two classes or probabilities.
    """

    examples: Float[Array, "clients groups"]
    correct: Float[Array, "clients groups"]
    loss: Float[Array, "clients groups"]
    counts: Int[Array, "clients groups classes classes"] | None = None
    calibration_error: Float[Array, " groups"] | None = None


class QuantityValues(NamedTuple):
    """Values of `ClientMetric` that are of more or fewer examples than those of one client.

    Attributes:
        pooled: Of the pooled examples of all clients, by ``test_<name>`` and so on.
        groups: Of the pooled test examples of each sensitive group, by name of the metric.
        client_groups: Of the test examples of each client and sensitive group.
        features: Of the pooled test examples of each value of each sensitive feature, one feature
            after another; empty with a single feature, whose values are the groups.
        outputs: Of each output of a model with several targets, pooled test examples.
    """

    pooled: dict[str, Float[Array, ""]]
    groups: dict[str, Float[Array, " groups"]]
    client_groups: dict[str, Float[Array, "clients groups"]]
    features: dict[str, Float[Array, " values"]]
    outputs: dict[str, Float[Array, " outputs"]]


class ClientMetrics(NamedTuple):
    """Metrics of the global model on every client, and participation so far.

    Accuracies (fractions) and mean losses are NaN for clients without examples. Sizes are numbers
    of examples, or of labels that are not masked if examples have sequences of labels. Validation
    fields are None without validation examples.

    Attributes:
        train_loss: Training losses; NaN if not measured.
        participation: Times each client has trained, once per slot of a cohort.
        cohort: Ids of the clients that trained last; -1 before the first round.
        groups: Ground-truth groups, or None.
        class_accuracy: Test accuracy of each class over all clients, NaN without examples.
            Regression targets form one class. None if not measured.
        custom: Values of each `ClientMetric` by ``test_<name>`` and ``validation_<name>``.
        quantities: Their pooled values and those of groups; None without such metrics.
        personalized: The same metrics of each client's personalized model, without metrics of
            classes; None without such models.
        sensitive: Sums by client and sensitive group; None without sensitive features.
    """

    test_accuracy: Float[Array, " clients"]
    test_loss: Float[Array, " clients"]
    train_loss: Float[Array, " clients"]
    test_sizes: Int[Array, " clients"]
    train_sizes: Int[Array, " clients"]
    participation: Int[Array, " clients"]
    cohort: Int[Array, " cohort"]
    groups: Int[Array, " clients"] | None = None
    class_accuracy: Float[Array, " classes"] | None = None
    validation_accuracy: Float[Array, " clients"] | None = None
    validation_loss: Float[Array, " clients"] | None = None
    validation_sizes: Int[Array, " clients"] | None = None
    custom: dict[str, Float[Array, " clients"]] = {}  # noqa: RUF012 (never changed)
    quantities: QuantityValues | None = None
    personalized: ClientMetrics | None = None
    sensitive: GroupSums | None = None


class Metric(Tree):
    """A scalar summary of `ClientMetrics`.

    Attributes:
        name: Name of the variable in results.
        description: One-line description.
        unit: Unit of the value, "1" if dimensionless.
        population: The clients that are counted, for example "clients with test examples".
        weighting: "uniform" over the population or "examples".
        function: Pure function from ``ClientMetrics`` to a scalar.
        is_of_model: Whether it depends on the model, so that personalized models have it too.
        better: Which values are better, "zero" for those closer to 0; None if none are.
        formula: Definition in symbols of `fedjax_fair.metrics.definitions.SYMBOLS`.
        range: Possible values, without unit.
        source: Where it is from.
        heading: Short name in tables.
        has_noise_floor: Whether its value for equal clients or groups can be estimated.
    """

    name: str
    description: str
    unit: str
    population: str
    weighting: str
    function: Callable[[ClientMetrics], Float[Array, ""]]
    is_of_model: bool = True
    better: Literal["higher", "lower", "zero"] | None = None
    formula: str = ""
    range: str = ""
    source: str = ""
    heading: str = ""
    has_noise_floor: bool = False


class Predictions(NamedTuple):
    """Outputs of a model for the examples of all clients, sorted by client.

    If examples have sequences of labels, each label that is not masked counts as an example.

    Attributes:
        model: The network.
        outputs: Outputs, ``[examples, ...]``.
        labels: Labels or targets, ``[examples, ...]``.
        owners: Owner of each example, ``[examples]``, ascending; ``num_clients`` for padding.
        num_clients: Number of clients.
    """

    model: Model
    outputs: Float[Array, "examples ..."]
    labels: Shaped[Array, "examples ..."]
    owners: Int[Array, " examples"]
    num_clients: int

    @property
    def predicted(self) -> Shaped[Array, "examples ..."]:
        """Predicted labels, by ``Model.predict``."""
        return self.model.predict(self.outputs)

    @property
    def probabilities(self) -> Float[Array, "examples classes"]:
        """Predicted probabilities, by ``Model.probabilities``."""
        if self.model.probabilities is None:
            raise ValueError(
                "Model.probabilities is None; metrics of probabilities need a model that defines "
                "it, such as model.replace(probabilities=jax.nn.softmax)."
            )
        return self.model.probabilities(self.outputs)

    def sum(self, values: Shaped[Array, " examples"]) -> Shaped[Array, " clients"]:
        """Sums a scalar of each example over the examples of each client."""
        return jax.ops.segment_sum(values, self.owners, self.num_clients, indices_are_sorted=True)

    def mean(self, values: Float[Array, " examples"]) -> Float[Array, " clients"]:
        """Averages over the examples of each client; NaN for a client without."""
        return self.sum(values) / self.sum(jnp.ones_like(values))


class ClientMetric(Tree):
    """A scalar for each client, computed from the predictions for its examples.

    Results also have its mean, worst tail and spread over clients, its value on pooled examples,
    and its gaps between groups (`fedjax_fair.metrics.quantities`).

    Attributes:
        name: Name of the variable in results, after ``test_`` or ``validation_``.
        description: Short description.
        unit: Unit of the value, "1" if dimensionless, `LABEL_UNIT` for the unit of the label.
        function: Pure function from ``Predictions`` to ``[clients]``; NaN replaces values of
            clients without examples.
        better: Which values are better; "zero" for those closer to 0, such as of a bias, which
            tables show last.
        heading: Short name in tables, by default the name.
        ranks_examples: Whether it compares outputs of different examples. Outputs of personalized
            models of different clients are then not pooled: values of pooled examples and of
            groups are means over clients, weighted by examples.
        scale: "ratio" if values are at least 0 and their ratios have a meaning, else "interval".
            Gini index, Jain's index, entropy and angle need a ratio scale
            (`results.client_summaries`).
    """

    name: str
    description: str
    unit: str
    function: Callable[[Predictions], Float[Array, " clients"]]
    better: Literal["higher", "lower", "zero"] = "higher"
    heading: str = ""
    ranks_examples: bool = False
    scale: Literal["ratio", "interval"] = "interval"
