"""Times of clients from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedjax_fair import timing
from fedjax_fair.app.settings.registry import SYNTHETIC
from fedjax_fair.data import FederatedData
from fedjax_fair.roles import Number
from fedjax_fair.timing.columns import Table

if TYPE_CHECKING:
    from fedjax_fair.app.settings.config import TimingConfig  # It reads this module's signature.

__all__ = ["check_files", "make_times", "read_times"]

_FILE = Path(__file__).parent / "settings" / "synthetic_speeds.csv"


def check_files(settings: TimingConfig) -> None:
    """Raises ``FileNotFoundError`` if a file of the section ``timing`` is missing."""
    for name in ("table", "online"):
        path = getattr(settings, name)
        if path not in (None, SYNTHETIC) and not Path(path).is_file():
            example = f", or {SYNTHETIC}" if name == "table" else ""
            raise FileNotFoundError(
                f"timing.{name}={path!r}: no such file; expected a CSV file{example}."
            )


def make_times(settings: TimingConfig, data: FederatedData) -> timing.ClientTimes | None:
    """Reads the times of the section ``timing``; None without a table. Errors as `read_times`."""
    if settings.table is None:
        return None
    given = {name: value for name, value in vars(settings).items() if value is not None}
    return read_times(data=data, **given)


def read_times(
    table: str,
    assign: Literal["random", "size", "group"] = "random",
    jitter: Number = 0.0,
    online: str | None = None,
    period: int | None = None,
    seed: int = 0,
    *,
    data: FederatedData,
) -> timing.ClientTimes:
    """Reads how long clients take for a task, and when they are online.

    Args:
        table: CSV file with the times of clients or of classes of devices (docs/time.md), or
            synthetic, an example.
        assign: Which clients have which class of devices: at random, the slowest classes for the
            clients with most examples, or the first class for the first ground-truth group and so
            on.
        jitter: Standard deviation of the logarithm of the time per example, drawn for each task.
        online: CSV file of intervals in which clients are online; always without it.
        period: Seconds after which these intervals repeat, without a column of the file.
        seed: Seed of classes and times, apart from the seeds of runs.
        data: The clients that train.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is invalid or of other clients, or a setting has no effect.
    """
    if period is not None and online is None:
        raise ValueError(f"timing.period={period}: expected none without timing.online; remove it.")
    file = str(_FILE) if table == SYNTHETIC else table
    if assign != "random" and "client" in Table.read(file).columns:
        raise ValueError(
            f"timing.assign={assign!r} has no effect, because each row of {Path(file).name} is a "
            "client; remove it."
        )
    times = timing.from_table(
        file,
        data.num_clients,
        assign=assign,
        seed=seed,
        groups=data.groups if assign == "group" else None,
        sizes=data.train.sizes if assign == "size" else None,
        client_names=data.client_names,
    )
    intervals = online and timing.online_from_table(
        online, data.num_clients, period=period, client_names=data.client_names
    )
    return times.replace(jitter=jitter, online=intervals or None)
