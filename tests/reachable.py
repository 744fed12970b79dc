"""Checks what differs from a commit: style, types, and the tests that the change can reach.

    python tests/reachable.py [--since main] [--list] [FILE ...]

A test file is reached if it, or a module that it uses, uses a changed module; imports inside
functions count. ``selectors.DivFL`` is a use of the module that defines ``DivFL`` and not of all
selectors, although Python imports all of them. Integration tests are long, and so run only if they
are of the folder of a changed module. Of the conformance battery only the changed roles run.

pytest-testmon follows the lines that a test runs instead. JAX traces a function only the first time
in a process, so that lines of roles and sums would belong to the test that happens to come first.
"""

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from conftest import INTEGRATION

ROOT = Path(__file__).parents[1]
TABLES = {"fedjax_fair.app.settings.registry", "test_conformance"}
"""Modules that list all roles. A change of a role does not reach what uses it by these alone."""


@cache
def modules() -> dict[str, Path]:
    """Files by the name under which they are imported; those of tests need no folder."""
    found = {}
    for folder in ("fedjax_fair", "experiments"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found | {path.stem: path for path in (ROOT / "tests").rglob("*.py")}


@cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(modules()[module].read_text())


@cache
def bindings(module: str) -> dict[str, str]:
    """What the imported names in a file stand for."""
    bound = {}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                bound[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom) and node.module:
            bound |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return bound


def used_names(node: ast.AST, bound: dict[str, str]) -> Iterator[str]:
    """The dotted names that code uses, such as ``fedjax_fair.selectors.DivFL``."""
    dotted = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
    first, _, rest = dotted.partition(".")
    if first in bound and dotted.replace(".", "").isidentifier():
        yield f"{bound[first]}.{rest}".rstrip(".")
    elif isinstance(node, ast.Constant) and "." in str(node.value) and node.value in modules():
        yield node.value  # Imported by its name, or patched.
    else:
        for child in ast.iter_child_nodes(node):
            yield from used_names(child, bound)


def definition(dotted: str) -> str | None:
    """The module that defines a dotted name, through the packages that only pass it on."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        module, rest = ".".join(parts[:length]), parts[length:]
        if module in modules():
            target = bindings(module).get(rest[0]) if rest else None
            passed_on = target and target.split(".")[0] == "fedjax_fair" and target != dotted
            return definition(".".join([target, *rest[1:]])) if passed_on else module
    return None


@cache
def uses(module: str) -> frozenset[str]:
    """The modules that a file uses itself. A package as a whole is all that it passes on."""
    bound = bindings(module)
    used = set(used_names(tree_of(module), bound))
    if modules()[module].name == "__init__.py":
        used |= set(bound.values())
    return frozenset({definition(name) for name in used} - {None, module})


def reached(start: str) -> set[str]:
    """All modules that a file uses, directly or through others."""
    seen, waiting = {start}, [start]
    while waiting:
        module = waiting.pop()
        found = set() if module in TABLES and module != start else uses(module)
        waiting += found - seen
        seen |= found
    return seen


def reachable(changed: set[str]) -> list[Path]:
    """Test files to run, which are all of them after a change of what they share."""
    tests = {path.stem: path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    folders = {part for name in changed for part in name.split(".")[:2]}
    return sorted(
        path
        for name, path in tests.items()
        if changed & {name, "conftest"}
        or (
            changed & reached(name)
            and (not str(path).startswith(INTEGRATION) or path.parts[1] in folders)
        )
    )


def changed_roles(changed: set[str]) -> Iterator[str]:
    """First words of the cases of the conformance battery that use a changed module."""
    bound = bindings("test_conformance")
    tables = (n for n in ast.walk(tree_of("test_conformance")) if isinstance(n, ast.Dict))
    for table in tables:
        for name, case in zip(table.keys, table.values, strict=True):
            used = {definition(dotted) for dotted in used_names(case, bound)} - {None}
            if any(changed & reached(module) for module in used):
                yield name.value.partition(" ")[0].strip(",")


def changed_files(since: str) -> list[str]:
    """Files that differ from a commit and exist, also new ones."""
    difference = ["git", "diff", "--name-only", "--diff-filter=d", since]
    new = ["git", "ls-files", "--others", "--exclude-standard"]
    lines = [subprocess.check_output(command, cwd=ROOT, text=True) for command in (difference, new)]
    return "".join(lines).splitlines()


def main() -> int:
    """Runs the checks one after another, up to the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="instead of what differs")
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="compare with it")
    parser.add_argument("--list", action="store_true", help="only print the test files")
    options = parser.parse_args()
    files = [Path(file) for file in options.files or changed_files(options.since)]
    files = [str(file) for file in files if file.suffix in (".py", ".ipynb")]
    changed = {name for name, path in modules().items() if str(path.relative_to(ROOT)) in files}
    tests = [str(path) for path in reachable(changed)]
    if options.list:
        print(*tests, sep="\n")
        return 0
    if not files:
        print("no Python file differs")
        return 0
    package = [file for file in files if file.startswith("fedjax_fair/")]
    typed = package + [file for file in files if file.startswith("experiments/")]
    battery = " or ".join(["not test_conformance", *sorted(set(changed_roles(changed)))])
    programs = Path(sys.executable).parent
    pytest = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "auto"]
    pytest += ["--dist", "worksteal", "-m", "not slow and not gpu", "-k", battery]
    commands = [
        [programs / "ruff", "format", "--check", *files],
        [programs / "ruff", "check", *files],
        [programs / "pyright", "--pythonpath", sys.executable, *typed] if typed else [],
        [*pytest, *tests, *package] if tests or package else [],
    ]
    for command in filter(None, commands):
        if status := subprocess.run(command, cwd=ROOT).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
