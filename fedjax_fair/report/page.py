"""A run on one self-contained HTML page: what was compared, how it went, what it was run with."""

from __future__ import annotations

import base64
import html
import io
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_fair import metrics, results
from fedjax_fair.report import groups, plots, selection

if TYPE_CHECKING:
    from collections.abc import Callable

    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["page", "standard_figures"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.9rem 0.2rem 0; text-align: left; border-bottom: 1px solid #ddd; }
td.number, th.number { text-align: right; white-space: nowrap; }
figure { margin: 2rem 0; }
img { max-width: 100%; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; }
"""


class _Standard(NamedTuple):
    """A figure that every run gets whose results hold the variable it needs."""

    draw: Callable[[xr.Dataset], Figure]
    caption: str
    needs: str = "accuracy_mean_clients"


_FIGURES = {
    "learning_curves": _Standard(
        plots.learning_curves,
        "Test accuracy, mean over clients, against communication rounds.",
    ),
    "dissimilarity": _Standard(
        lambda dataset: plots.learning_curves(dataset, "client_dissimilarity"),
        "Dissimilarity: mean difference of test accuracy between two clients.",
    ),
    "accuracy_distribution": _Standard(
        plots.accuracy_distribution,
        "How test accuracy is distributed over clients after the last round.",
    ),
    "group_curves": _Standard(
        groups.group_curves,
        "Test accuracy of each planted group, mean over its clients.",
        needs="group_accuracy",
    ),
    "agreement": _Standard(
        groups.agreement,
        "How well the clusters found match the planted groups: mutual information, 1 is perfect.",
        needs="aggregation_nmi",
    ),
    "tradeoff": _Standard(
        selection.tradeoff,
        "Accuracy against dissimilarity after the last round: upper left is better on both.",
    ),
    "participation": _Standard(
        selection.participation,
        "Who trained in which round, in the first seed: clients by rounds.",
    ),
    "participation_lorenz": _Standard(
        selection.participation_lorenz,
        "How evenly participation is shared out between clients.",
    ),
    "partition": _Standard(
        plots.partition,
        "Who owns what: clients by classes, dots as large as the number of examples.",
    ),
}


def standard_figures(dataset: xr.Dataset) -> dict[str, Figure]:
    """The figures that every run gets, by name.

    Args:
        dataset: Results of one or more methods.

    Returns:
        Learning curves, the distribution of accuracy over clients, who trained, and who owns what;
        where clients have planted groups, how these are served and whether they were found.
    """
    return {
        name: figure.draw(dataset) for name, figure in _FIGURES.items() if figure.needs in dataset
    }


def page(
    dataset: xr.Dataset,
    figures: dict[str, Figure],
    config: dict[str, Any],
    environment: dict[str, Any],
) -> str:
    """Writes results as an HTML page that needs no other file.

    Args:
        dataset: Results with the dimension ``algorithm``.
        figures: What ``standard_figures`` drew of them.
        config: The configuration of the run, as nested dictionaries.
        environment: Versions and device.

    Returns:
        The page: the last round of every method, figures, configuration and environment.
    """
    title = html.escape(f"Fair federated learning on {dataset.attrs['data']}")
    seeds, clients = dataset.sizes["seed"], dataset.sizes["client"]
    rounds = int(dataset["round"].max())
    spread = " ± their standard deviation" if seeds > 1 else ""
    pictures = "".join(_figure(name, figure) for name, figure in figures.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>
<body>
<h1>{title}</h1>
<p>{clients:,} clients, {rounds:,} rounds, {seeds} seed{"s" if seeds > 1 else ""}. All numbers are
of the last evaluated round: the mean over seeds{spread}. Fractions are not in percent.</p>
{_table(dataset)}
{pictures}
<details><summary>Configuration</summary><pre>{_json(config)}</pre></details>
<details><summary>Environment</summary><pre>{_json(environment)}</pre></details>
</body>
</html>
"""


def _table(dataset: xr.Dataset) -> str:
    last = results.final(dataset)
    names = [str(name) for name in last["algorithm"].values]
    head = "".join(f'<th class="number">{html.escape(name)}</th>' for name in names)
    measured = [m for m in metrics.ALL_SUMMARIES if m.name in last]
    rows = "".join(_row(last, metric) for metric in measured)
    return (
        f"<table><tr><th>Metric</th><th>Unit</th><th>Population</th><th>Weighting</th>{head}</tr>"
        f"{rows}</table>"
    )


def _row(last: xr.Dataset, metric: Any) -> str:
    described = (metric.description, metric.unit, metric.population, metric.weighting)
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in described)
    values = last[metric.name].transpose("algorithm", "seed").values
    return f"<tr>{cells}{''.join(_number(row) for row in values)}</tr>"


def _number(values: np.ndarray) -> str:
    if np.isnan(values).any():
        return '<td class="number">-</td>'
    spread = f" ± {values.std(ddof=1):.4f}" if values.size > 1 else ""
    return f'<td class="number">{values.mean():.4f}{spread}</td>'


def _figure(name: str, figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    caption = html.escape(_FIGURES[name].caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{encoded}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _json(values: dict[str, Any]) -> str:
    return html.escape(json.dumps(values, indent=2, default=str))
