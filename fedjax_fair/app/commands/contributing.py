"""Command that computes the contributions of clients."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_fair import report, results
from fedjax_fair.analysis.contributions import Contributions, check_contributions, contributions
from fedjax_fair.analysis.round_contributions import (
    approximate_contributions,
    check_approximations,
)
from fedjax_fair.app.build import metrics_of
from fedjax_fair.app.commands.common import interrupt_hint, print_output_paths
from fedjax_fair.app.model_files import folder_name
from fedjax_fair.app.run_folder import make_folder
from fedjax_fair.app.run_groups import groups_of
from fedjax_fair.app.run_record import command, environment, write_record
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.defaults import format_settings
from fedjax_fair.app.settings.names import option_of
from fedjax_fair.app.settings.request import Request
from fedjax_fair.app.sweep import sweep_folder
from fedjax_fair.app.terminal.console import format_table
from fedjax_fair.app.terminal.progress import show_steps
from fedjax_fair.app.terminal.termination import Termination
from fedjax_fair.results.files import locked, write_text
from fedjax_fair.results.formats import Table, format_mean, to_csv
from fedjax_fair.results.task_metrics import is_percent
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["run_contributions"]


def run_contributions(wanted: Request) -> None:
    """Runs ``contributions [PRESET] [OPTIONS]``."""
    options, config = wanted.options, replace(wanted.config, output=Config.output)
    _check(config, wanted.given)
    training, groups = config.training, groups_of(config)
    data = groups[0].data
    methods: dict[str, Any] = {group.name: group.rounds[()] for group in groups}
    metrics = metrics_of(config, data.num_classes)
    for method in methods.values():
        utility = check_contributions(method, data, training.seeds, options.metric, metrics)
        if options.approximations:  # They are of metrics of the package.
            check_contributions(method, data, training.seeds, utility.name, ())
            check_approximations(method, data.num_clients)
    own = {"metric": [options.metric], "runs_per_batch": [options.runs_per_batch]}
    folder = sweep_folder(options.output, wanted.name, config, own, None)
    make_folder(folder)
    print(f"Folder: {escape_control_chars(folder)}")
    found: dict[str, Contributions] = {}
    compared: dict[str, xr.Dataset] = {}
    with (
        interrupt_hint("the same command continues"),
        Termination(at_once=True),
        locked(folder),
        show_steps(quiet=options.quiet) as show,
    ):
        write_record(folder, environment() | {"command": command()})
        for name, method in methods.items():
            found[name] = contributions(
                method,
                data,
                rounds=training.rounds or 0,
                seeds=training.seeds,
                metric=options.metric,
                metrics=metrics,
                runs_per_batch=options.runs_per_batch,
                folder=folder / "checkpoints" / folder_name(name),
                show=lambda step, name=name: show(f"{name}: {step}"),
                mesh=groups[0].mesh,
            )
        _write(found, format_settings(config, num_clients=data.num_clients), folder)
        if options.approximations:
            for name, method in methods.items():
                show(f"{name}: approximations")
                compared[name] = approximate_contributions(method, data, found[name])
            _write_approximations(compared, folder)
    for name, each in found.items():
        print(f"\n{escape_control_chars(name)}\n{each!r}")
        if name in compared:
            print(format_table(_agreement_table(compared[name])).rstrip())
    print()
    print_output_paths(
        Results=folder / "results.nc",
        Table=folder / "contributions.csv",
        Plot=folder / "contributions.png",
    )


def _check(config: Config, given: Collection[str]) -> None:
    """Checks for settings that have no effect on contributions."""
    keys = [("data", "unseen_fraction"), ("data", "unknown_clients"), ("training", "on_nonfinite")]
    # Presets and files of runs have this setting too, so that only the option is refused.
    if option_of("training", "eval_every") in given:
        keys.append(("training", "eval_every"))
    for section, name in keys:
        value = getattr(getattr(config, section), name)
        if value not in (None, 0, "error"):
            raise ValueError(
                f"{section}.{name}={value!r} has no effect on contributions; remove it."
            )
    if config.timing.table is not None:
        raise ValueError(
            f"timing.table={config.timing.table!r}: expected None for contributions, whose "
            "coalitions have no virtual time; remove it, and asynchronous methods."
        )
    if config.distributed:
        raise ValueError("distributed=True: expected False for contributions; remove it.")


def _agreement_table(compared: xr.Dataset) -> Table:
    """Summarizes how far approximations agree with exact values."""
    scores = {
        "rank_correlation": "rank\ncorrelation",
        "correlation": "correlation",
        "largest_error": "largest\nerror",
        "sign_errors": "sign\nerrors",
    }
    in_percent = is_percent(compared.attrs["metric"])
    shown = compared.assign(largest_error=compared["largest_error"] * (100 if in_percent else 1))
    rows = [
        (name, *(format_mean(shown[score].sel(approximation=name).values, 2) for score in scores))
        for name in compared["approximation"].values
    ]
    unit = "percent" if in_percent else "the unit of the metric"
    note = f"Largest errors are in {unit}; sign errors are numbers of clients."
    return Table("Agreement with Shapley values", ("", *scores.values()), rows, note)


def _write(found: dict[str, Contributions], settings: str, folder: Path) -> None:
    """Writes results, a table with 95% intervals, and a plot."""
    import pandas as pd
    import xarray as xr

    names = pd.Index(list(found), name="algorithm")
    combined = xr.concat(
        [each.dataset for each in found.values()],
        names,
        data_vars=["shapley_value", "leave_one_out", "utility"],
        coords="minimal",
        compat="equals",
        join="exact",
    )
    combined = combined.assign_attrs(settings=settings)
    results.save(combined, folder / "results.nc")
    rows = [
        {
            "method": name,
            "client": client,
            "shapley_value": each.interval.mean[place],
            "low": each.interval.low[place],
            "high": each.interval.high[place],
            "leave_one_out": each.leave_one_out[:, place].mean(),
            "seeds": len(each.values),
        }
        for name, each in found.items()
        for place, client in enumerate(each.dataset["client"].values)
    ]
    write_text(folder / "contributions.csv", to_csv(pd.DataFrame(rows)))
    report.contribution_bars(combined).savefig(folder / "contributions.png", dpi=150)


def _write_approximations(compared: dict[str, xr.Dataset], folder: Path) -> None:
    """Writes estimates and their agreement with exact values."""
    import pandas as pd

    frames = [each.to_dataframe().reset_index() for each in compared.values()]
    for name, frame in zip(compared, frames, strict=True):
        frame.insert(0, "method", name)
    write_text(folder / "approximations.csv", to_csv(pd.concat(frames)))
