"""The page of a run or a sweep: findings, table, charts, and single clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair import metrics
from fedjax_fair.report.contents import contents
from fedjax_fair.report.document import collapsible, details, document, html_table, section, text
from fedjax_fair.report.drawing import MAX_CONFIGURATIONS, NOISE_FLOOR, is_percent
from fedjax_fair.results import default_metrics, differences, final_metrics
from fedjax_fair.results.datasets import configurations_as_methods, swept_settings
from fedjax_fair.results.intervals import format_mean, format_number
from fedjax_fair.results.tables import Table, methods_table

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["page"]

_INTERVALS = "Lines and dots are means over seeds, bands and bars their 95% intervals."


def page(dataset: xr.Dataset, config: dict[str, Any], environment: dict[str, Any]) -> str:
    """Renders results as an HTML page that needs no other file and no network.

    Args:
        dataset: Results of a run with the dimension ``algorithm``, or of a sweep, of which the ten
            most accurate configurations are compared.
        config: The configuration, as nested dictionaries.
        environment: Versions and device.

    Returns:
        The HTML of the page.
    """
    settings = swept_settings(dataset)
    shown = configurations_as_methods(dataset, MAX_CONFIGURATIONS)
    numbers = contents(shown)
    note = ""
    if settings:
        numbers["settings"] = _settings(dataset, settings)
        note = " Of many configurations the best one is partly so by chance."
    extended, columns = default_metrics(shown)
    table = methods_table(extended, columns)
    title = f"Fair federated learning on {dataset.attrs['data']}"
    body = f"""<h1>{text(title)}</h1>
<p><b>{text(_question(dataset, shown, settings))}</b></p>
<p>{text(_configuration(dataset, config))}</p>
<p id="finding">{text(_finding(extended, columns))}</p>
{html_table(table)}
<p class="note">{text(table.note + note)}</p>
<div class="legend" id="legend" role="group" aria-label="methods"></div>
<div class="pictures">{_charts(numbers)}</div>
{_explorer(numbers["clients"])}
{collapsible("All metrics of the last evaluation", html_table(_all_metrics(shown)))}
{details(config, environment)}"""
    return document(title, body, numbers, ("charts", "run", "clients"))


def _question(dataset: xr.Dataset, shown: xr.Dataset, settings: list[str]) -> str:
    clients = f"for {dataset.sizes['client']:,} clients?"
    methods = [str(name) for name in shown["algorithm"].values]
    if settings:
        return (
            f"Which values of {', '.join(settings)} are most accurate and fairest {clients} "
            f"Compared: the {len(methods)} most accurate configurations."
        )
    if len(methods) == 1:
        return f"How accurate and how fair is {methods[0]} {clients}"
    return f"Which of {', '.join(methods)} is most accurate and fairest {clients}"


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


def _finding(shown: xr.Dataset, columns: dict[str, str]) -> str:
    """The significant differences, and whether any dissimilarity is above its noise floor."""
    first, *others = map(str, shown["algorithm"].values)
    sentences = []
    if shown.sizes["seed"] == 1:
        sentences.append("One seed: the significance of differences is unknown.")
    elif others:
        significant: dict[str, list[str]] = {}
        for metric, heading in columns.items():
            if metric.startswith(("accuracy_mean", "client_dissimilarity")):
                gaps = differences(100 * final_metrics(shown[[metric]])[metric], first)
                for name in others:
                    if gaps["p"].sel(algorithm=name) < 0.05:
                        point = format_number(float(gaps["difference"].sel(algorithm=name)))
                        significant.setdefault(name, []).append(
                            f"{heading} {point}".replace("\n", ", ")
                        )
        listed = "; ".join(f"{name} ({', '.join(gaps)})" for name, gaps in significant.items())
        sentences.append(
            f"Statistically significant differences to {first}, in points: {listed}."
            if listed
            else f"No difference to {first} is statistically significant with "
            f"{shown.sizes['seed']} seeds."
        )
    measures = final_metrics(shown)[["client_dissimilarity", NOISE_FLOOR]].mean("seed")
    spread, floor = (values.values for values in measures.values())
    known = ~np.isnan(floor)
    if known.any() and (spread[known] <= floor[known]).all():
        sentences.append(
            "No dissimilarity is above its noise floor: clients have too few test examples to show "
            "that accuracies differ."
        )
    return " ".join(sentences)


def _all_metrics(shown: xr.Dataset) -> Table:
    """Every summary metric of the last evaluation."""
    last = final_metrics(shown)
    rows = []
    for metric in metrics.ALL_SUMMARIES:
        if metric.name not in last:
            continue
        percent = is_percent(last[metric.name])
        scale, unit = (100, "%") if percent else (1, metric.unit)
        digits = 1 if percent or unit == "clients" else 3
        values = scale * last[metric.name].transpose("algorithm", "seed").values
        details = f"in {unit}; {metric.population}; weighting: {metric.weighting}"
        cells = (format_mean(runs, digits) for runs in values)
        rows.append((f"{metric.description}\n{details}", *cells))
    return Table("", ("metric", *map(str, last["algorithm"].values)), rows, "")


def _charts(numbers: dict[str, Any]) -> str:
    charts = {
        "settings": (
            "What is the effect of each setting?",
            "A dot is a configuration, a bar the mean of all with this value.",
        ),
        "learning": (
            "How fast does each method learn?",
            f"From round {numbers['start']}, the first at which methods differ. The axis is "
            f"stretched towards 100%. {_INTERVALS}",
        ),
        "spread": (
            "How much do accuracies of clients differ?",
            "Mean difference in accuracy of two clients. Dotted lines are noise floors: lower "
            "values may be due to small test sets alone.",
        ),
        "tradeoff": (
            "Does fairness cost accuracy?",
            "After the last round; upper left is best. Both axes have the same scale. Methods "
            "whose intervals overlap are not distinguished.",
        ),
        "busy": (
            "Which clients train?",
            "Clients sorted by participation, in each seed; a horizontal line is equal "
            "participation.",
        ),
        "groups": (
            "Are ground-truth groups equally accurate?",
            "Accuracy, mean over the clients of a group.",
        ),
        "cluster_agreement": (
            "Do clusters match the ground-truth groups?",
            "1: identical; 0: chance, or no clusters.",
        ),
    }
    optional = {"settings", "groups", "cluster_agreement"}
    shown = (name for name in charts if name not in optional or name in numbers)
    return "".join(section(name, *charts[name]) for name in shown)


def _explorer(clients: dict[str, Any]) -> str:
    counts = [(len(clients["ids"]), clients["total"], "clients"),
              (len(clients["seeds"]), clients["allSeeds"], "seeds")]  # fmt: skip
    parts = [f"{num:,} of {total:,} {what}" for num, total, what in counts if num < total]
    shown = f"Shown: {', '.join(parts)}." if parts else ""
    return f"""<div class="wide"><h2>Which clients have low accuracy?</h2>
<p class="how">{text(shown)}</p>
<div class="controls">
<label>method <select id="choose-method"></select></label>
<label>seed <select id="choose-seed"></select></label>
<label>round <input type="range" id="choose-round" min="0" step="1">
<output id="said-round"></output></label>
</div>
<div class="explorer">
<div><p class="how">All methods and seeds at this round; a dot is the end of the worst 10%.</p>
<div class="chart" id="distribution" data-title="Distribution of accuracy"></div></div>
<div><p class="how">Clients by id, of this method and seed. Point at one, or use the arrow keys.</p>
<div id="map"></div></div>
<div id="client" class="explorer all" aria-live="polite"></div>
<div class="all"><h2>Which examples do clients have?</h2>
<div class="chart" id="partition" data-title="Partition"></div></div>
</div></div>"""


def _settings(dataset: xr.Dataset, settings: list[str]) -> dict[str, Any]:
    """The accuracy of every configuration, with indices of its method and values."""
    names = ["algorithm", *settings] if dataset.sizes["algorithm"] > 1 else settings
    level = 100 * final_metrics(dataset)["accuracy_mean_clients"].mean("seed")
    level = level.transpose("algorithm", *settings)
    points = [
        [round(float(accuracy), 3), list(place[-len(names) :])]
        for place, accuracy in np.ndenumerate(level.values)
        if not np.isnan(accuracy)
    ]
    values = [[str(value) for value in dataset[name].values.tolist()] for name in names]
    shown = ["method" if name == "algorithm" else name for name in names]
    return {"names": shown, "columns": values, "points": points}
