"""Overview, help, lists and options of the command line."""

import itertools
import os
import re
import subprocess
import sys

import jax
import pytest

import fedjax_fair as ff
from fedjax_fair.app import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.commands.dispatch import CLASSES, class_of_command
from fedjax_fair.app.settings import presets, registry
from fedjax_fair.app.settings.command_line import options_of, parse
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.names import SETTINGS
from fedjax_fair.app.settings.paper_presets import PAPERS
from fedjax_fair.app.settings.setting import describe_type
from fedjax_fair.app.settings.suggestions import lookup

pytestmark = pytest.mark.usefixtures("wide_terminal")


def test_types_of_options_are_described_in_plain_words():
    commands = (Config, *map(class_of_command, CLASSES))
    described = {describe_type(kind) for command in commands for _, kind in options_of(command)}
    assert {"an integer", "a number", "a string", "integers", "strings"} < described
    for text in described:
        unquoted = re.sub(r"'\w+'", "", text)
        assert not re.search(r"Union|Literal|Optional|None|tuple|\[|int\b|str\b", unquoted), text


@pytest.mark.parametrize("width", [40, 60, 80])
def test_methods_are_readable_in_narrow_terminals(width, capsys, monkeypatch):
    """A line of the columns, then the summary, indented."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("divfl"))
    view = build.server_view(registry.METHODS["divfl"])
    expected = ["divfl:", "num_examples,", view] if width == 40 else ["divfl", "num_examples", view]
    assert lines[place].split() == expected
    summary = list(itertools.takewhile(lambda line: line.startswith("  "), lines[place + 1 :]))
    assert " ".join(map(str.strip, summary)) == registry.METHODS["divfl"].describe()


def test_methods_are_listed(capsys):
    assert main(["methods"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    groups = [line.strip() for line in lines if line.startswith("[")]
    assert groups == [f"[{name}]" for name in registry.GROUPS]
    listed = dict(line.split(maxsplit=1) for line in lines if not line.startswith("["))
    assert listed.keys() == registry.METHODS.keys()
    for name, method in registry.METHODS.items():
        weights, server_view = listed[name][:14].strip(), listed[name][14:27].strip()
        assert listed[name][27:] == method.describe()
        assert (server_view == "examples") == (method.centralized_fn is not None)
        assert (weights == method.weighting) != (weights == "-"), name
    assert listed["power_of_choice"].startswith("uniform ")
    assert listed["fedavg"].startswith("num_examples ")
    assert listed["agnostic"].startswith("- ")
    server_view = {
        "fedavg": "aggregate",
        "fairfed": "scalars",
        "drfa": "scalars",
        "krum": "vectors",
    }
    assert all(listed[name][14:].startswith(f"{word} ") for name, word in server_view.items())


def test_data_sets_are_listed(capsys):
    assert main(["data", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(preset.config.data.name in listed for preset in presets.PRESETS.values())
    assert main(["data", "info", "digits"]) == 0
    described = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert int(described["num_train"]) + int(described["num_test"]) == 1797
    assert described["validation"].startswith("2 of about 28 training examples per client")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["data", "--help"]])
def test_the_overview_names_every_command_and_preset(arguments, capsys):
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in [*CLASSES, *presets.PRESETS, *PAPERS])


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_the_overview_and_the_version_need_no_jax(argument):
    code = f"""
import sys
from fedjax_fair.app.cli import main
assert main([{argument!r}]) == 0
heavy = {{"jax", "numpy", "tyro", "fedjax_fair.app.settings.registry"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith({"--help": "usage: ", "--version": "fedjax-fair "}[argument])


def test_the_package_is_a_program():
    command = [sys.executable, "-m", "fedjax_fair"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("fedjax-fair ")
    wrong = subprocess.run([*command, "runn"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_help_of_a_preset_shows_its_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # Wide terminals get sections in columns.
    with pytest.raises(SystemExit) as stop:
        main(["run", "mnist", "--help"])
    assert not stop.value.code
    _, _, after = capsys.readouterr().out.partition("--data.clients")
    described, _, _ = after.partition("--data.classes-per-client")
    assert "(default: 100)" in described


@pytest.mark.parametrize("command", ["run", "sweep", "plan", "contributions", "data show"])
def test_help_wraps_once_and_has_no_latex(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert "\\" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    continued = 0
    for line, following in itertools.pairwise(map(str.rstrip, shown.splitlines())):
        is_description = line.startswith(" " * 6) or "  " in line.strip()
        if is_description and following.startswith(" " * 6):
            continued += 1
            assert len(line) + len(f" {following.split()[0]}") > 79, line
    assert continued


@pytest.mark.parametrize(
    ("written", "seeds"), [("0 1 2", (0, 1, 2)), ("0,1,2", (0, 1, 2)), ("0:3 7", (0, 1, 2, 7))]
)
def test_seeds_and_methods_are_written_with_spaces_or_commas(written, seeds):
    methods = ["fedavg,subtrunc:lam=0.1,b=5", "divfl+fedprox:prox=1,steps=2,drfa"]
    arguments = ["--methods", *methods, "--training.seeds", *written.split(), "--devices=1"]
    config = parse(Config, arguments, "run")
    assert config.training.seeds == seeds
    assert config.methods == (
        "fedavg", "subtrunc:lam=0.1,b=5", "divfl+fedprox:prox=1,steps=2", "drfa",
    )  # fmt: skip
    assert config.devices == 1
    joined = parse(Config, [f"--training.seeds={','.join(written.split())}"], "run")
    assert joined.training.seeds == seeds


def test_flags_can_be_negated():
    groups = presets.PRESETS["groups"].config
    assert groups.data.partition_per_seed
    config = parse(Config, ["--data.no-partition-per-seed", "--distributed"], "run", groups)
    assert (config.data.partition_per_seed, config.distributed) == (False, True)


def test_help_of_a_sweep_lists_what_can_be_varied(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "digits", "--methods", "subtrunc", "--help"])
    assert not stop.value.code
    shown = capsys.readouterr().out
    listed, _, options = shown.partition("usage:")
    names = set(re.findall(r"^  (\S+)", listed, re.MULTILINE))
    assert {"seeds", "lam", "learning_rate", "cohort_size", "hidden"} < names
    assert "alpha" not in names
    assert "--solver.prox" in options
    for name in names - {"seeds"}:
        assert lookup("setting", name, SETTINGS)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("arguments", [["methods"], ["metrics"], ["data", "list"], []])
def test_lists_fit_the_terminal(arguments, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    # Words such as links are not broken.
    assert [line for line in lines if len(line) > width and " " in line.strip()] == []


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedjax-fair 0.")


def test_the_compilation_cache_has_a_default_folder(monkeypatch, tmp_path):
    kept = {}
    monkeypatch.setattr(jax.config, "update", kept.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    ff.enable_compilation_cache()
    assert kept == {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    ff.enable_compilation_cache()
    assert kept["jax_compilation_cache_dir"].startswith(str(tmp_path))


@pytest.mark.slow
def test_compiled_functions_are_cached_unless_jax_is_configured(tmp_path):
    command = ["run", "--data.clients=10", "--model.name=logistic", "--methods", "fedavg"]
    command += ["--solver.steps=1", "--training.rounds=1", "--training.seeds", "0"]
    program = "import sys; from fedjax_fair.app.cli import main; sys.exit(main(sys.argv[1:]))"
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}

    def kept(name, **switches):
        settings = own | switches | {"XDG_CACHE_HOME": str(tmp_path / name), "JAX_PLATFORMS": "cpu"}
        output = ["--output", str(tmp_path / "runs")]
        subprocess.run([sys.executable, "-c", program, *command, *output], env=settings, check=True)
        return list((tmp_path / name).rglob("*jit_step*"))

    assert kept("on")
    assert not kept("off", JAX_ENABLE_COMPILATION_CACHE="false")
    assert not kept("elsewhere", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "there"))
    assert list((tmp_path / "there").iterdir())


def test_importing_the_package_is_light():
    heavy = {
        "PIL", "array_record", "importlib_resources", "matplotlib", "netCDF4", "orbax", "pandas",
        "platformdirs", "rich", "scipy", "sklearn", "tensorflow_datasets", "tyro", "xarray",
    }  # fmt: skip
    program = """import sys, jax, flax.linen, flax.nnx, optax, numpy, jaxtyping
needed = set(sys.modules)
import fedjax_fair
print(*set(sys.modules) - needed)"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {module.split(".")[0] for module in done.stdout.split()}
    assert "fedjax_fair" in imported
    assert not imported & heavy


@pytest.mark.parametrize("command", ["--help", "methods", "run --help"])
def test_a_closed_pipe_ends_a_command_without_a_message(command):
    program = "from fedjax_fair.app.cli import program; program()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141
