"""One published claim for each of seven methods, with endpoints that are fixed before the runs.

    python -m experiments.reproduction.methods --tfds-dir FOLDER

Tunes the step size of every method on validation examples, trains what the files of runs lack, then
writes the tables. docs/reproduction/methods.md states the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from sklearn.metrics import adjusted_rand_score

from experiments.common import append_rows, markdown_table, options_of
from experiments.reproduction import forests, runs
from fedjax_fair.app.build import build
from fedjax_fair.app.config import (
    Config,
    DataConfig,
    ModelConfig,
    SelectorConfig,
    SolverConfig,
    TrainingConfig,
)
from fedjax_fair.data import ClientExamples, FederatedData
from fedjax_fair.metrics import paired
from fedjax_fair.training.fit import fit_batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (0.01, 0.03, 0.1, 0.3)
TUNING_SEEDS, SEEDS = (700, 701), (710, 711, 712, 713, 714)
TUNING_ROUNDS, ROUNDS, EVAL_EVERY = 50, 100, 2
MARGIN = 1.0
"""Points by which the accuracy of a fairer method may be lower."""
CHOICE_ROUNDS, MIN_AGREEMENT = 10, 0.95
"""Last rounds whose choices of models count, and the least agreement with the rotations."""

_BASE = Config(
    data=DataConfig(name="mnist", partition="classes_per_client", partition_per_seed=True),
    model=ModelConfig(name="mlp", hidden=(64,)),
    solver=SolverConfig(batch_size=20, epochs=5),
    selector=SelectorConfig(cohort_size=10),
    training=TrainingConfig(seeds=SEEDS, eval_every=EVAL_EVERY),
)


class Federation(NamedTuple):
    """A federated dataset of the study.

    Attributes:
        config: Data, partition, network and local training.
        methods: Methods that are trained on it.
        is_rotated: Whether client ``i`` sees its images rotated by ``i % 4`` quarter turns.
    """

    config: Config
    methods: tuple[str, ...]
    is_rotated: bool = False


FEDERATIONS = {
    "two classes": Federation(
        replace(_BASE, data=replace(_BASE.data, clients=100, classes_per_client=2)),
        (
            "fedavg", "scaffold", "feddyn", "fedfv", "propfair", "ditto", "fedrep", "fine_tuned",
            "local",
        ),
    ),
    "rotations": Federation(
        replace(
            _BASE,
            data=DataConfig(name="mnist", partition="iid", clients=100),
            selector=SelectorConfig(cohort_size=20),
        ),
        ("fedavg", "ifca:num_models=4", "local"),
        is_rotated=True,
    ),
}  # fmt: skip


class Endpoint(NamedTuple):
    """A difference between two methods, paired by seed.

    Attributes:
        claim: The method whose claim it belongs to.
        federation: The federated dataset.
        text: What is compared.
        column: Column of the runs of the method, after the last round; ``"rounds"`` is the number
            of rounds until the target.
        reference: Method that it is compared with.
        sign: 1 if the claim is a positive difference, -1 for a negative one, 0 if the claim is that
            it is above ``-MARGIN``.
        reference_column: Column of the reference, by default the same.
    """

    claim: str
    federation: str
    text: str
    column: str
    reference: str
    sign: int
    reference_column: str | None = None


_GLOBAL, _PERSONAL = "accuracy_mean_clients", "personalized_accuracy_mean_clients"
_SPREAD, _WORST = "accuracy_standard_deviation", "accuracy_worst_10pct"
ENDPOINTS = (
    Endpoint("scaffold", "two classes", "rounds to the target", "rounds", "fedavg", -1),
    Endpoint("feddyn", "two classes", "rounds to the target", "rounds", "fedavg", -1),
    Endpoint("feddyn", "two classes", "rounds to the target", "rounds", "scaffold", -1),
    Endpoint("ditto", "two classes", "accuracy", _PERSONAL, "fedavg", 1, _GLOBAL),
    Endpoint(
        "ditto", "two classes", "spread over clients", f"personalized_{_SPREAD}", "fedavg", -1,
        _SPREAD,
    ),
    Endpoint("fedrep", "two classes", "accuracy", _PERSONAL, "fedavg", 1, _GLOBAL),
    Endpoint("fedrep", "two classes", "accuracy", _PERSONAL, "fine_tuned", 1),
    Endpoint("fedrep", "two classes", "accuracy", _PERSONAL, "local", 1),
    Endpoint("ifca:num_models=4", "rotations", "accuracy", _PERSONAL, "fedavg", 1, _GLOBAL),
    Endpoint("ifca:num_models=4", "rotations", "accuracy", _PERSONAL, "local", 1),
    Endpoint("fedfv", "two classes", "spread over clients", _SPREAD, "fedavg", -1),
    Endpoint("fedfv", "two classes", "accuracy", _GLOBAL, "fedavg", 0),
    Endpoint("propfair", "two classes", "accuracy of the worst tenth", _WORST, "fedavg", 1),
    Endpoint("propfair", "two classes", "accuracy", _GLOBAL, "fedavg", 0),
)  # fmt: skip
COLUMNS = tuple(
    dict.fromkeys(
        name
        for endpoint in ENDPOINTS
        for name in (endpoint.column, endpoint.reference_column or endpoint.column)
        if name != "rounds"
    )
)


def main() -> None:
    parser = options_of("One claim for each of seven methods.", reads_tfds=True)
    options = parser.parse_args()
    files = {part: options.output / f"methods-{part}.csv" for part in ("tuning", "runs")}
    if not options.only_write:
        for name in FEDERATIONS:
            tune(name, files["tuning"], options.tfds_dir)
            train(name, files, options.tfds_dir)
    write_tables(files["runs"])


def _is_done(known: Any, federation: str, method: str) -> bool:
    is_method = (known["algorithm"] == method) & (known["federation"] == federation)
    return len(known) > 0 and bool(is_method.any())


def _append(known: Any, rows: Any, file: Path) -> None:
    append_rows(known if len(known) else pd.DataFrame(), rows, file)


def _load(file: Path) -> Any:
    """Reads a file of runs, which need not exist."""
    known: Any = runs.load(file)
    return known if "federation" in known else known.assign(federation="")


def tune(name: str, file: Path, data_dir: str | None) -> None:
    """Trains every method with every step size, and appends validation accuracies."""
    federation = FEDERATIONS[name]
    for method in federation.methods:
        known = _load(file)
        if _is_done(known, name, method):
            continue
        rows = []
        for rate in RATES:
            done = _fit(federation, method, rate, TUNING_SEEDS, TUNING_ROUNDS, data_dir)
            accuracy = done[_validation_column(done)].isel(round=-1)
            for seed in TUNING_SEEDS:
                rows.append([name, method, rate, seed, float(accuracy.sel(seed=seed).mean())])
        columns = ["federation", "algorithm", "learning_rate", "seed", "validation_accuracy"]
        _append(known, pd.DataFrame(rows, columns=columns), file)
        print(f"{name}, {method}: tuned", flush=True)


def train(name: str, files: dict[str, Path], data_dir: str | None) -> None:
    """Trains every method with its step size, and appends one row per evaluation."""
    federation, rates = FEDERATIONS[name], chosen_rates(_load(files["tuning"]))
    for method in federation.methods:
        known = _load(files["runs"])
        if _is_done(known, name, method):
            continue
        done = _fit(federation, method, rates[name, method], SEEDS, ROUNDS, data_dir)
        rows: Any = done[[column for column in COLUMNS if column in done]].to_dataframe()
        rows = rows.reset_index()[["seed", "round", *(c for c in COLUMNS if c in done)]]
        if "aggregation_cluster" in done:
            rows["agreement"] = rows["seed"].map({seed: agreement(done, seed) for seed in SEEDS})
        rows.insert(0, "algorithm", method)
        rows.insert(0, "federation", name)
        _append(known, rows, files["runs"])
        print(f"{name}, {method}: trained", flush=True)


def agreement(done: xr.Dataset, seed: int) -> float:
    """Returns the adjusted Rand index of rotations and models that participants chose."""
    last = done.sel(seed=seed).isel(training_round=slice(-CHOICE_ROUNDS, None))
    rotations = last["cohort_clients"].values.ravel() % 4
    return float(adjusted_rand_score(rotations, last["aggregation_cluster"].values.ravel()))


def _fit(
    federation: Federation,
    method: str,
    rate: float,
    seeds: Sequence[int],
    rounds: int,
    data_dir: str | None,
) -> xr.Dataset:
    config = replace(
        federation.config,
        methods=(method,),
        data=replace(federation.config.data, dir=data_dir, validation_fraction=0.1),
        solver=replace(federation.config.solver, learning_rate=rate),
        training=replace(federation.config.training, seeds=tuple(seeds), rounds=rounds),
    )
    experiment = build(config)
    if federation.is_rotated:
        experiment = build(config, rotated(experiment.data))
    return fit_batch(
        [experiment.rounds[method]] * len(seeds),
        experiment.data,
        rounds=rounds,
        seeds=seeds,
        eval_every=EVAL_EVERY if rounds == ROUNDS else rounds,
        train_loss=False,
        mesh=experiment.mesh,
    )


def rotated(data: FederatedData) -> FederatedData:
    """Rotates the images of client ``i`` by ``i % 4`` quarter turns, which are its group."""
    groups: Any = (np.arange(data.num_clients) % 4).astype(np.int32)

    def turn(part: ClientExamples) -> ClientExamples:
        owners = np.repeat(np.arange(data.num_clients), part.sizes)
        features = np.array(part.features[part.order])
        for turns in range(1, 4):
            is_turned = groups[owners] == turns
            features[is_turned] = np.rot90(features[is_turned], turns, axes=(1, 2))
        order: Any = np.arange(len(owners), dtype=np.int32)
        labels: Any = np.asarray(part.labels)[part.order]
        return part._replace(features=features, labels=labels, order=order)

    return data.map_parts(turn)._replace(groups=groups)


def _validation_column(done: xr.Dataset) -> str:
    """The accuracy to tune by: that of personalized models where there are any."""
    name = "validation_accuracy_mean_clients"
    personalized = f"personalized_{name}"
    return personalized if personalized in done else name


def chosen_rates(tuning: Any) -> dict[tuple[str, str], float]:
    """Returns the step size with the highest mean validation accuracy, by federation and method."""
    keys = ["federation", "algorithm", "learning_rate"]
    means = tuning.groupby(keys)["validation_accuracy"].mean()
    best = means.groupby(level=keys[:2]).idxmax()
    return {(federation, method): rate for federation, method, rate in best}


def target(tuning: Any) -> float:
    """Returns the accuracy to reach: that of FedAvg in tuning, at its step size."""
    rows = tuning.query("federation == 'two classes' and algorithm == 'fedavg'")
    return rows.groupby("learning_rate")["validation_accuracy"].mean().max()


def values_of(measured: Any, federation: str, method: str, column: str, goal: float) -> np.ndarray:
    """Returns an endpoint's value of each seed: in points, or in rounds."""
    rows = measured.query("federation == @federation and algorithm == @method")
    table = rows.pivot(index="round", columns="seed", values=column or _GLOBAL)
    if not column:
        is_reached = table >= goal
        # A run that never reaches the target counts with one evaluation more than there are.
        return is_reached.idxmax().where(is_reached.any(), ROUNDS + EVAL_EVERY).astype(float).values
    return 100 * table.loc[ROUNDS].values


def summarize(measured: Any, tuning: Any) -> pd.DataFrame:
    """Computes one row per endpoint, with Holm's adjustment over all of them."""
    goal, rows = target(tuning), []
    for endpoint in ENDPOINTS:
        names = [endpoint.column, endpoint.reference_column or endpoint.column]
        first, second = (
            values_of(measured, endpoint.federation, method, "" if name == "rounds" else name, goal)
            for method, name in zip((endpoint.claim, endpoint.reference), names, strict=True)
        )
        # Non-inferiority: the difference to the margin is positive.
        margin = 0.0 if endpoint.sign else MARGIN
        gap = paired.interval(first - second)
        test = paired.interval(first - second + margin)
        rows.append(
            {
                "claim": endpoint.claim,
                "federation": endpoint.federation,
                "endpoint": endpoint.text,
                "reference": endpoint.reference,
                "expected": {1: "higher", -1: "lower", 0: f"> -{MARGIN:g}"}[endpoint.sign],
                "method": first.mean(),
                "other": second.mean(),
                "low": gap.low,
                "mean": gap.mean,
                "high": gap.high,
                "p": test.p,
                "has_sign": bool(np.sign(test.mean) == (endpoint.sign or 1)),
            }
        )
    table: Any = pd.DataFrame(rows)
    table["p_holm"] = paired.holm(table["p"].tolist())
    is_significant = table["p_holm"] < 0.05
    table["verdict"] = np.select(
        [is_significant & table["has_sign"], is_significant], ["reproduced", "refuted"], "undecided"
    )
    return pd.concat([table.drop(columns="has_sign"), _agreements(measured)], ignore_index=True)


def _agreements(measured: Any) -> pd.DataFrame:
    """Returns one row for IFCA, with the range over seeds in place of an interval."""
    values = 100 * measured.query("round == @ROUNDS")["agreement"].dropna()
    row = {
        "claim": "ifca:num_models=4",
        "federation": "rotations",
        "endpoint": "adjusted Rand index of models and rotations, range over runs",
        "reference": "-",
        "expected": f">= {100 * MIN_AGREEMENT:g}",
        "method": values.mean(),
        "low": values.min(),
        "mean": values.mean(),
        "high": values.max(),
        "verdict": "reproduced" if values.min() >= 100 * MIN_AGREEMENT else "refuted",
    }
    return pd.DataFrame([row])


def write_tables(file: Path) -> None:
    """Writes tables of endpoints, and of means of all methods, next to the file of runs."""
    measured = _load(file)
    tuning = _load(file.with_name("methods-tuning.csv"))
    table = summarize(measured, tuning)
    stem = file.with_name("methods-endpoints")
    table.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.4g")
    stem.with_suffix(".md").write_text(markdown(table, measured, tuning))
    for units, drawn in figures(table).items():
        drawn.savefig(file.with_name(f"methods-{units}.png"), dpi=90)
    print(stem.with_suffix(".md").read_text())


def figures(table: Any) -> dict[str, Figure]:
    """Draws the differences of all endpoints with a reference, by their unit."""
    own = table[table["reference"] != "-"]
    named = pd.DataFrame({
        "method": own["claim"] + " \N{MINUS SIGN} " + own["reference"] + ": " + own["endpoint"],
        "difference": own["mean"], "low": own["low"], "high": own["high"], "p": own["p_holm"],
        "seeds": len(SEEDS),
    })  # fmt: skip
    in_rounds = own["endpoint"].str.startswith("rounds")
    return {
        units: forests.draw({"all endpoints": rows}, "the reference", units=units)
        for units, rows in (("points", named[~in_rounds]), ("rounds", named[in_rounds]))
    }


def markdown(table: Any, measured: Any, tuning: Any) -> str:
    """Formats the tables as Markdown."""
    endpoints = [
        [
            row["claim"], row["endpoint"], row["reference"], row["expected"],
            f"{row['method']:.1f}", _or_dash(row["other"], ".1f"),
            f"{row['mean']:+.1f} ({row['low']:+.1f} to {row['high']:+.1f})",
            "< .001" if row["p_holm"] < 0.001 else _or_dash(row["p_holm"], ".3f").removeprefix("0"),
            row["verdict"],
        ]
        for row in table.to_dict("records")
    ]  # fmt: skip
    headings = (
        "method", "endpoint", "compared with", "expected difference", "method's value",
        "other value", "difference (95% CI)", "Holm-adjusted p", "verdict",
    )  # fmt: skip
    rates, last = chosen_rates(tuning), measured.query("round == @ROUNDS")
    means = [
        [
            federation, method, f"{rates[federation, method]:g}",
            *(_percent(rows[column]) if column in rows else "-" for column in COLUMNS),
        ]
        for (federation, method), rows in last.groupby(["federation", "algorithm"], sort=False)
    ]  # fmt: skip
    names = (column.replace("_", " ") for column in COLUMNS)
    return "\n".join(
        [
            f"Accuracies and spreads in % after {ROUNDS} rounds, target "
            f"{100 * target(tuning):.1f} %; {measured['seed'].nunique()} seeds.",
            "",
            *markdown_table(headings, endpoints),
            "",
            *markdown_table(("federated dataset", "method", "step size", *names), means),
            "",
        ]
    )


def _or_dash(value: float, spec: str) -> str:
    return "-" if np.isnan(value) else format(value, spec)


def _percent(values: Any) -> str:
    return "-" if values.isna().all() else f"{100 * values.mean():.1f}"


if __name__ == "__main__":
    main()
