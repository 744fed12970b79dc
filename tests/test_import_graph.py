"""Rooms of the package import only rooms below them, also for annotations and inside functions."""

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fedjax_fair"
MAX_ROOMS, MAX_ARROWS = 27, 185
"""Rooms are folders and modules at the top; an arrow is a room that imports another."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imports(path: Path, modules: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    return found & modules


PATHS = {module_name(path): path for path in PACKAGE.rglob("*.py")}
GRAPH = {name: imports(path, set(PATHS)) - {name} for name, path in PATHS.items()}


def room(module: str) -> str:
    return module.split(".")[1]


def test_modules_have_an_order():
    assert sum(map(len, GRAPH.values())) > 500
    TopologicalSorter(GRAPH).prepare()  # Raises CycleError, which names the modules.


def test_rooms_have_an_order_and_few_arrows():
    root = PACKAGE.name
    inner = {name: used - {root} for name, used in GRAPH.items() if name != root}
    rooms = {room(name): set() for name in inner}
    for name, used in inner.items():
        rooms[room(name)] |= {room(each) for each in used} - {room(name)}
    TopologicalSorter(rooms).prepare()
    assert len(rooms) <= MAX_ROOMS
    assert sum(map(len, rooms.values())) <= MAX_ARROWS


def test_names_of_files_occur_once():
    # Folders of tests are not packages, so that pytest refuses a second module of one name.
    for paths in (PATHS.values(), Path(__file__).parent.rglob("*.py")):
        names = {"__init__.py", "conftest.py"}
        counts = Counter(path.name for path in paths if path.name not in names)
        assert counts
        assert not {name for name, count in counts.items() if count > 1}
