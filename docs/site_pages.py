"""What the site has besides the pages of this folder: README, notebooks, and every public name.

`mkdocs build` calls these functions.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
METHODS_PAGE = """# Methods

`fedjax-fair run --methods NAME ...` compares them. Names combine, as in `divfl+equitable`, and take
settings, as in `subtrunc:lam=0.1`: the fields of the classes in
[selectors](api/fedjax_fair.selectors.md), [solvers](api/fedjax_fair.solvers.md) and
[aggregators](api/fedjax_fair.aggregators.md). `uniform` weighs members alike, `size` by their
training examples, as the method's paper does. What a server needs to see of one client is a
[page](privacy.md) of its own.
"""
METRICS_PAGE = """# Metrics

Results hold each for every seed and evaluation. Accuracies are fractions in files, percent where
people read them. Formulas, and what each shows and hides, are with the functions:
[performance](api/fedjax_fair.metrics.performance.md),
[fairness](api/fedjax_fair.metrics.fairness.md), [groups](api/fedjax_fair.metrics.groups.md),
[agreement of clusters](api/fedjax_fair.metrics.clustering.md).
"""


@event_priority(100)  # Before what makes pages of notebooks.
def on_files(files, config):
    """Adds pages from elsewhere in the repository."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text("utf8")
        files.append(File.generated(config, page, content=as_in_docs(text)))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        place = f"notebooks/{notebook.name}"
        files.append(File(place, str(ROOT), config.site_dir, config.use_directory_urls))
    for page in pages(config.nav):
        if page.startswith("api/"):
            module = page.removeprefix("api/").removesuffix(".md")
            files.append(File.generated(config, page, content=reference(module)))
    files.append(File.generated(config, "methods.md", content=methods()))
    files.append(File.generated(config, "metrics.md", content=metrics()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Pages of this folder know the root by ``../``, which the site has not."""
    return markdown.replace("](../CONTRIBUTING.md)", "](CONTRIBUTING.md)")


def pages(nav) -> Iterator[str]:
    """All pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(part)


def as_in_docs(text: str) -> str:
    """A page of the root, as if it were in this folder."""
    text = text.replace("](docs/)", "](decisions.md)").replace("](docs/", "](")
    text = text.replace("](notebooks/)", "](notebooks/01_first_federation.ipynb)")
    return re.sub(r"\]\(notebooks/(\w+)\.py\)", r"](notebooks/\1.ipynb)", text)


def methods() -> str:
    """The page of all methods."""
    from fedjax_fair.app.build import server_view
    from fedjax_fair.app.registry import METHODS

    rows = ["| method | averages its cohort | server view | what it is |", "|---|---|---|---|"]
    for name, method in METHODS.items():
        weighting = "by itself" if method.aggregator else "" if method.centralized_fn else method.weighting
        rows.append(f"| `{name}` | {weighting} | {server_view(method)} | {method.summary} |")
    return "\n".join([METHODS_PAGE, *rows]) + "\n"


def metrics() -> str:
    """The page of all numbers that summarize a federation."""
    from fedjax_fair.metrics import GROUP_SUMMARIES, SUMMARIES

    rows = ["| name | what it is | unit | weighting | over |", "|---|---|---|---|---|"]
    for one in SUMMARIES + GROUP_SUMMARIES:
        what = f"{one.description} | {one.unit} | {one.weighting} | {one.population}"
        rows.append(f"| `{one.name}` | {what} |")
    return "\n".join([METRICS_PAGE, *rows]) + "\n"


def public_names(module: str) -> dict[str, str]:
    """Where what a module exports is defined, by name; other modules aside.

    Examples:
        >>> public_names("fedjax_fair.solvers")
        {'sgd': 'fedjax_fair.solvers.sgd.sgd'}
    """
    for node in source(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found = {name: origin(module, name) for name in ast.literal_eval(node.value)}
            return {name: place for name, place in found.items() if not is_module(place)}
    raise ValueError(f"{module}: expected __all__.")


def source(module: str) -> ast.Module:
    """What the file of a module says."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf8"))


def origin(module: str, name: str) -> str:
    """Where a name that a module has is defined, over as many imports as it takes."""
    for node in ast.walk(source(module)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedjax_fair"):
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module != module:
                    return origin(str(node.module), alias.name)
    return f"{module}.{name}"


def is_module(name: str) -> bool:
    """Whether a dotted name is that of a file or a folder."""
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def reference(module: str) -> str:
    """The page of a module."""
    about = f"::: {module}\n    options: {{members: false, show_root_heading: false}}\n"
    blocks = (f"::: {place}\n" for place in public_names(module).values())
    return "\n".join([f"# {module}\n", about, *blocks])
