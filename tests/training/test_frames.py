"""The way from `fit` to a solver, which a reader steps through."""

import traceback
from pathlib import Path

from conftest import make_federation

import fedjax_fair as ff

ROOT = Path(__file__).parents[2]
MAX_FRAMES = 17


class Traced(ff.solvers.SGD):
    """SGD that records the functions of the package that lead to it."""

    def solve(self, key, variables, client):
        package = str(ROOT / "fedjax_fair")
        names = [f.name for f in traceback.extract_stack() if f.filename.startswith(package)]
        CALLS.append(names[names.index("fit") :])
        return super().solve(key, variables, client)


CALLS: list[list[str]] = []


def frames():
    """Returns the names of functions from `fit` to `SGD.solve`."""
    CALLS.clear()
    fedavg = ff.Round(
        ff.models.logistic(3),
        ff.selectors.Uniform(3),
        Traced(0.1, 2, epochs=1),
        ff.aggregators.Mean(),
    )
    ff.fit(fedavg, make_federation(), rounds=4, eval_every=2)
    return [*CALLS[0], "solve"]


def test_few_functions_are_between_fit_and_the_solver():
    assert len(frames()) <= MAX_FRAMES


def test_the_design_page_names_them_in_order():
    page = (ROOT / "docs" / "design.md").read_text("utf8")
    picture = page.partition("```text\n")[2].partition("```")[0]
    position = 0
    for name in frames():
        shown = "CompiledRuns" if name == "__init__" else name
        position = picture.index(shown, position) + len(shown)
