"""The page of a run or a sweep: findings, table, charts, and single clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.metrics import BY_NAME
from fedjax_fair.metrics.definitions import HINT
from fedjax_fair.metrics.quantities import ACCURACY, Quantity
from fedjax_fair.report import drawing, forest
from fedjax_fair.report.contents import contents
from fedjax_fair.report.document import (
    collapsible,
    details,
    drawn_document,
    html_table,
    section,
    text,
)
from fedjax_fair.results import (
    combine,
    default_metrics,
    final_metrics,
    noise_floor,
    task_metrics,
)
from fedjax_fair.results.comparison import MIN_SEEDS, compare_means
from fedjax_fair.results.datasets import (
    at_common_time,
    by_model,
    configurations_as_methods,
    has_client_names,
    method_of,
    swept_settings,
    when,
)
from fedjax_fair.results.formats import Table, format_mean
from fedjax_fair.results.tables import (
    add_central,
    clients_table,
    methods_table,
    notes,
    sensitive_group_tables,
    unseen_tables,
)
from fedjax_fair.results.task_metrics import primary

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["page"]

_INTERVALS = "Lines and dots are means over seeds, bands and bars their 95% intervals."


def page(
    dataset: xr.Dataset,
    config: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
) -> str:
    """Renders results as an HTML page that needs no other file and no network.

    Args:
        dataset: Results with the dimension ``algorithm``, or of one method; of a sweep, ten
            configurations are shown.
        config: The configuration, as nested dictionaries.
        environment: Versions and device.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> fedavg = ff.Round(ff.models.logistic(10), ff.selectors.Uniform(10),
        ...                   ff.solvers.SGD(0.1, 10, epochs=1), ff.aggregators.Mean())
        >>> html = page(ff.fit(fedavg, data, rounds=2).dataset)
        >>> html.startswith("<!DOCTYPE html>")
        True
    """
    settings = swept_settings(dataset)
    if not settings and "algorithm" not in dataset.dims:
        name = str(dataset["algorithm"].item()) if "algorithm" in dataset.coords else "run"
        dataset = combine({name: dataset.drop_vars("algorithm", errors="ignore")})
    unseen = unseen_tables(dataset)
    dataset = by_model(dataset, serving=bool(settings))
    shown = configurations_as_methods(dataset, drawing.MAX_CONFIGURATIONS)
    final = at_common_time(shown)
    extended, columns = default_metrics(final)
    quantity = primary(shown)
    floors = noise_floor(extended, [*columns, quantity.dissimilarity])
    numbers = contents(shown, floors[quantity.dissimilarity].values)
    note, fronts = "", []
    if settings:
        from fedjax_fair.analysis.fronts import front, front_table  # Imports training.

        numbers["settings"] = _settings(dataset, settings)
        note = " Of many configurations the best one is partly so by chance."
        of_settings = front_table(front(dataset))
        fronts = [of_settings._replace(note=f"{of_settings.note}{note}")]
    table = add_central(methods_table(extended, columns, floors), extended)
    title = f"Fair federated learning on {dataset.attrs['data']}"
    body = f"""<h1>{text(title)}</h1>
<p><b>{text(_question(dataset, shown, settings))}</b></p>
<p>{text(_configuration(dataset, config or {}))}</p>
{_settings_and_privacy(dataset)}
<p id="finding">{text(_finding(extended, columns, table, floors))}</p>
{html_table(table)}
<p class="note">{text(f"{table.note}{note} {HINT}")}</p>
{_tables(fronts)}
{_forest_plots(extended, columns)}
{_tables(unseen)}
{_tables([clients_table(final)] if has_client_names(final) else [])}
{_tables(sensitive_group_tables(final))}
<div class="legend" id="legend" role="group" aria-label="methods"></div>
{_axis_choice(numbers, is_time="at_seconds" in final.attrs)}
<div class="pictures">{_charts(numbers, quantity, when(final))}</div>
{_speed(numbers, quantity)}
{_explorer(numbers["clients"], quantity)}
{collapsible("All metrics of the last evaluation", html_table(_all_metrics(final)))}
{details({"Configuration": config, "Environment": environment})}"""
    return drawn_document(title, body, numbers, ("charts", "run", "speed", "clients"))


def _tables(tables: list[Table]) -> str:
    """Tables with their titles and notes."""
    return "".join(
        f'<h2>{text(table.title)}</h2>{html_table(table)}<p class="note">{text(table.note)}</p>'
        for table in tables
    )


def _forest_plots(extended: xr.Dataset, columns: dict[str, str]) -> str:
    """Differences to the first method; empty without several methods and seeds."""
    methods = {method_of(str(name)) for name in extended["algorithm"].values}
    if len(methods) < 2 or extended.sizes["seed"] < 2:
        return ""
    plots = "".join(forest.html_rows(compare_means(extended, metric)) for metric in columns)
    how = "Mean differences over paired seeds and their 95% CI. Filled: statistically significant."
    return f'<h2>How large are the differences?</h2><p class="how">{text(how)}</p>{plots}'


def _question(dataset: xr.Dataset, shown: xr.Dataset, settings: list[str]) -> str:
    clients = f"for {dataset.sizes['client']:,} clients?"
    # The words of accuracies do not fit errors and scores.
    best = "most accurate" if primary(dataset) == ACCURACY else "best"
    methods = list(dict.fromkeys(method_of(str(name)) for name in shown["algorithm"].values))
    if settings:
        return (
            f"Which values of {', '.join(settings)} are {best} and fairest {clients} "
            f"Compared: the {len(methods)} {best} configurations."
        )
    if len(methods) == 1:
        how = "accurate" if primary(dataset) == ACCURACY else "good"
        return f"How {how} and how fair is {methods[0]} {clients}"
    return f"Which of {', '.join(methods)} is {best} and fairest {clients}"


def _configuration(dataset: xr.Dataset, config: dict[str, Any]) -> str:
    def setting(section: str, name: str) -> Any:
        return config.get(section, {}).get(name)

    model, rate = setting("model", "name"), setting("solver", "learning_rate")
    parts = [
        dataset.attrs["data"],
        setting("data", "partition"),
        model and f"model {model}",
        rate and f"learning rate {rate}",
        f"{dataset.sizes['slot']} clients per round",
        f"{int(dataset['round'].max()):,} rounds",
        f"{(seeds := dataset.sizes['seed'])} seed" + ("s" if seeds > 1 else ""),
    ]
    return ", ".join(str(part) for part in parts if part) + "."


def _settings_and_privacy(dataset: xr.Dataset) -> str:
    """Paragraphs of all settings with their values, and of `results.tables.notes`."""
    attrs = dataset.attrs
    parts = [f"Settings: {attrs['settings']}"] if "settings" in attrs else []
    parts += notes(dataset)
    return "".join(f'<p class="note">{text(part)}</p>' for part in parts)


def _finding(shown: xr.Dataset, columns: dict[str, str], table: Table, floors: xr.Dataset) -> str:
    """The significant differences, and whether any dissimilarity is above its noise floor."""
    first, *others = map(str, shown["algorithm"].values)
    has_methods = any(method_of(name) != method_of(first) for name in others)
    seeds, sentences = shown.sizes["seed"], []
    if has_methods and seeds < MIN_SEEDS:
        sentences.append(f"Significance of differences needs {MIN_SEEDS} seeds or more.")
    elif has_methods:
        significant = [
            f"{name} ({', '.join(gaps)})"
            for name, *cells in table.rows[1 : 1 + len(others)]
            if (gaps := [
                f"{heading} {cell.splitlines()[1].strip('*')}"
                for heading, cell in zip(table.headings[1:], cells, strict=True)
                if "*" in cell
            ])
        ]  # fmt: skip
        in_unit = "in points" if primary(shown) == ACCURACY else "in the units of the table"
        sentences.append(
            f"Statistically significant differences to {method_of(first)}, {in_unit}: "
            f"{'; '.join(significant)}."
            if significant
            else f"No difference to {method_of(first)} is statistically significant with {seeds} "
            "seeds."
        )
    for spread in (name for name in columns if name.startswith(primary(shown).dissimilarity)):
        values = final_metrics(shown[[spread]])[spread].mean("seed")
        known = floors[spread].notnull() & values.notnull()
        if known.any() and (values <= floors[spread]).where(known, True).all():
            sentences.append(
                "No dissimilarity is above its noise floor: clients have too few test examples to "
                "show that accuracies differ."
            )
    return " ".join(sentences).replace("\n", ", ")


def _all_metrics(shown: xr.Dataset) -> Table:
    """Every summary metric of the last evaluation that has a value."""
    last = final_metrics(shown)
    rows = []
    for name, values in last.items():
        known = BY_NAME.get(str(name))
        about = values.attrs if known is None else values.attrs | {
            "population": known.population, "weighting": known.weighting
        }  # fmt: skip
        # The noise floor of all tables is that of `noise_floor`.
        if name == "client_dissimilarity_noise" or about.get("weighting", "sum") == "sum":
            continue
        if set(values.dims) != {"algorithm", "seed"} or not values.notnull().any():
            continue
        name = str(name)
        unit, digits = task_metrics.unit(last, name) or "1", task_metrics.digits(last, name)
        details = f"in {unit}; {about['population']}; weighting: {about['weighting']}"
        runs = task_metrics.scale(last, name) * values.transpose("algorithm", "seed").values
        description = about.get("long_name") or (known and known.description) or name
        cells = (format_mean(each, digits) for each in runs)
        rows.append((f"{description}\n{details}", *cells))
    return Table("", ("metric", *map(str, last["algorithm"].values)), rows, "")


def _axis_choice(numbers: dict[str, Any], *, is_time: bool) -> str:
    """A choice of the horizontal axis; of two kinds of schedules, virtual time is the first."""
    if "times" not in numbers:
        return ""
    labels = {"": "round"} | {name: axis["label"] for name, axis in numbers["times"].items()}
    chosen = "virtual_time" if is_time else ""
    options = "".join(
        f'<option value="{name}"{" selected" if name == chosen else ""}>{text(label)}</option>'
        for name, label in labels.items()
    )
    choice = f'<label>horizontal axis <select id="choose-axis">{options}</select></label>'
    return f'<div class="controls">{choice}</div>'


def _speed(numbers: dict[str, Any], quantity: Quantity) -> str:
    """Charts of device classes, with a schedule."""
    if "times" not in numbers:
        return ""
    charts = {
        "class_speed": (
            "How well is each class of devices served?",
            f"{quantity.heading[0].upper()}{quantity.heading[1:]}, mean over the clients of a "
            f"class, of the last evaluation until a time. {_INTERVALS}",
        ),
        "class_shares": (
            "Whose results count?",
            "Shares of each class. Bar: of the clients; dot: of the results; ring: of the weights "
            "in updates, with 95% intervals.",
        ),
        "staleness": (
            "How old are the models that clients train?",
            "Updates of the model between sending it and using the result, all seeds.",
        ),
        "tasks": (
            "When do clients train?",
            "The first tasks of the first seed whose end is known, from start to arrival. Pale: "
            "the result does not count.",
        ),
    }
    drawn = "".join(section(name, *chart) for name, chart in charts.items())
    return f'<h1>Speed</h1><div class="pictures wide-charts">{drawn}</div>'


def _charts(numbers: dict[str, Any], quantity: Quantity, last: str) -> str:
    name, is_accuracy = quantity.heading, quantity == ACCURACY
    differ = "do accuracies" if is_accuracy else f"does the {name}"
    since = ", the first at which methods differ" if numbers["start"] else ""
    or_start = "; against a time, from the start" if "times" in numbers else ""
    dotted = (
        " Dotted lines are noise floors after the last round: lower values may be due to small "
        "test sets alone."
        if any(floor is not None for floor in numbers["floor"])
        else ""
    )
    stretched = " The axis is stretched towards 100%." if is_accuracy else ""
    best = "upper" if quantity.better == "higher" else "lower"
    same_scale = " Both axes have the same scale." if numbers["quantity"]["unit"] == "%" else ""
    charts = {
        "settings": (
            "What is the effect of each setting?",
            "A dot is a configuration, a bar the mean of all with this value.",
        ),
        "learning": (
            "How fast does each method learn?",
            f"From round {numbers['start']}{since}{or_start}.{stretched} {_INTERVALS}",
        ),
        "spread": (
            f"How much {differ} of clients differ?",
            f"Mean difference in {name} of two clients.{dotted}",
        ),
        "tradeoff": (
            f"Does fairness cost {'accuracy' if is_accuracy else 'quality'}?",
            f"{last[0].upper()}{last[1:]}; {best} left is best.{same_scale} Methods whose "
            "intervals overlap are not distinguished.",
        ),
        "busy": (
            "Which clients train?",
            "Clients sorted by participation, in each seed; a horizontal line is equal "
            "participation.",
        ),
        "groups": (
            f"Are ground-truth groups {'equally accurate' if is_accuracy else 'served equally'}?",
            f"{name[0].upper()}{name[1:]}, mean over the clients of a group.",
        ),
        "cluster_agreement": (
            "Do clusters match the ground-truth groups?",
            "1: identical; 0: chance, or no clusters.",
        ),
    }
    # Of fewer than two measured clients there is no dissimilarity, and no trade-off.
    drawn = {"learning", "busy", *numbers}
    if any(curve[0] for curve in numbers["dissimilarity"]):
        drawn |= {"spread"}
    else:
        drawn -= {"tradeoff"}
    return "".join(section(name, *charts[name]) for name in charts if name in drawn)


def _explorer(clients: dict[str, Any], quantity: Quantity) -> str:
    if quantity == ACCURACY:
        which = "Which clients have low accuracy?"
    else:
        low = "low" if quantity.better == "higher" else "high"
        which = f"Which clients have a {low} {quantity.heading}?"
    title = text(f"Distribution of {quantity.heading}")
    counts = [(len(clients["ids"]), clients["total"], "clients"),
              (len(clients["seeds"]), clients["allSeeds"], "seeds")]  # fmt: skip
    parts = [f"{num:,} of {total:,} {what}" for num, total, what in counts if num < total]
    shown = f"Shown: {', '.join(parts)}." if parts else ""
    return f"""<div class="wide"><h2>{text(which)}</h2>
<p class="how">{text(shown)}</p>
<div class="controls">
<label>method <select id="choose-method"></select></label>
<label>seed <select id="choose-seed"></select></label>
<label>round <input type="range" id="choose-round" min="0" step="1">
<output id="said-round"></output></label>
</div>
<div class="explorer">
<div><p class="how">All methods and seeds at this round; a dot is the end of the worst 10%.</p>
<div class="chart" id="distribution" data-title="{title}"></div></div>
<div><p class="how">Clients, of this method and seed. Point at one, or use the arrow keys.</p>
<div id="map"></div></div>
<div id="client" class="explorer all" aria-live="polite"></div>
<div class="all"><h2>Which examples do clients have?</h2>
<div class="chart" id="partition" data-title="Partition"></div></div>
</div></div>"""


def _settings(dataset: xr.Dataset, settings: list[str]) -> dict[str, Any]:
    """The mean over clients of every configuration, with indices of its method and values."""
    names = ["algorithm", *settings] if dataset.sizes["algorithm"] > 1 else settings
    name = primary(dataset).mean
    level = task_metrics.scale(dataset, name) * final_metrics(dataset)[name].mean("seed")
    level = level.transpose("algorithm", *settings)
    points = [
        [float(f"{value:.6g}"), list(place[-len(names) :])]
        for place, value in np.ndenumerate(level.values)
        if not np.isnan(value)
    ]
    values = [[str(value) for value in dataset[name].values.tolist()] for name in names]
    shown = ["method" if name == "algorithm" else name for name in names]
    return {"names": shown, "columns": values, "points": points}
