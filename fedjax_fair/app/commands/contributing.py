"""Command that computes the contributions of clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedjax_fair import report, results
from fedjax_fair.analysis.contributions import Contributions, check_contributions, contributions
from fedjax_fair.app.build import metrics_of
from fedjax_fair.app.commands.common import interrupt_hint, print_output_paths
from fedjax_fair.app.model_files import folder_name
from fedjax_fair.app.run_folder import make_folder
from fedjax_fair.app.run_groups import groups_of
from fedjax_fair.app.run_record import command, environment, write_record
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.defaults import format_settings
from fedjax_fair.app.settings.request import Request
from fedjax_fair.app.sweep import sweep_folder
from fedjax_fair.app.terminal.progress import show_steps
from fedjax_fair.app.terminal.termination import Termination
from fedjax_fair.results.csv_text import to_csv
from fedjax_fair.results.files import write_text
from fedjax_fair.results.folder_lock import locked
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = ["run_contributions"]


def run_contributions(wanted: Request) -> None:
    """Runs ``contributions [PRESET] [OPTIONS]``."""
    options, config = wanted.options, replace(wanted.config, output=Config.output)
    _check(config)
    training, groups = config.training, groups_of(config)
    metrics = metrics_of(config, groups[0].data.num_classes)
    for group in groups:
        check_contributions(
            group.rounds[()], group.data, len(training.seeds), options.metric, metrics
        )
    own = {"metric": [options.metric], "runs_per_batch": [options.runs_per_batch]}
    folder = sweep_folder(options.output, wanted.name, config, own, None)
    make_folder(folder)
    print(f"Folder: {escape_control_chars(folder)}")
    found: dict[str, Contributions] = {}
    with (
        interrupt_hint("the same command continues"),
        Termination(at_once=True),
        locked(folder),
        show_steps(quiet=options.quiet) as show,
    ):
        write_record(folder, environment() | {"command": command()})
        for group in groups:
            found[group.name] = contributions(
                group.rounds[()],
                group.data,
                rounds=training.rounds or 0,
                seeds=training.seeds,
                metric=options.metric,
                metrics=metrics,
                runs_per_batch=options.runs_per_batch,
                folder=folder / "checkpoints" / folder_name(group.name),
                show=lambda step, name=group.name: show(f"{name}: {step}"),
                mesh=group.mesh,
            )
        settings = format_settings(config, num_clients=groups[0].data.num_clients)
        _write(found, settings, folder)
    for name, each in found.items():
        print(f"\n{escape_control_chars(name)}\n{each!r}")
    print()
    print_output_paths(
        Results=folder / "results.nc",
        Table=folder / "contributions.csv",
        Plot=folder / "contributions.png",
    )


def _check(config: Config) -> None:
    """Checks for settings that have no effect on contributions."""
    for section, name in (
        ("data", "unseen_fraction"),
        ("data", "unknown_clients"),
        ("training", "on_nonfinite"),
    ):
        value = getattr(getattr(config, section), name)
        if value not in (None, 0, "error"):
            raise ValueError(
                f"{section}.{name}={value!r} has no effect on contributions; remove it."
            )
    if config.distributed:
        raise ValueError("distributed=True: expected False for contributions; remove it.")


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
