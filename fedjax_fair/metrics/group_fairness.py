r"""Group fairness of predictions, from numbers of people by group, label and prediction.

Functions take counts :math:`N_{a y \hat y}` of shape ``[..., groups, classes, classes]``: people of
group :math:`a` with label :math:`y` who are predicted to be in class :math:`\hat y`. Leading axes,
such as clients, remain. Pooled values use summed counts, ``counts.sum(axis=0)``, and not
means of the rates of clients.

Rates are of one class against all others; with two classes 1 is the favorable one. Criteria of more
classes compare the rates of every class, and count the worst one or the mean. Rates of groups
without people are NaN and ignored in gaps. ``empty`` determines the rate of a group with people,
but without those that the rate counts, such as people with label 1. With ``"skip"`` it is NaN and
ignored too, and a gap is NaN if fewer than two groups have a rate. With ``"zero"`` the rate is 0,
and the gap of a single group is 0, as in fairlearn. `undefined_groups` counts ignored groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from fedjax_fair.utils import checks

__all__ = [
    "CRITERIA",
    "RATES",
    "Baseline",
    "Empty",
    "Form",
    "Rate",
    "accuracy",
    "accuracy_difference",
    "accuracy_ratio",
    "calibration_error",
    "count_groups",
    "demographic_parity_difference",
    "demographic_parity_ratio",
    "difference",
    "equal_opportunity_difference",
    "equal_opportunity_ratio",
    "equalized_odds_difference",
    "equalized_odds_ratio",
    "false_positive_rate",
    "group_range",
    "highest",
    "intersection_codes",
    "lowest",
    "marginal_counts",
    "ratio",
    "selection_rate",
    "true_positive_rate",
    "undefined_groups",
]

Empty = Literal["skip", "zero"]
Baseline = Literal["between_groups", "to_overall"]
Combine = Literal["worst_case", "mean"]
Form = Literal["conditional", "one_vs_rest"]
Counts = Shaped[Array | np.ndarray, "*batch groups classes classes"]
Rates = Float[Array, "*batch groups"]
ClassRates = Float[Array, "*batch groups columns"]
"""Rates of classes, or of pairs of a label and a prediction."""
Cells = Shaped[Array, "*batch groups columns"]
Gap = Float[Array, "*batch"]


def count_groups(
    groups: Int[Array | np.ndarray, " examples"],
    labels: Int[Array | np.ndarray, " examples"],
    predicted: Int[Array | np.ndarray, " examples"],
    num_groups: int,
    num_classes: int = 2,
) -> Int[Array, "groups classes classes"]:
    """Counts people by group, label and prediction; predictions of other classes are left out.

    Examples:
        >>> groups, labels = jnp.array([0, 0, 1]), jnp.array([1, 0, 1])
        >>> count_groups(groups, labels, jnp.array([1, 1, 0]), 2).tolist()
        [[[0, 1], [0, 1]], [[0, 0], [1, 0]]]
    """
    shape = num_groups, num_classes, num_classes
    index = groups, labels.astype(jnp.int32), predicted.astype(jnp.int32)
    is_counted = (predicted >= 0) & (predicted < num_classes)
    return jnp.zeros(shape, jnp.int32).at[index].add(is_counted.astype(jnp.int32), mode="drop")


def intersection_codes(
    codes: Int[Array | np.ndarray, "examples features"], num_values: Sequence[int]
) -> Int[Array, " examples"]:
    """Returns one code for each combination of values of several sensitive features.

    Args:
        codes: Codes of the sensitive features.
        num_values: Number of values of each, of which the last changes fastest.

    Examples:
        >>> intersection_codes(jnp.array([[0, 2], [1, 0]]), (2, 3)).tolist()
        [2, 3]
    """
    code = jnp.zeros_like(codes[:, 0])
    for feature, size in enumerate(num_values):
        code = code * size + codes[:, feature]
    return code


def marginal_counts(
    counts: Shaped[Array | np.ndarray, "*batch groups classes classes"],
    num_values: Sequence[int],
    features: Sequence[int],
) -> Shaped[Array | np.ndarray, "*batch combinations classes classes"]:
    """Sums counts of all intersections to counts of some sensitive features.

    Args:
        counts: Counts by `intersection_codes`.
        num_values: Number of values of each sensitive feature.
        features: Positions of the features to keep, ascending.

    Examples:
        >>> counts = np.arange(6).reshape(6, 1, 1)
        >>> marginal_counts(counts, (2, 3), [1]).ravel().tolist()
        [3, 5, 7]
    """
    start, classes = counts.shape[:-3], counts.shape[-2:]
    by_feature = counts.reshape(*start, *num_values, *classes)
    other = [len(start) + i for i in range(len(num_values)) if i not in features]
    return by_feature.sum(axis=tuple(other)).reshape(*start, -1, *classes)


class Rate(NamedTuple):
    """A rate of each group that criteria compare.

    Attributes:
        name: Name, as in the variable ``sensitive_group_<name>`` of results.
        symbol: Symbol in formulas.
        long_name: What it is.
        function: ``function(counts, empty) -> [..., groups]``, of class 1 if it is of a class.
        by_class: ``by_class(counts, classes, empty) -> [..., groups, classes]``; None if it is no
            rate of a class.
    """

    name: str
    symbol: str
    long_name: str
    function: Callable[..., Rates]
    by_class: Callable[..., ClassRates] | None = None


def selection_rate(counts: Counts, empty: Empty = "skip", pos_label: int | None = None) -> Rates:
    """Computes the share of people who are predicted to be in a class; NaN for no people.

    Args:
        counts: People by group, label and prediction.
        empty: See the module.
        pos_label: The class; by default 1 of two.

    Raises:
        ValueError: If the class is unknown, or not given with more than two classes.

    Examples:
        >>> counts = np.array([[[3, 1], [0, 0]], [[0, 0], [1, 1]]])
        >>> selection_rate(counts).tolist(), selection_rate(counts, pos_label=0).tolist()
        ([0.25, 0.5], [0.75, 0.5])
    """
    return _selected(counts, [_one_class(counts, pos_label)], empty)[..., 0]


def true_positive_rate(
    counts: Counts, empty: Empty = "skip", pos_label: int | None = None
) -> Rates:
    """Computes the share of people with a label who are predicted so; see `selection_rate`."""
    return _true_positives(counts, [_one_class(counts, pos_label)], empty)[..., 0]


def false_positive_rate(
    counts: Counts, empty: Empty = "skip", pos_label: int | None = None
) -> Rates:
    """Computes the share of people of other labels who are predicted so; see `selection_rate`."""
    return _false_positives(counts, [_one_class(counts, pos_label)], empty)[..., 0]


def accuracy(counts: Counts, empty: Empty = "skip") -> Rates:
    """Computes the share of people who are predicted correctly."""
    return _share(jnp.trace(jnp.asarray(counts), axis1=-2, axis2=-1), _people(counts))


# Columns are selected before the division: XLA rounds another way where it broadcasts a divisor.
def _selected(counts: Counts, classes: Sequence[int], empty: Empty = "skip") -> ClassRates:
    selected = jnp.asarray(counts)[..., np.array(classes)].sum(axis=-2)
    return _share(selected, _people(counts)[..., None])


def _true_positives(counts: Counts, classes: Sequence[int], empty: Empty = "skip") -> ClassRates:
    columns, counts = np.array(classes), jnp.asarray(counts)
    return _given_label(
        counts[..., columns, columns], counts.sum(axis=-1)[..., columns], counts, empty
    )


def _false_positives(counts: Counts, classes: Sequence[int], empty: Empty = "skip") -> ClassRates:
    columns, counts = np.array(classes), jnp.asarray(counts)
    wrong = counts[..., columns]
    others = jnp.broadcast_to(
        1 - jnp.eye(counts.shape[-1], dtype=counts.dtype)[:, columns], wrong.shape
    )
    of_label = counts.sum(axis=-1, keepdims=True)
    return _given_label(
        (wrong * others).sum(axis=-2), (of_label * others).sum(axis=-2), counts, empty
    )


def _predicted_given_label(
    counts: Counts, classes: Sequence[int], empty: Empty = "skip"
) -> ClassRates:
    """Share of each class among the predictions for each label, ``[..., groups, pairs]``."""
    part = jnp.asarray(counts)[..., np.array(classes)]
    whole = jnp.broadcast_to(jnp.asarray(counts).sum(axis=-1, keepdims=True), part.shape)
    part, whole = (cells.reshape(*counts.shape[:-2], -1) for cells in (part, whole))
    return _given_label(part, whole, counts, empty)


RATES = _SELECTION, _TRUE, _FALSE, _CORRECT = (
    Rate(
        "selection_rate", "S", "Share of people predicted to be in class 1",
        selection_rate, _selected,
    ),
    Rate(
        "true_positive_rate", "T", "Share of label 1 predicted as 1",
        true_positive_rate, _true_positives,
    ),
    Rate(
        "false_positive_rate", "F", "Share of label 0 predicted as 1",
        false_positive_rate, _false_positives,
    ),
    Rate("accuracy", "C", "Share of people predicted correctly", accuracy),
)  # fmt: skip
"""All rates."""

CRITERIA = {
    "demographic_parity": (_SELECTION,),
    "equal_opportunity": (_TRUE,),
    "equalized_odds": (_TRUE, _FALSE),
    "accuracy_parity": (_CORRECT,),
}
"""Rates that should be equal in all groups, by the name of the criterion.

* Demographic parity: favorable decisions do not depend on the group, whatever the labels are. A
  perfect classifier violates it if the groups' labels differ. Dwork, Hardt, Pitassi, Reingold,
  Zemel, *Fairness through Awareness*, 2012, https://arxiv.org/abs/1104.3913
* Equal opportunity: people with label 1 have equal chances. It says nothing of people with label 0,
  and labels may be unfair themselves. Hardt, Price, Srebro, *Equality of Opportunity in Supervised
  Learning*, 2016, https://arxiv.org/abs/1610.02413
* Equalized odds: equal chances given either label (same reference).
* Accuracy parity: predictions are correct equally often.
"""


def difference(
    criterion: str,
    counts: Counts,
    method: Baseline = "between_groups",
    agg: Combine = "worst_case",
    empty: Empty = "skip",
    classes: Sequence[int] | None = None,
    form: Form = "conditional",
) -> Gap:
    """Computes the largest difference of the groups' rates.

    Args:
        criterion: Name of one of `CRITERIA`.
        counts: People by group, label and prediction.
        method: ``"between_groups"`` is the largest less the smallest rate, ``"to_overall"`` the
            largest distance to the rate of all people.
        agg: Whether several rates count by their largest difference or by the mean.
        empty: See the module.
        classes: Classes whose rates are compared; by default 1 of two, or all of more.
        form: Rates of equalized odds with more than two classes. ``"conditional"`` is the share of
            each class among the predictions for people of each label, ``"one_vs_rest"`` the true
            and false positive rate of each class.

    Returns:
        Differences in ``[0, 1]``, 0 if fair. Of several rates those with a difference count; NaN
        if none has one.

    Raises:
        ValueError: If a class is unknown, or a setting is none of the options.

    Examples:
        >>> counts = np.array([[[1, 1], [1, 3]], [[1, 0], [1, 1]]])
        >>> float(difference("equal_opportunity", counts))
        0.25
        >>> float(difference("equalized_odds", counts))
        0.5
        >>> float(difference("equalized_odds", counts, agg="mean"))
        0.375
    """
    return _compare(_difference, highest, criterion, counts, method, agg, empty, classes, form)


def ratio(
    criterion: str,
    counts: Counts,
    method: Baseline = "between_groups",
    agg: Combine = "worst_case",
    empty: Empty = "skip",
    classes: Sequence[int] | None = None,
    form: Form = "conditional",
) -> Gap:
    """Computes the smallest ratio of the groups' rates, in ``[0, 1]``, 1 if fair.

    Arguments are as for `difference`. ``"between_groups"`` is the smallest over the largest rate;
    ``"to_overall"`` is the smallest ratio of a rate to that of all people, or its inverse. Rates
    that are all 0 are equal: their ratio is 1, and NaN with ``empty="zero"``. Of several rates
    those with a ratio count; NaN if none has one. The result of fairlearn depends on their order.

    Examples:
        >>> counts = np.array([[[3, 1], [0, 0]], [[0, 0], [1, 1]]])
        >>> float(ratio("demographic_parity", counts))
        0.5
    """
    of_zeros = jnp.nan if empty == "zero" else 1.0
    compare = partial(_ratio, of_zeros=of_zeros)
    return _compare(compare, lowest, criterion, counts, method, agg, empty, classes, form)


demographic_parity_difference = partial(difference, "demographic_parity")
demographic_parity_ratio = partial(ratio, "demographic_parity")
equal_opportunity_difference = partial(difference, "equal_opportunity")
equal_opportunity_ratio = partial(ratio, "equal_opportunity")
equalized_odds_difference = partial(difference, "equalized_odds")
equalized_odds_ratio = partial(ratio, "equalized_odds")
accuracy_difference = partial(difference, "accuracy_parity")
accuracy_ratio = partial(ratio, "accuracy_parity")


def lowest(rates: Rates) -> Gap:
    """Returns the lowest defined value of the groups, such as the worst group's accuracy.

    Examples:
        >>> float(lowest(jnp.array([0.5, jnp.nan, 0.75])))
        0.5
    """
    value = jnp.min(jnp.where(jnp.isnan(rates), jnp.inf, rates), axis=-1)
    return jnp.where(jnp.isinf(value), jnp.nan, value)


def highest(rates: Rates) -> Gap:
    """Returns the highest defined value of the groups, such as the worst group's loss."""
    return -lowest(-rates)


def group_range(values: Rates) -> Gap:
    """Returns the largest less the smallest value of groups; NaN with fewer than two."""
    num_groups = jnp.sum(~jnp.isnan(values), axis=-1)
    return jnp.where(num_groups > 1, highest(values) - lowest(values), jnp.nan)


def calibration_error(
    counts: Shaped[Array, "*batch groups bins"],
    positives: Shaped[Array, "*batch groups bins"],
    scores: Float[Array, "*batch groups bins"],
) -> Rates:
    r"""Computes the expected calibration error of each group from sums over bins of scores.

    It is :math:`\sum_b |p_{ab} - s_{ab}| / n_a` with the number :math:`p_{ab}` of people with label
    1 and the sum :math:`s_{ab}` of predicted probabilities of class 1 in a bin. Scores of a
    calibrated model mean the same in every group. Limitation: biased upwards for groups of few
    people.

    Args:
        counts: People of each group and bin.
        positives: Those with label 1.
        scores: Sums of their scores.

    Returns:
        Errors in ``[0, 1]``; NaN for a group without people.

    References:
        Kleinberg, Mullainathan, Raghavan, *Inherent Trade-Offs in the Fair Determination of Risk
        Scores*, 2017, https://arxiv.org/abs/1609.05807

    Examples:
        >>> sums = jnp.array([[2.0, 2.0]]), jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 1.5]])
        >>> calibration_error(*sums).tolist()
        [0.25]
    """
    return _share(jnp.sum(jnp.abs(positives - scores), axis=-1), jnp.sum(counts, axis=-1))


def undefined_groups(counts: Counts, label: int | None = None) -> Int[Array, "*batch"]:
    """Counts the groups without people, or without people of one label.

    Examples:
        >>> counts = np.array([[[3, 1], [0, 0]], [[0, 0], [1, 1]]])
        >>> int(undefined_groups(counts)), int(undefined_groups(counts, label=1))
        (0, 1)
    """
    people = _people(counts) if label is None else jnp.asarray(counts[..., label, :]).sum(axis=-1)
    return jnp.sum(people == 0, axis=-1, dtype=jnp.int32)


def _people(counts: Counts) -> Shaped[Array, "*batch groups"]:
    return jnp.asarray(counts).sum(axis=(-2, -1))


def _share(
    part: Shaped[Array, "*batch"], whole: Shaped[Array, "*#batch"]
) -> Float[Array, "*batch"]:
    """Divides; NaN where the whole is 0."""
    part, whole = jnp.asarray(part, jnp.float32), jnp.asarray(whole, jnp.float32)
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1), jnp.nan)


# Undefined by default, because the zero of fairlearn turns a small client without positive examples
# into an unfair one.
def _given_label(part: Cells, whole: Cells, counts: Counts, empty: Empty) -> ClassRates:
    checks.one_of("empty", empty, get_args(Empty))
    rates = _share(part, whole)
    if empty == "skip":
        return rates
    return jnp.where(jnp.isnan(rates) & (_people(counts) > 0)[..., None], 0, rates)


def _compare(
    compare: Callable[..., Gap],
    worst: Callable[..., Gap],
    criterion: str,
    counts: Counts,
    method: Baseline,
    agg: Combine,
    empty: Empty,
    classes: Sequence[int] | None,
    form: Form,
) -> Gap:
    """Compares the groups' rates with each other, or with the rates of all people."""
    checks.one_of("method", method, get_args(Baseline))
    checks.one_of("agg", agg, get_args(Combine))
    rates, overall = _rates(criterion, counts, empty, classes, form), None
    if method == "to_overall":
        everyone = jnp.asarray(counts).sum(axis=-3, keepdims=True)
        overall = _rates(criterion, everyone, empty, classes, form)
    num_defined = jnp.sum(~jnp.isnan(rates), axis=-1)
    least = 2 if empty == "skip" else 1
    gaps = jnp.where(num_defined >= least, compare(rates, overall), jnp.nan)
    return worst(gaps) if agg == "worst_case" else jnp.nanmean(gaps, axis=-1)


def _rates(
    criterion: str, counts: Counts, empty: Empty, classes: Sequence[int] | None, form: Form
) -> Float[Array, "*batch rates groups"]:
    """Returns all rates that a criterion compares."""
    checks.one_of("criterion", criterion, tuple(CRITERIA))
    checks.one_of("empty", empty, get_args(Empty))
    checks.one_of("form", form, get_args(Form))
    num_classes = counts.shape[-1]
    if classes is None:
        classes = [1] if num_classes == 2 else range(num_classes)
    labels = [_one_class(counts, label) for label in classes]
    if criterion == "equalized_odds" and form == "conditional" and num_classes > 2:
        rates = [_predicted_given_label(counts, labels, empty)]
    else:
        rates = [
            rate.function(counts, empty)[..., None]
            if rate.by_class is None
            else rate.by_class(counts, labels, empty)
            for rate in CRITERIA[criterion]
        ]
    return jnp.swapaxes(jnp.concatenate(rates, axis=-1), -1, -2)


def _difference(rates: Rates, overall: Float[Array, "*batch #groups"] | None) -> Gap:
    if overall is None:
        return highest(rates) - lowest(rates)
    return highest(jnp.abs(rates - overall))


def _ratio(rates: Rates, overall: Float[Array, "*batch #groups"] | None, of_zeros: float) -> Gap:
    if overall is None:
        ratio = _share(lowest(rates), highest(rates))
    else:
        ratios = _share(rates, jnp.broadcast_to(overall, rates.shape))
        ratio = lowest(jnp.where(ratios > 1, 1 / ratios, ratios))
    return jnp.where(highest(rates) == 0, of_zeros, ratio)


def _one_class(counts: Counts, label: int | None) -> int:
    """Returns a class of counts, by default 1 of two."""
    num_classes = counts.shape[-1]
    label = 1 if label is None and num_classes == 2 else label
    is_square = counts.ndim >= 3 and counts.shape[-2] == num_classes
    if label is None or not is_square or not 0 <= label < num_classes:
        raise ValueError(
            f"counts of shape {tuple(counts.shape)}, pos_label={label}: expected [..., groups, "
            "classes, classes] and one of the classes; pass the class whose rate is meant."
        )
    return label
