"""The page of a run or a sweep: the question, the answer, pictures of it, and every client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair import results
from fedjax_fair.report.comparison import all_metrics, compared
from fedjax_fair.report.contents import contents
from fedjax_fair.report.document import collapsible, details, document, section, text
from fedjax_fair.report.drawing import MOST_POINTS, points_as_methods, settings_of

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["page"]

_INTERVALS = "Lines and dots are means over seeds, bands and bars 95 % intervals of them."


def page(dataset: xr.Dataset, config: dict[str, Any], environment: dict[str, Any]) -> str:
    """Writes results as an HTML page that needs no other file and no network.

    Args:
        dataset: Results of a run with the dimension ``algorithm``, or of a sweep, of which the ten
            most accurate points are compared.
        config: The configuration, as nested dictionaries.
        environment: Versions and device.

    Returns:
        The page: question, configuration and finding in three lines, the comparison of methods,
        pictures, and a part in which single clients are looked at.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> from fedjax_fair import metrics
        >>> over, numbers = ("algorithm", "seed", "round"), np.ones((1, 2, 3, 4))
        >>> run = xr.Dataset(
        ...     {one.name: (over, numbers[..., 0]) for one in metrics.SUMMARIES}
        ...     | {name: ((*over, "client"), numbers)
        ...        for name in ("test_accuracy", "participation")}
        ...     | {name: (("client", "class"), np.ones((4, 2)))
        ...        for name in ("train_examples", "test_examples")}
        ...     | {"cohort_clients": (("algorithm", "seed", "training_round", "slot"), numbers)},
        ...     {"algorithm": ["fedavg"], "seed": [0, 1], "round": [0, 1, 2]},
        ...     {"data": "my data"},
        ... )
        >>> "How well, and how evenly, does fedavg serve 4 clients?" in page(run, {}, {})
        True
    """
    settings = settings_of(dataset)
    shown = points_as_methods(dataset, MOST_POINTS)
    numbers = contents(shown)
    if settings:
        numbers["settings"] = _settings(dataset, settings)
    found = compared(shown)
    title = f"Fair federated learning on {dataset.attrs['data']}"
    body = f"""<h1>{text(title)}</h1>
<p><b>{text(_question(dataset, shown, settings))}</b></p>
<p>{text(_configuration(dataset, config))}</p>
<p id="finding">{text(found.finding)}</p>
{found.table}
<p class="note">{text(_key(shown, sweep=bool(settings)))}</p>
<div class="legend" id="legend" role="group" aria-label="methods"></div>
<div class="pictures">{"".join(_pictures(numbers))}</div>
{_explorer(numbers["clients"])}
{collapsible("All metrics of the last evaluation", all_metrics(shown))}
{details(config, environment)}"""
    return document(title, body, numbers, ("charts", "run", "clients"))


def _question(dataset: xr.Dataset, shown: xr.Dataset, settings: list[str]) -> str:
    clients = f"{dataset.sizes['client']:,} clients"
    methods = [str(name) for name in shown["algorithm"].values]
    if settings:
        return (
            f"Which values of {', '.join(settings)} serve {clients} best, and most evenly? "
            f"Compared: the {len(methods)} most accurate points."
        )
    if len(methods) == 1:
        return f"How well, and how evenly, does {methods[0]} serve {clients}?"
    return f"Which of {', '.join(methods)} serves {clients} best, and most evenly?"


def _configuration(dataset: xr.Dataset, config: dict[str, Any]) -> str:
    def given(section: str, name: str) -> Any:
        return config.get(section, {}).get(name)

    seeds, rounds = dataset.sizes["seed"], int(dataset["round"].max())
    parts = [
        str(dataset.attrs["data"]),
        given("data", "partition"),
        given("model", "name") and f"model {given('model', 'name')}",
        given("solver", "learning_rate") and f"learning rate {given('solver', 'learning_rate')}",
        f"{dataset.sizes['slot']} clients a round",
        f"{rounds:,} rounds",
        f"{seeds} seed" + ("s" if seeds > 1 else ""),
    ]
    return ", ".join(str(part) for part in parts if part) + "."


def _key(shown: xr.Dataset, sweep: bool) -> str:
    """How to read the table."""
    said = ["In percent, after the last round."]
    if sweep:
        said.append("The best of many points is the best in part by chance.")
    if shown.sizes["seed"] > 1:
        said.append("±: half of the 95 % interval of the mean over seeds (Student's t).")
        if shown.sizes["algorithm"] > 1:
            first = shown["algorithm"].values[0]
            said.append(
                f"Below: difference to {first} over paired seeds with its 95 % interval; * is "
                "beyond chance, p < 0.05 after Holm's correction for several methods."
            )
    said.append(
        "Noise floor: the dissimilarity that finite test sets alone would show between clients "
        "that are served alike."
    )
    return " ".join(said)


def _pictures(numbers: dict[str, Any]) -> list[str]:
    drawn = []
    if "settings" in numbers:
        drawn.append(
            section(
                "settings",
                "What does each setting change?",
                "A dot is a point of the sweep, a bar the mean of all with this value.",
            )
        )
    drawn += [
        section(
            "learning",
            "How fast does each method learn?",
            f"From round {numbers['start']}, the first that tells methods apart. The axis is "
            f"stretched towards 100 %. {_INTERVALS}",
        ),
        section(
            "spread",
            "Are some clients served worse than others?",
            "Mean difference of accuracy between two clients. Dotted lines are noise floors: what "
            "is not above its own may be due to small test sets alone.",
        ),
        section(
            "tradeoff",
            "Does evenness cost accuracy?",
            "After the last round; further up is more accurate, further left more even. A point is "
            "as long on both axes. Where intervals overlap, methods are not distinguished.",
        ),
        section(
            "busy",
            "Who trains?",
            "Each seed's clients in the order of how often they trained; a level line is equal "
            "participation.",
        ),
    ]
    if "groups" in numbers:
        drawn.append(
            section(
                "groups",
                "Are the planted groups served alike?",
                "Accuracy, mean over the clients of a group.",
            )
        )
    if "cluster_agreement" in numbers:
        drawn.append(
            section(
                "cluster_agreement",
                "Are the planted groups found?",
                "How well found clusters match them: 1 is perfect, 0 is chance or no clusters.",
            )
        )
    return drawn


def _explorer(clients: dict[str, Any]) -> str:
    kept, left_out = len(clients["seeds"]), []
    if len(clients["ids"]) < clients["total"]:
        left_out.append(f"{len(clients['ids']):,} of {clients['total']:,} clients")
    if kept < clients["allSeeds"]:
        left_out.append(f"{kept} of {clients['allSeeds']} seeds")
    shown = f"Shown: {', '.join(left_out)}." if left_out else ""
    return f"""<div class="wide"><h2>Which clients are left behind?</h2>
<p class="how">{text(shown)}</p>
<div class="controls">
<label>method <select id="choose-method"></select></label>
<label>seed <select id="choose-seed"></select></label>
<label>round <input type="range" id="choose-round" min="0" step="1">
<output id="said-round"></output></label>
</div>
<div class="explorer">
<div><p class="how">All methods and seeds at this round; a dot is where the worst tenth ends.</p>
<div class="chart" id="distribution"></div></div>
<div><p class="how">Clients by their number, of this method and seed. Point at one, or use the arrow
keys.</p>
<div id="map"></div></div>
<div id="client" class="explorer all" aria-live="polite"></div>
<div class="all"><h2>Who owns what?</h2><div class="chart" id="partition"></div></div>
</div></div>"""


def _settings(dataset: xr.Dataset, settings: list[str]) -> dict[str, Any]:
    """The accuracy of every point, and the number of its method and of each of its values."""
    names = ["algorithm", *settings] if dataset.sizes["algorithm"] > 1 else settings
    level = 100 * results.final_metrics(dataset)["accuracy_mean_clients"].mean("seed")
    level = level.transpose("algorithm", *settings)
    points = [
        [round(float(accuracy), 3), list(place[-len(names) :])]
        for place, accuracy in np.ndenumerate(level.values)
        if not np.isnan(accuracy)
    ]
    values = [[str(value) for value in dataset[name].values.tolist()] for name in names]
    shown = ["method" if name == "algorithm" else name for name in names]
    return {"names": shown, "columns": values, "points": points}
