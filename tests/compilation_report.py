"""Processor time, compile time and number of compilations per test file.

``pytest --compilation-report`` prints them. With ``--numprocesses`` those of workers are summed.
"""

import time
from collections import defaultdict

import jax.monitoring
import pytest
from compilations import COMPILED

COLUMNS = ("seconds of CPU", "lowering", "compiling", "compilations")
EVENTS = {
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    COMPILED: "compiling",
}


class CompilationReport:
    """Plugin that attributes JAX's compilation events to the file of the running test."""

    def __init__(self):
        self.files = defaultdict(lambda: dict.fromkeys(COLUMNS, 0.0))
        self.running = "(collection)"
        jax.monitoring.register_event_duration_secs_listener(self.record)

    def record(self, event, seconds, **_):
        if event in EVENTS:
            self.files[self.running][EVENTS[event]] += seconds
            self.files[self.running]["compilations"] += EVENTS[event] == "compiling"

    def pytest_runtest_logstart(self, nodeid):
        self.running = nodeid.partition("::")[0]
        self.started = time.process_time()

    def pytest_runtest_logfinish(self, nodeid):
        self.files[self.running]["seconds of CPU"] += time.process_time() - self.started

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["compilations"] = dict(self.files)

    @pytest.hookimpl(optionalhook=True)  # A hook of pytest-xdist.
    def pytest_testnodedown(self, node):
        for file, figures in node.workeroutput.get("compilations", {}).items():
            for column in COLUMNS:
                self.files[file][column] += figures[column]

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("compilations")
        rows = sorted(self.files.items(), key=lambda row: -row[1]["seconds of CPU"])
        totals = {column: sum(row[column] for _, row in rows) for column in COLUMNS}
        terminalreporter.write_line("".join(f"{column:>16}" for column in COLUMNS) + "  file")
        for file, figures in [*rows, ("total", totals)]:
            if any(figures.values()):
                cells = (f"{figures[column]:16.1f}" for column in COLUMNS[:-1])
                line = "".join(cells) + f"{figures['compilations']:16.0f}  {file}"
                terminalreporter.write_line(line)
