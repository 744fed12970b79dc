"""Run folders: files of a run, which can be continued.

=================  =================================================================
``config.json``    The resolved configuration and the defaults that it uses.
``env.json``       Versions, commit, device, digest of the data, and the command.
``encoding.json``  The encoding of a table, for new rows.
``metrics.jsonl``  One line per evaluation, method and seed.
``checkpoints/``   The latest state of each method.
``models/``        The trained models of each method, for ``fedjax_fair.load_model``; frozen
                   parameters, once for all methods and seeds, as ``base-CHECKSUM.npz``.
``results.nc``     The results of finished methods, as one Dataset.
``plots/``         Figures drawn from ``results.nc``.
``report.html``    Results and figures on one page.
=================  =================================================================
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_fair.app.run_record import (
    check_record,
    command,
    digest,
    environment,
    read_record,
    write_record,
)
from fedjax_fair.app.settings import config_files
from fedjax_fair.app.settings.config import Config, Maximize
from fedjax_fair.app.settings.names import change
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.tables.table_encoding import TableEncoding
from fedjax_fair.results.files import (
    add_file_name,
    check_orbax_path,
    corrected_log,
    format_line,
    read_log,
    write_text,
)
from fedjax_fair.training.loop import Callback, Evaluation
from fedjax_fair.utils.warning import warn

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["MetricsLog", "RunFolder", "make_folder"]

_MAX_PATH = 3500
"""Linux allows 4,096 bytes; checkpoints in a run folder have the longest names."""


class RunFolder:
    """The paths of one run; raises ``ValueError`` without a ``config.json``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._config = self.path / "config.json"
        self._encoding = self.path / "encoding.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.models = self.path / "models"
        self.results = self.path / "results.nc"
        self.plots = self.path / "plots"
        self.report = self.path / "report.html"
        if not self._config.is_file():
            raise ValueError(f"run={str(path)!r}: expected a run folder, with a config.json in it.")

    @classmethod
    def create(
        cls, config: Config | Maximize, name: str, num_clients: int | None = None
    ) -> RunFolder:
        """Creates a folder under ``config.output``, named after the time and ``name``.

        It is renamed once it has its configuration.
        """
        parent = Path(config.output)
        check_orbax_path(parent, "output")
        make_folder(parent)
        unfinished = parent / f".unfinished-{uuid.uuid4().hex}"
        unfinished.mkdir()
        write_record(unfinished, environment() | {"command": command()})
        config_files.save(config, unfinished / "config.json", num_clients)
        path = first = parent / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
        for number in itertools.count(2):
            try:
                return cls(unfinished.rename(path))
            except OSError:
                if not path.exists():
                    raise
                path = first.with_name(f"{first.name}-{number}")
        raise AssertionError

    def config(self) -> Config | Maximize:
        """Reads the configuration of the run."""
        return config_files.load(self._config)

    def ended_methods(self, until_seconds: float | None) -> set[str]:
        """Returns the methods whose results have passed the virtual time at which runs end."""
        if until_seconds is None or not self.results.is_file():
            return set()
        from fedjax_fair import results

        dataset = results.open(self.results)
        has_ended = (dataset["virtual_time"].max("round") >= until_seconds).all("seed")
        return set(dataset["algorithm"].values[has_ended.values].tolist())

    def extend(self, rounds: int | None, num_clients: int) -> None:
        """Stores the number of rounds, which the next start continues to."""
        config = self.config()
        if isinstance(config, Config) and config.training.rounds != rounds:
            extended = change(config, "training", "rounds", rounds)
            config_files.save(extended, self._config, num_clients)

    def write_encoding(self, encoding: TableEncoding) -> None:
        """Writes the encoding of a table, with a digest."""
        content = encoding.to_dict()
        text = json.dumps({"digest": digest(content), "encoding": content}, indent=2)
        write_text(self._encoding, text + "\n")

    def encoding(self) -> TableEncoding | None:
        """Reads the encoding of a table, None if data was none.

        Raises:
            ValueError: If the file is damaged.
        """
        if not self._encoding.is_file():
            return None
        try:
            content = json.loads(self._encoding.read_text(encoding="utf8"))
            if content["digest"] != digest(content["encoding"]):
                raise ValueError("its content has changed since it was written")
            return TableEncoding.from_dict(content["encoding"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"folder: {self._encoding} is damaged ({error}); `fedjax-fair resume` writes it "
                "again."
            ) from None

    def write_figures(self, figures: Mapping[str, Figure], page: str) -> None:
        """Writes figures by name, and the report."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        self.plots.mkdir(exist_ok=True)
        for name, figure in figures.items():
            figure.set_dpi(150)  # `savefig` would draw twice, first for the layout.
            FigureCanvasAgg(figure).print_png(self.plots / f"{name}.png")
        write_text(self.report, page)

    def check_record(self, **data: FederatedData | None) -> None:
        """Compares the environment and the data with those of the run's start (`check_record`)."""
        check_record(self.path, "run", **data)

    def environment(self) -> dict[str, Any]:
        """Reads the environment of the run's start; rewrites a damaged file."""
        return read_record(self.path)


def make_folder(path: Path) -> None:
    """Makes a folder outside of runs and sweeps.

    Its path must be UTF-8 and leave room for names of files.
    """
    try:
        sizes = [len(name.encode()) for name in path.absolute().parts]
    except UnicodeEncodeError:
        raise ValueError(
            f"output={str(path)!r}: expected a path in UTF-8; LC_ALL=C.UTF-8 may help."
        ) from None
    if max(sizes) > 255 or sum(sizes) + len(sizes) > _MAX_PATH:
        raise ValueError(
            f"output={str(path)!r}: expected a path of at most {_MAX_PATH:,} bytes, with names of "
            "at most 255."
        )
    absolute = path.resolve()
    for folder in (absolute, *absolute.parents):
        is_run = all((folder / name).is_file() for name in ("config.json", "env.json"))
        if is_run or (folder != absolute and (folder / "sweep.json").is_file()):
            raise ValueError(
                f"output={str(path)!r}: expected a folder outside of the "
                f"{'run' if is_run else 'sweep'} {str(folder)!r}; choose another one."
            )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(
            f"output={str(path)!r}: expected a folder, {error.filename!r} is a file; choose "
            "another path."
        ) from None


class MetricsLog(Callback):
    """Appends a line of JSON for every evaluation and seed of one method.

    Lines that exist are not written again. At the end, those of the method are compared with its
    results, and missing or changed lines are written again, without a time.

    Args:
        path: The file, ``metrics.jsonl``.
        method: Name of the method.
        methods: Names of all methods of the run.

    Raises:
        ValueError: If a line is damaged or of another run.
    """

    def __init__(self, path: Path, method: str, methods: Sequence[str]) -> None:
        self._path, self._method, self._methods = path, method, methods
        self._written = {place for place, _, _ in read_log(path)}
        if path.exists():  # A kill may have left an incomplete line.
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)

    def on_start(self, rounds: int, seeds: tuple[int, ...]) -> None:
        """Checks that all lines are of this run."""
        for number, (place, _, _) in enumerate(read_log(self._path), start=1):
            method, seed, done = place
            if method not in self._methods or seed not in seeds or not 0 <= done <= rounds:
                raise ValueError(
                    f"path={str(self._path)!r}: line {number} is of {method!r}, seed {seed}, round "
                    f"{done}, which are not of this run. Delete the file to write it again."
                )

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Writes new lines."""
        for index, seed in enumerate(evaluation.seeds):
            place = self._method, seed, evaluation.round
            if place not in self._written:
                self._written.add(place)
                summaries = {name: value[index] for name, value in evaluation.summaries.items()}
                line = format_line(place, round(evaluation.seconds, 3), summaries)
                with add_file_name(self._path), self._path.open("a") as file:
                    file.write(f"{line}\n")

    def on_end(self, results: xr.Dataset) -> None:
        """Compares the file with the results."""
        lines, num_wrong = corrected_log(self._path, self._method, results)
        if num_wrong:
            warn(
                f"{str(self._path)!r}: {num_wrong} lines of {self._method!r} had changed; written "
                "again."
            )
        content = "".join(f"{line}\n" for line in lines)
        if not self._path.exists() or content.encode() != self._path.read_bytes():
            write_text(self._path, content)
