"""What users install: what is in it, what it needs, and that it works where nothing else is."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import fedjax_fair

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
PROGRAM = ROOT / "tests" / "ten_lines.py"
LOCAL = (".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "sweeps")
"""What a checkout may hold that is not part of the project."""


def run(*command, **options) -> str:
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the source distribution and the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("package")
    # What earlier builds left in the checkout would get into this one.
    copytree(ROOT, folder / "project", ignore=ignore_patterns(*LOCAL))
    build = ["-m", "build", "--no-isolation", "--outdir", folder / "dist"]
    run(sys.executable, *build, folder / "project")
    return folder / "dist"


def files(*folders: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)
    }


def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == files("fedjax_fair")
    assert "fedjax_fair/py.typed" in names
    assert any(name.endswith("/LICENSE") for name in about)


def test_the_source_distribution_holds_what_a_checkout_does(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {member.name.partition("/")[2] for member in opened if member.isfile()}
    assert files("fedjax_fair", "tests", "experiments", "docs", "notebooks") <= held
    top = {path.name for path in ROOT.iterdir() if path.is_file() and path.name[0] != "."}
    assert top <= held


def test_a_checkout_makes_experiments_importable_and_an_installation_does_not(tmp_path):
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    find = [
        sys.executable,
        "-c",
        "from importlib.util import find_spec; print(find_spec('experiments'))",
    ]
    assert str(ROOT) in run(*find, cwd=ROOT, env=own)
    assert run(*find, cwd=tmp_path, env=own) == "None\n"


def test_it_is_cited_as_the_version_that_it_is():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf8"), re.MULTILINE)
    assert cited
    assert cited[1] == fedjax_fair.__version__


def declared() -> tuple[list[Requirement], list[Requirement]]:
    """What the package needs, and what tests and experiments need also."""
    extras = PROJECT["optional-dependencies"]
    own, *others_of_test = map(Requirement, extras["test"])
    assert own.name == PROJECT["name"]
    others = [line for extra in sorted(own.extras) for line in extras[extra]]
    return (
        [*map(Requirement, PROJECT["dependencies"])],
        [*others_of_test, *map(Requirement, others)],
    )


NEEDED, BESIDES = declared()


def pins(file: str) -> dict[str, Version]:
    lines = (ROOT / file).read_text("utf8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): Version(pin) for name, pin in pairs}


@pytest.mark.parametrize("requirement", NEEDED + BESIDES, ids=lambda requirement: requirement.name)
def test_lower_bounds_are_what_the_oldest_environment_has(requirement):
    bound, *upper = sorted(requirement.specifier, key=lambda bound: bound.operator, reverse=True)
    assert bound.operator == ">="
    # The next version of JAX has to pass `make newest` first.
    assert bool(upper) == (requirement.name in ("jax", "jaxlib"))
    assert pins("minima.txt")[requirement.name] == Version(bound.version)
    assert pins("constraints.txt")[requirement.name] in requirement.specifier


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("fedjax_fair", [*NEEDED, *map(Requirement, PROJECT["optional-dependencies"]["privacy"])]),
        ("experiments", NEEDED + BESIDES),
        ("tests", NEEDED + BESIDES),
    ],
)
def test_what_is_imported_is_declared(folder, allowed):
    ours = {"fedjax_fair", "experiments", *(path.stem for path in ROOT.glob("tests/**/*.py"))}
    ours |= {path.stem for path in ROOT.glob("docs/*.py")}
    providers = packages_distributions()
    names = {requirement.name for requirement in allowed}
    undeclared = {
        module
        for module in imports(folder) - ours - sys.stdlib_module_names
        if not names & set(map(canonicalize_name, providers.get(module, ())))
    }
    assert not undeclared


def imports(folder: str) -> set[str]:
    """Top-level modules that the files of a folder import, at whatever place in them."""
    found = set()
    for file in (ROOT / folder).rglob("*.py"):
        if {"programs", "golden"} & set(file.parts):  # Run where what they need is installed.
            continue
        for node in ast.walk(ast.parse(file.read_text("utf8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


@pytest.mark.slow
def test_the_wheel_works_where_nothing_else_is_installed(built, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    constraint = ["--constraint", ROOT / "constraints.txt"]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    here = {"cwd": tmp_path, "env": own | {"XDG_CACHE_HOME": str(tmp_path / "cache")}}
    (wheel,) = built.glob("*.whl")
    run(programs / "python", "-m", "pip", "install", "--quiet", *constraint, wheel, **here)

    assert run(programs / "fedjax-fair", "--version", **here).startswith("fedjax-fair 0.")
    assert "fedavg" in run(programs / "fedjax-fair", "methods", **here)
    accuracy, _ = map(float, run(programs / "python", PROGRAM, **here).split())
    assert accuracy > 0.8

    # The file asks for strict mode; types come from what is installed, as for a user.
    copy(PROGRAM, tmp_path)
    checker = [sys.executable, "-m", "pyright", "--pythonpath", programs / "python"]
    assert run(*checker, PROGRAM.name, **here).startswith("0 errors, 0 warnings")


TWICE = """
import jax
import fedjax_fair as ff

compiled = []
def keep(name, seconds, **_):
    compiled.append(name)
data = ff.data.load("digits", ff.data.iid(5))
def call(rate, mu):
    method = ff.Round(
        ff.models.logistic(10), ff.selectors.UnionFL(2, mu),
        ff.solvers.SGD(rate, 10, steps=1), ff.aggregators.Equitable(2),
    )
    ff.fit(method, data, rounds=1)
call(0.1, 1.0)
jax.monitoring.register_event_duration_secs_listener(keep)
call(0.2, 0.5)
print(ff.__file__)
print(sum(name == "/jax/core/compile/backend_compile_duration" for name in compiled))
"""


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_other_numbers_compile_nothing_however_it_is_installed(how, built, tmp_path):
    folder = ROOT
    if how == "wheel":
        folder = tmp_path / "site-packages"
        (wheel,) = built.glob("*.whl")
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(folder)
    found = run(
        sys.executable, "-c", TWICE, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(folder)}
    ).split()
    assert found == [str(folder / "fedjax_fair" / "__init__.py"), "0"]
