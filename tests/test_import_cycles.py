"""The package has no import cycle, with imports inside functions."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fedjax_fair"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imports(path: Path, modules: set[str]) -> set[str]:
    """The modules of the package that a file imports for use, not only for annotations."""
    found = set()
    tree = ast.parse(path.read_text())
    annotations_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in annotations_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    return found & modules


def test_imports_have_an_order():
    paths = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    graph = {name: imports(path, set(paths)) - {name} for name, path in paths.items()}
    assert sum(map(len, graph.values())) > 500
    TopologicalSorter(graph).prepare()  # Raises CycleError, which names the modules.
