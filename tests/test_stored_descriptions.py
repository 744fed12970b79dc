"""The file that commands read instead of importing classes has what the classes say."""

from fedjax_fair import (
    aggregators,
    app,
    benchmark,
    communication,
    data,
    faults,
    models,
    schedules,
    selectors,
    server_optimizers,
    solvers,
)
from fedjax_fair.app.commands.dispatch import CLASSES
from fedjax_fair.app.overview import DESCRIPTIONS, STORED
from fedjax_fair.app.settings import catalog

# Written out, so that `make check` runs this file after a change of any of their classes.
PACKAGES = (
    *(aggregators, app, benchmark, communication, data, faults),
    *(models, schedules, selectors, server_optimizers, solvers),
)


def test_the_stored_descriptions_are_those_of_the_classes():
    command = "python -m fedjax_fair.app.settings.catalog"
    assert DESCRIPTIONS.read_text("utf8") == catalog.content(), (
        f"a class has changed: run `{command}`"
    )


def test_a_change_of_every_described_package_reaches_this_file():
    names = [*STORED["descriptions"], *CLASSES.values()]
    described = {f"fedjax_fair.{name.partition('.')[0]}" for name in names}
    assert described == {package.__name__ for package in PACKAGES}
