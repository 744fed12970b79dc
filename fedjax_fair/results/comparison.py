"""Differences between methods, their statistical significance, noise floors, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedjax_fair import metrics
from fedjax_fair.metrics import BY_NAME
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.metrics.sensitive_group_metrics import CLIENTS, LOSS_PARITY, PEOPLE, needs_classes
from fedjax_fair.results.client_values import client_summary, loss_gaps
from fedjax_fair.results.datasets import (
    MARK,
    by_model,
    check_one_kind,
    class_based,
    configurations_as_methods,
    final_metrics,
    method_of,
    reference,
    when,
)
from fedjax_fair.results.formats import (
    Table,
    format_half_width,
    format_number,
    format_p,
    latex,
    markdown,
    to_csv,
)
from fedjax_fair.results.sensitive_groups import (
    describe_empty_cells,
    feature_names,
    gap_by_feature,
    values_by_feature,
)
from fedjax_fair.results.task_metrics import better, is_percent, primary, shown_columns
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = [
    "COLUMNS",
    "LATEX_COLUMNS",
    "MIN_SEEDS",
    "NOISE_FLOOR",
    "STAR",
    "about_references",
    "compare",
    "compare_means",
    "comparison_table",
    "default_metrics",
    "describe_seeds",
    "differences",
    "gaps_by_feature",
    "noise_floor",
    "to_text",
    "unit_of",
    "with_client_summaries",
]

MIN_SEEDS = 5
"""Seeds that statistical significance needs; with fewer, a test has hardly any power."""

STAR = (
    f"*: statistically significant (p below .05 after Holm's correction, {MIN_SEEDS} seeds or more)"
)
"""Meaning of the mark of a difference."""

NOISE_FLOOR = (
    "Noise floor: differences of this size appear by chance alone, because test sets are finite."
)
"""Meaning of a noise floor."""

_PER_RUN = {"algorithm", "seed", "round"}


def compare(
    dataset: xr.Dataset,
    metric: str,
    baseline: str | None = None,
    *,
    paired: bool = True,
    average_last: int = 1,
) -> xr.Dataset:
    """Compares all methods with a baseline in one metric.

    Args:
        dataset: Results with the dimension ``algorithm``, over two or more seeds. The
            configurations of a sweep are compared as methods. `at_seconds` of results compares
            them at a virtual time.
        metric: A variable over seeds and rounds; a summary over clients of `client_summaries` or
            `loss_gaps`, such as ``"test_loss_gini"`` and ``"loss_gap_maximum"``; or a difference
            between sensitive groups and one sensitive feature, such as
            ``"loss_parity_difference:sex"``.
        baseline: One of the methods; by default the first. With entries of `by_model`, each
            model is compared with the corresponding one of the baseline, see `reference`.
        paired: Whether runs with equal seeds are pairs; if not, seeds may differ (Welch's test).
        average_last: As for `final_metrics`.

    Returns:
        The columns of `differences` over the other methods, the ``noise_floor``, and the bootstrap
        interval of the difference from ``bootstrap_low`` to ``bootstrap_high``. Pairs are of the
        seeds that all methods have; ``seeds_left_out`` names other seeds. The baseline has
        ``baseline_mean``, ``baseline_deviation``, ``baseline_half_width`` and
        ``baseline_noise_floor``.

    Raises:
        ValueError: If there is no such metric or baseline, only one method or seed, or methods with
            synchronous and asynchronous rounds.

    Examples:
        >>> import xarray as xr
        >>> accuracy = [[[0.7], [0.9]], [[0.8], [1.0]]]
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {"accuracy_mean_clients": (dims, accuracy)},
        ...     {"algorithm": ["fedavg", "divfl"], "round": [10]},
        ... )
        >>> round(compare(runs, "accuracy_mean_clients").difference.item(), 3)
        0.1
    """
    compared, finals, dataset = _compare(dataset, metric, baseline, paired, average_last)
    chosen = str(compared.attrs["baseline"])
    floors = noise_floor(dataset, [metric], average_last)[metric]
    compared["baseline_noise_floor"] = floors.sel(algorithm=chosen, drop=True)
    compared["noise_floor"] = floors.sel(algorithm=compared["algorithm"])
    intervals = [
        metrics.paired.bootstrap(*_samples(finals, str(name), chosen, paired=paired))
        for name in compared["algorithm"].values
    ]
    for name, ends in zip(
        ("bootstrap_low", "bootstrap_high"), zip(*intervals, strict=True), strict=True
    ):
        compared[name] = ("algorithm", list(ends))
    return compared


def compare_means(dataset: xr.Dataset, metric: str) -> xr.Dataset:
    """Compares as `compare`, without what takes random numbers: bootstrap and noise floors."""
    return _compare(dataset, metric)[0]


def _compare(
    dataset: xr.Dataset,
    metric: str,
    baseline: str | None = None,
    paired: bool = True,
    average_last: int = 1,
) -> tuple[xr.Dataset, xr.DataArray, xr.Dataset]:
    """Returns the differences, and the last values and the results of the compared seeds."""
    dataset = configurations_as_methods(dataset)
    methods = [str(name) for name in dataset["algorithm"].values]
    baseline = methods[0] if baseline is None else baseline
    baseline = reference(f"{method_of(baseline)}{MARK}", methods, baseline) or baseline
    of_groups, _, feature = metric.partition(":")
    if feature and metric not in dataset:
        dataset = dataset.assign({metric: gap_by_feature(dataset, of_groups, feature)})
    dataset = with_client_summaries(dataset, metric)
    summaries = tuple(str(name) for name, one in dataset.items() if set(one.dims) == _PER_RUN)
    checks.one_of("metric", metric, summaries)
    _check_baseline(baseline, methods)
    if len(methods) < 2 or dataset.sizes["seed"] < 2:
        raise ValueError(
            f"dataset: expected two or more methods and seeds, got {len(methods)} and "
            f"{dataset.sizes['seed']}."
        )
    check_one_kind(dataset)
    finals = final_metrics(dataset, average_last)[metric]
    left_out = ""
    if paired:
        is_common = _is_common_seed(finals, baseline)
        left_out = ", ".join(str(seed) for seed in dataset["seed"].values[~is_common])
        dataset, finals = dataset.isel(seed=is_common), finals.isel(seed=is_common)
    compared = differences(finals, baseline, paired=paired)
    of_baseline = compared.sel(algorithm=baseline, drop=True)
    compared = compared.sel(algorithm=[name for name in methods if name != baseline])
    for name in ("mean", "deviation", "half_width"):
        compared[f"baseline_{name}"] = of_baseline[name]
    labels = {name: dataset[metric].attrs.get(name, "") for name in ("long_name", "units")}
    about = {"metric": metric, "baseline": baseline, "paired": int(paired)}
    about |= {"better": better(dataset, metric) or ""}
    about |= {name: dataset.attrs[name] for name in ("at_seconds",) if name in dataset.attrs}
    if dataset[metric].attrs.get("population") in (PEOPLE, CLIENTS):
        by_class = needs_classes(of_groups) and "sensitive_group_counts" in dataset
        features = [feature] if feature else None
        about |= {"empty": describe_empty_cells(dataset, features, by_class=by_class)}
    compared = compared.assign_attrs(**about, seeds_left_out=left_out, **labels)
    return compared, finals, dataset


def with_client_summaries(dataset: xr.Dataset, *metrics: str) -> xr.Dataset:
    """Adds those of the metrics that are summaries of `client_summaries` or `loss_gaps`."""
    missing = [metric for metric in metrics if metric not in dataset]
    gaps = loss_gaps(dataset) if any(map(_is_of_gaps, missing)) else {}
    for metric in missing:
        summary = gaps.get(metric) if _is_of_gaps(metric) else client_summary(dataset, metric)
        if summary is not None:
            dataset = dataset.assign({metric: summary})
    return dataset


def _is_of_gaps(metric: str) -> bool:
    return metric.startswith("loss_gap_")


def gaps_by_feature(dataset: xr.Dataset) -> list[str]:
    """Returns the metrics of `compare` that are gaps between the groups of each sensitive feature.

    They are the differences of the primary quantity, and of the loss.
    """
    known = {primary(dataset).name: primary(dataset).parity, "loss": LOSS_PARITY.name}
    return [
        f"{name}:{feature}"
        for feature in feature_names(dataset)
        for quantity, name in known.items()
        if values_by_feature(dataset, quantity, [feature]) is not None
    ]


def _is_common_seed(finals: xr.DataArray, baseline: str) -> np.ndarray:
    """Returns which seeds have a pair for every method with pairs, or all if there is none.

    Means and differences of a table are then over the same runs, so that they agree.
    """
    names = finals["algorithm"].values
    is_pair = ~np.isnan([np.subtract(*_pair(finals, str(name), baseline)) for name in names])
    is_common = np.asarray(is_pair[is_pair.any(axis=1)].all(axis=0))
    return is_common if is_common.any() else np.ones_like(is_common)


def _check_baseline(baseline: str, methods: list[str]) -> None:
    variants = [name for name in methods if name.startswith((f"{baseline} (", f"{baseline}, "))]
    if baseline not in methods and variants:
        expected = " or ".join(map(repr, variants))
        raise ValueError(f"baseline={baseline!r} has several results; expected {expected}.")
    checks.one_of("baseline", baseline, tuple(methods))


def differences(finals: xr.DataArray, baseline: str, *, paired: bool = True) -> xr.Dataset:
    """Computes the columns of `compare` that need only one value per method and seed.

    Args:
        finals: Over ``algorithm`` and ``seed``; NaN for seeds that a method has not run.
        baseline: One of the methods, which has difference 0.
        paired: As for `compare`.

    Returns:
        Over all methods: ``mean`` and ``deviation`` over seeds, and ``half_width``, half of the 95%
        interval of the mean; the ``difference`` with its 95% interval from ``low`` to ``high``
        (Student's t) and its ``difference_deviation``; ``p``, adjusted for the number of methods
        (Holm), which includes methods that equal the baseline in every seed (their own is NaN);
        ``is_significant``, whether ``p < 0.05`` with at least five ``seeds``, the number of
        pairs or runs; ``effect_size``; and ``seeds_needed`` to detect the difference with
        probability 0.8 (`fedjax_fair.metrics.paired`).

    Examples:
        >>> import xarray as xr
        >>> names = {"algorithm": ["fedavg", "divfl"]}
        >>> finals = xr.DataArray([[0.7, 0.9], [0.8, 1.0]], names, ("algorithm", "seed"))
        >>> differences(finals, "fedavg").difference.values.round(3).tolist()
        [0.0, 0.1]
    """
    import pandas as pd
    import xarray as xr

    undefined = metrics.paired.Difference(*[np.nan] * 5)
    rows = {}
    for name in finals["algorithm"].values:
        samples = _samples(finals, str(name), baseline, paired=paired)
        seeds = min(map(len, samples))
        test = metrics.paired.interval if paired else metrics.paired.welch
        gap = test(*samples) if seeds else undefined
        runs = finals.sel(algorithm=name).dropna("seed").values
        of_mean = metrics.paired.interval(runs) if runs.size else undefined
        rows[name] = {
            "mean": of_mean.mean,
            "deviation": of_mean.deviation,
            "half_width": of_mean.high - of_mean.mean,
            "difference": gap.mean,
            "low": gap.low,
            "high": gap.high,
            "p": gap.p,
            "difference_deviation": gap.deviation,
            "effect_size": metrics.paired.effect_size(gap),
            "seeds": seeds,
            "seeds_needed": metrics.paired.seeds_needed(gap.mean, gap.deviation, paired=paired),
        }
    columns: Any = pd.DataFrame.from_dict(rows, orient="index")
    # Equal runs have no p value, but are a comparison that was planned.
    is_compared = columns["difference_deviation"].notna() & (columns.index != baseline)
    columns["p"] = metrics.paired.holm(columns["p"].tolist(), int(is_compared.sum()))
    columns["is_significant"] = (columns["p"] < 0.05) & (columns["seeds"] >= MIN_SEEDS)
    by_method = {name: ("algorithm", column.values) for name, column in columns.items()}
    return xr.Dataset(by_method, {"algorithm": finals["algorithm"].values})


def _pair(finals: xr.DataArray, name: str, baseline: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the runs of a method and of its reference by seed, NaN if it has none."""
    other = reference(name, [str(one) for one in finals["algorithm"].values], baseline)
    runs = finals.sel(algorithm=name).values
    if name == other != baseline:  # The other model of the baseline is compared with nothing.
        other = None
    return runs, finals.sel(algorithm=other).values if other else np.full(runs.shape, np.nan)


def _samples(
    finals: xr.DataArray, name: str, baseline: str, *, paired: bool
) -> tuple[np.ndarray, ...]:
    """The differences of pairs, or the runs of both methods; without NaN."""
    runs, baseline_runs = _pair(finals, name, baseline)
    if paired:
        gaps = runs - baseline_runs
        return (gaps[~np.isnan(gaps)],)
    runs, baseline_runs = runs[~np.isnan(runs)], baseline_runs[~np.isnan(baseline_runs)]
    # The difference of a method to itself has no variance.
    return (0 * runs, 0 * runs) if name == baseline else (runs, baseline_runs)


def noise_floor(dataset: xr.Dataset, names: Sequence[str], average_last: int = 1) -> xr.Dataset:
    """Estimates measures of spread as they would be if all clients had equal accuracy.

    A spread that is not above its floor is no evidence of unfairness, nor is a worst 10% that is
    not below it. The floor is the mean over random test sets at a method's accuracy.

    Args:
        dataset: Results with the dimension ``algorithm``.
        names: Summary metrics, also those of `class_based`.
        average_last: As for `final_metrics`, for the accuracy.

    Returns:
        The metrics over ``algorithm``; NaN for those not in `fedjax_fair.metrics.noise.OF_SPREAD`,
        and without test examples.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {
        ...         "accuracy_mean_examples": (dims, [[[0.5], [0.5]]]),
        ...         "test_examples": (("client", "class"), np.full((100, 1), 25)),
        ...     },
        ...     {"algorithm": ["fedavg"]},
        ... )
        >>> floor = noise_floor(runs, ["accuracy_standard_deviation"])
        >>> round(floor.accuracy_standard_deviation.item(), 2)
        0.1
    """
    import xarray as xr

    methods = dataset["algorithm"].values
    columns = {name: np.full(len(methods), np.nan) for name in names}
    spreads = [
        name
        for name in names
        if name.removesuffix("_class_based") in metrics.noise.OF_SPREAD
        and ("group" in dataset or not name.startswith("group"))
    ]
    if spreads and {"accuracy_mean_examples", "test_examples"} <= set(dataset):
        partitions = dataset[["test_examples", *({"group"} & set(dataset))]]
        levels = final_metrics(dataset[["accuracy_mean_examples"]], average_last)
        levels = levels["accuracy_mean_examples"].transpose("algorithm", "seed").values
        for row, runs in enumerate(levels):
            is_measured = ~np.isnan(runs)
            accuracy = float(runs[is_measured].mean()) if is_measured.any() else np.nan
            if 0 <= accuracy <= 1:  # A custom model may measure something else by this name.
                of_runs = partitions.isel(seed=is_measured, missing_dims="ignore")
                for name, value in _floors(of_runs, spreads, accuracy).items():
                    columns[name][row] = value
    variables = {name: ("algorithm", values) for name, values in columns.items()}
    return xr.Dataset(variables, {"algorithm": methods})


def _floors(partitions: xr.Dataset, names: Sequence[str], accuracy: float) -> dict[str, float]:
    """Returns means over partitions."""
    if "seed" not in partitions.dims:
        partitions = partitions.expand_dims("seed")
    draws = max(20, 200 // partitions.sizes["seed"])
    floors = [
        metrics.noise.expected(
            names,
            accuracy,
            partition["test_examples"].transpose("client", "class").values.astype(np.int64),
            partition["group"].values if "group" in partition else None,
            draws,
        )
        for partition in (partitions.isel(seed=run) for run in range(partitions.sizes["seed"]))
    ]
    return {name: float(np.mean([floor[name] for floor in floors])) for name in names}


def default_metrics(dataset: xr.Dataset) -> tuple[xr.Dataset, dict[str, str]]:
    """Returns the results and the headings of the metrics that methods are compared by.

    Models are separated, see `by_model`. If clients differ only in their labels, measures of spread
    are class-based, with less noise, unless there are personalized models.
    """
    dataset = by_model(dataset)
    headings = shown_columns(dataset)
    is_personalized = any(str(name).endswith(MARK) for name in dataset["algorithm"].values)
    is_class_based = dataset.attrs.get("label_skew_only") and primary(dataset) == ACCURACY
    if not is_class_based or is_personalized:
        return dataset, headings
    dataset = dataset.merge(class_based(dataset))
    columns = {}
    for name, heading in headings.items():
        # Only measures of spread are class-based, hence not the accuracy.
        better_name = f"{name}_class_based"
        if metrics.BY_NAME[name].has_noise_floor and better_name in dataset:
            columns[better_name] = f"{heading}\nclass-based"
        else:
            columns[name] = heading
    return dataset, columns


COLUMNS = {
    "mean": "mean",
    "noise_floor": "noise\nfloor",
    "difference": "difference",
    "interval": "95% CI\nStudent",
    "bootstrap": "95% CI\nbootstrap",
    "p": "p\nHolm",
    "effect": "effect",
    "seeds_needed": "seeds\nneeded",
}
"""Headings of the columns after the method, by name."""

LATEX_COLUMNS = ("mean", "difference", "interval", "p")
"""Default columns of LaTeX tables."""

_OF_METHOD = ["mean", "deviation", "half_width", "noise_floor"]
_OF_DIFFERENCE = ["difference", "low", "high", "bootstrap_low", "bootstrap_high"]
_WITHOUT_UNIT = ["p", "is_significant", "effect_size", "seeds", "seeds_needed"]


def comparison_table(compared: xr.Dataset, digits: int, columns: Sequence[str] = ()) -> Table:
    """Lays out differences in one metric, the baseline first.

    Args:
        compared: What `fedjax_fair.results.compare` returned.
        digits: Decimals of percentages; values in other units have four significant digits.
        columns: Names in `COLUMNS`, in the order of the table; by default all.

    Raises:
        ValueError: If a column is unknown or repeated.
    """
    columns = tuple(columns) or tuple(
        name for name in COLUMNS if name != "noise_floor" or _can_have_floor(compared)
    )
    for name in columns:
        checks.one_of("columns", name, tuple(COLUMNS))
    if len(set(columns)) < len(columns):
        raise ValueError(f"columns={columns}: expected each column once; remove the copies.")
    unit, attributes = unit_of(compared), compared.attrs
    form = f".{digits}f" if unit == "%" else ".4g"
    rows = []
    for row in _frame(compared).to_dict("records"):
        cells = _cells(row, form)
        rows.append((row["method"], *(cells[name] for name in columns)))
    in_unit = "" if unit == "1" else f", in {unit}"
    title = (
        f"{attributes['long_name'] or attributes['metric']}{in_unit}: "
        f"differences to {method_of(attributes['baseline'])}"
    )
    headings = ("method", *(COLUMNS[name] for name in columns))
    return Table(escape_control_chars(title), headings, rows, _note(compared, columns))


def _can_have_floor(compared: xr.Dataset) -> bool:
    """Returns whether a noise floor may be known; it never is for errors and other quantities."""
    return compared.attrs["metric"] in BY_NAME or bool(compared["noise_floor"].notnull().any())


def about_references(names: list[str], baseline: str) -> str:
    """Describes which models are compared, if there are personalized ones."""
    methods = {method_of(name) for name in names}
    own = {method_of(name) for name in names if name.endswith(MARK)}
    if not own:
        return ""
    parts = ["global models with global ones, personalized with personalized"]
    if own != methods:
        serving = reference(f"{method_of(baseline)}{MARK}", names, baseline)
        parts.append(
            f"personalized ones with {serving}, which serves the clients"
            if method_of(baseline) not in own
            else f"methods without personalized models with {serving}"
        )
    return f" Compared: {'; '.join(parts)}."


def _cells(row: dict[str, Any], form: str) -> dict[str, str]:
    """Formats the cells of a method by column."""
    value = {name: format_number(row[name], f"+{form}") for name in _OF_DIFFERENCE}
    interval, bootstrap = (
        "-" if np.isnan(row[f"{kind}low"]) else f"{value[f'{kind}low']}, {value[f'{kind}high']}"
        for kind in ("", "bootstrap_")
    )
    return {
        "mean": format_half_width(row["mean"], row["half_width"], form),
        "noise_floor": format_number(row["noise_floor"], form),
        "difference": value["difference"] + ("*" if row["is_significant"] == 1 else ""),
        "interval": interval,
        "bootstrap": bootstrap,
        "p": format_p(row["p"]),
        "effect": format_number(row["effect_size"], "+.2f"),
        "seeds_needed": format_number(row["seeds_needed"], ",.0f").replace("inf", "∞"),
    }


def _note(compared: xr.Dataset, columns: Sequence[str]) -> str:
    """Explains the columns."""
    attributes = compared.attrs
    parts = {
        "mean": "±: half of the 95% CI of the mean",
        "difference": STAR,
        "effect": "Effect: Cohen's d",
        "seeds_needed": "Seeds needed: to detect this difference with probability 0.8",
        "noise_floor": NOISE_FLOOR.removesuffix("."),
    }
    over = [f"Over {describe_seeds(compared)}"]
    if left_out := attributes.get("seeds_left_out"):
        over[0] += f", without seed {left_out}, which not every method has"
    over += [parts.pop(name) for name in ("mean", "difference") if name in columns]
    sentences = ["; ".join(over), *(text for name, text in parts.items() if name in columns)]
    names = [attributes["baseline"], *map(str, compared["algorithm"].values)]
    note = f"{'. '.join(sentences)}.{about_references(names, attributes['baseline'])}"
    if attributes["metric"] not in BY_NAME and (better := attributes.get("better")):
        note = f"{note} {'Closer to 0' if better == 'zero' else better.capitalize()} is better."
    said = [f"{attributes[name]}." for name in ("runs", "differ") if name in attributes]
    if "at_seconds" in attributes:
        said.insert(0, f"Values {when(compared)}.")
    said += [attributes["empty"]] if attributes.get("empty") else []
    return " ".join([note, *said])


def to_text(
    compared: xr.Dataset,
    form: Literal["markdown", "latex", "csv"] = "markdown",
    columns: Sequence[str] = (),
) -> str:
    r"""Formats a comparison as a table. Accuracies and their differences are in percent.

    Args:
        compared: What `fedjax_fair.results.compare` returned.
        form: ``"markdown"``; ``"latex"``, a table with caption for the package booktabs; or
            ``"csv"``, with all digits.
        columns: Columns after the method, in order: ``mean``, ``noise_floor``, ``difference``,
            ``interval``, ``bootstrap``, ``p``, ``effect`` and ``seeds_needed``. By default all; in
            LaTeX mean, difference, interval and p. CSV always has the same columns.

    Returns:
        The text, which ends with a newline. ``*`` marks significant differences (p < 0.05 after
        Holm's correction).

    Raises:
        ValueError: If ``form`` or a column is unknown, or columns are given for CSV.

    Examples:
        >>> import xarray as xr
        >>> from fedjax_fair.results import compare
        >>> accuracy = [[[0.7], [0.9]], [[0.8], [1.1]]]
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {"accuracy_mean_clients": (dims, accuracy, {"units": "1"})},
        ...     {"algorithm": ["fedavg", "divfl"], "round": [10]},
        ... )
        >>> compared = compare(runs, "accuracy_mean_clients")
        >>> print("\n".join(to_text(compared, columns=["mean", "p"]).splitlines()[2:]))
        | method | mean | p Holm |
        |---|---:|---:|
        | fedavg | 80.00 ± 127.06 | - |
        | divfl | 95.00 ± 190.59 | .205 |
    """
    checks.one_of("form", form, ("markdown", "latex", "csv"))
    if form == "csv":
        if columns:
            raise ValueError(f"columns={tuple(columns)}: expected none for CSV, which has all.")
        frame, attributes = _frame(compared), compared.attrs
        frame.insert(0, "metric", attributes["metric"])
        frame.insert(1, "unit", unit_of(compared))
        frame.insert(2, "baseline", escape_control_chars(attributes["baseline"]))
        return to_csv(frame)
    if form == "latex":
        columns = columns or LATEX_COLUMNS
    table = comparison_table(compared, 2, columns)
    return markdown(table) if form == "markdown" else latex(table)


def _frame(compared: xr.Dataset) -> pd.DataFrame:
    """One row per method, the baseline first, in the unit of `unit_of`."""
    import pandas as pd

    names = [*_OF_METHOD, *_OF_DIFFERENCE, *_WITHOUT_UNIT]
    baseline = {name: [float(compared[f"baseline_{name}"])] for name in _OF_METHOD}
    first = pd.DataFrame(baseline, [compared.attrs["baseline"]])
    frame: Any = pd.concat([first, compared[names].to_dataframe()])[names].astype(float)
    if unit_of(compared) == "%":
        frame[_OF_METHOD + _OF_DIFFERENCE] *= 100
    frame.insert(0, "method", [escape_control_chars(name) for name in frame.index])
    return frame


def describe_seeds(compared: xr.Dataset) -> str:
    """Returns the number of seeds of all differences, such as "3 to 5 paired seeds"."""
    seeds = compared["seeds"].values
    seeds = seeds[seeds > 0].astype(int) if (seeds > 0).any() else np.zeros(1, int)
    number = " to ".join(dict.fromkeys(map(str, (seeds.min(), seeds.max()))))
    return f"{number} {'paired ' if compared.attrs['paired'] else ''}seeds"


def unit_of(compared: xr.Dataset) -> str:
    """Returns the unit in which a comparison is shown; ``"1"`` if it has none."""
    unit = compared.attrs["units"] or "1"
    return "%" if is_percent(compared.attrs["metric"], unit) else unit
