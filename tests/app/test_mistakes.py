"""Mistakes on the command line end in one line and exit status 2."""

import subprocess
import sys

import jax
import pytest
from small_run import SMALL

from fedjax_fair.app import experiment
from fedjax_fair.app.cli import main

pytestmark = pytest.mark.usefixtures("wide_terminal")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rnu", "did you mean 'run'"),
        ("run minst", "did you mean 'mnist'"),
        ("run --solver.learning-rat 1", "did you mean --solver.learning-rate"),
        ("run --solver.learning_rat=1", "did you mean --solver.learning-rate"),
        ("run --completely-different 1", "fedjax-fair run"),
        ("run --methods fedporx", "did you mean 'fedprox' or 'fedper' or 'fedcor'? `fedjax-fair"),
        ("run --methods zzz", "method='zzz': a method of your own needs --plugin FILE or"),
        ("sweep --methods divfl+equitible", "did you mean 'equitable'"),
        ("methods fdavg", "did you mean 'fedavg' or "),
        ("methods fedavg divfl", "methods: expected NAME, got fedavg divfl."),
        ("methods fedavg --format markdown", "format='markdown': expected 'terminal'"),
        ("run --methods subtrunc:lamda=1", "did you mean 'lam'"),
        ("run --model.name lenett", "did you mean 'lenet'"),
        ("run --data.partition dirichlt", "did you mean 'dirichlet'"),
        ("run --data.name mnits", "Did you mean 'mnist'?"),
        ("run --data.name MNIST", "Did you mean 'mnist'?"),
        ("run --solver.lr 1", "did you mean --solver.learning-rate?"),
        ("run --rounds 5", "did you mean --training.rounds?"),
        ("run --methods fedavg:lr=1", "did you mean 'learning_rate'?"),
        ("sweep lr=0.1", "did you mean 'learning_rate'?"),
        ("sweep seeds=3:3", "seeds='3:3': expected integers"),
        ("run --training.seeds 0:x", "--training.seeds 0:x: expected integers"),
        ("run --training.seeds 0:3,2", "training.seeds=(0, 1, 2, 2)"),
        ("run --methods fedavg,fedporx:prox=1,steps=2", "method='fedporx': did you mean"),
        (
            "run --methods gifair",
            "such as of planted_clusters (--data.partition planted_clusters)",
        ),
        ("run --data.name mnist --data.dir /nowhere", "/nowhere"),
        ("run --data.classes-per-client 11", "11"),
        ("run --solver.prox much", "--solver.prox"),
        ("run --methods fedprox --solver.prox -1", "prox=-1"),
        ("run --methods fedprox --solver.prox nan", "prox=nan"),
        ("run --solver.prox", "--solver.prox: expected a number."),
        ("run --solver.prox=much --devices 1", "--solver.prox much: expected a number."),
        ("run --solver.batch_size a_b", "--solver.batch-size a_b: expected an integer."),
        ("run --selector.candidates al", "candidates al: expected an integer or 'auto' or 'all'."),
        ("run --selector.scale sam", "--selector.scale sam: expected 'mean' or 'sum'."),
        ("run --model.hidden 5 wide", "--model.hidden 5 wide: expected integers."),
        ("run --distributed maybe", "unexpected argument 'maybe' after --distributed"),
        ("run --faults.dropout nan", "faults.dropout=nan: expected a"),
        ("run --faults.period 0", "faults.period=0: expected an integer >= 1."),
        ("sweep prox=0,1 --runs-per-batch 0 --dry-run", "runs_per_batch=0: expected an integer"),
        ("run --faults.staleness 2 --faults.max-staleness 3", "faults.staleness=2.0: expected"),
        (
            "run --faults.staleness 0.5",
            "faults.staleness=0.5: max_staleness=None: expected a value",
        ),
        (
            "run --faults.byzantine 0.2",
            "faults.byzantine=0.2: attack=None: expected 'sign_flip' or 'scaling' or 'noise' or",
        ),
        ("run --methods median+krum", "two of them set the aggregator;"),
        ("run mnist fedavg", "unexpected argument 'fedavg'; did you mean --methods fedavg?"),
        ("data show mnist", "unexpected argument 'mnist'; did you mean --data.name mnist?"),
        ("data show --data.name mnist --data.dir /nowhere", "(no such folder: /nowhere)"),
        ("data list --data.dir /nowhere", "data.dir='/nowhere': no such folder."),
        ("run digits --data.dir /tmp", "--data.dir has no effect: data.name='digits'"),
        ("data show --data.dir /tmp", "--data.dir has no effect: data.name='digits'"),
        ("data info digits --data.dir /tmp", "is not used by digits, which needs no folder;"),
        ("run --config nope.toml", "config='nope.toml': no such file; expected a TOML or JSON"),
        ("run --data.file no.csv --data.label x", "data.file='no.csv': no such file; expected a"),
        ("run --data.file no.csv --methods fdavg", "data.file='no.csv': no such file"),
        ("sweep lamda=1 --data.file no.npz", "data.file='no.npz': no such file"),
        ("plan --data.file no.parquet --machine moon", "data.file='no.parquet': no such file"),
        ("data show --data.file no.csv", "data.file='no.csv': no such file"),
        ("run --config /", "config='/': is a folder; expected a TOML or JSON file."),
        ("run --faults.attack alie", "--faults.attack has no effect without --faults.byzantine;"),
        (
            "run --training.on-nonfinite skip",
            "on-nonfinite skip: expected 'raise' or 'drop_client' or 'skip_round'",
        ),
        ("maximize exemplars --k ten", "--k ten: expected an integer."),
        ("run --training.rounds 1.5", "--training.rounds"),
        ("run --training.rounds -1", "training.rounds=-1"),
        ("run --training.seeds 1 1", "training.seeds"),
        ("run --training.seeds", "training.seeds"),
        ("run --selector.cohort-size 51", "cohort_size=51"),
        ("run --aggregator.weights big", "weights"),
        ("run --devices 1000", "devices=1000"),
        ("run --devices none", "devices='none': expected an integer >= 1, 'auto', 'all' or 'runs="),
        ("run --devices runs=4,client=2", "devices='runs=4,client=2': expected an integer >= 1,"),
        ("run --devices=runs=4", "devices='runs=4': expected an integer >= 1,"),
        ("run --devices runs=0,clients=2", "devices='runs=0,clients=2': expected an integer >= 1,"),
        ("run --devices runs=-1,clients=2", "'runs=-1,clients=2': expected an integer >= 1,"),
        ("run --devices runs=2,clients=2x", "'runs=2,clients=2x': expected an integer >= 1,"),
        ("run --devices runs=1000,clients=2", "'runs=1000,clients=2': expected at most"),
        ("sweep --devices runs=1000,clients=2", "'runs=1000,clients=2': expected at most"),
        (
            "run --devices all --data.partition-per-seed",
            "devices='all': expected 1, 'auto' or 'runs=R,clients=1' with data.partition_per_seed.",
        ),
        ("run --devices all --methods centralized", "'runs=R,clients=1' for centralized."),
        ("run digits mnist", "unexpected argument 'mnist'"),
        ("run --data.alpha 0.1", "--data.alpha has no effect: data.partition="),
        (
            "run --methods fedavg --selector.lam 3",
            "--selector.lam has no effect: fedavg",
        ),
        (
            "run --methods fedprox:prox=0.1 fedprox:prox=1 --solver.prox 5",
            "--solver.prox has no effect: fedprox:prox=0.1 and fedprox:prox=1",
        ),
        (
            "run --methods fedavg:steps=5 --solver.epochs 3",
            "--solver.epochs has no effect: fedavg:steps=5",
        ),
        ("run --methods fedavg:steps=5,epochs=2", "exactly one of steps=5 and epochs=2."),
        (
            "run --model.name logistic --model.hidden 5",
            "--model.hidden has no effect: model.name=",
        ),
        ("run --methods divfl --selector.candidates 0", "candidates=0: expected an integer >= 1"),
        ("run --methods fedavg:alpha=9", "expected one of learning_rate, batch_size, steps"),
        ("run --methods fedavg:rounds=5", "setting='rounds': expected one of learning_rate"),
        ("run --methods divfl:tilt=9", "setting='tilt': expected one of learning_rate"),
        ("run --methods subtrunc:lam=1,lam=2", "expected lam once"),
        ("run --methods fedavg fedavg", "one or more different methods"),
        ("sweep lam=0.1 lam=0.2", "lam: expected once, with values between commas"),
        ("sweep lam=much", "lam='much': expected a number."),
        ("sweep --methods subtrunc lam=much", "lam='much': expected a number."),
        ("sweep --training.rounds 2 lam=much", "lam='much': expected a number."),
        ("sweep candidates=al,2", "candidates='al': expected an integer or 'auto' or 'all'."),
        ("sweep center=maybe", "center='maybe': expected True or False."),
        ("sweep hidden=wide", "hidden='wide': expected integers."),
        ("run --methods subtrunc:scale=sam", "scale='sam': expected 'mean' or 'sum'."),
        ("sweep lam=0.1,0.2 --methods fedavg", "expected a setting that one of fedavg uses"),
        ("show", "show: expected RUN, got nothing"),
        ("show nowhere", "nowhere"),
        ("compare", "compare: expected RUNS, got nothing"),
        ("compare nowhere", "nowhere"),
        ("resume nowhere", "nowhere"),
        ("data", "data list"),
        ("data info mnits", "mnits"),
        (
            "run --communication.aggregation secure --methods divfl",
            "divfl: selector: DivFL needs vectors",
        ),
        (
            "run --communication.aggregation secure --methods krum",
            "krum: aggregator: Krum needs vectors",
        ),
        (
            "run --communication.max-abs-value 4 --methods fedavg",
            "--communication.max-abs-value has no effect without --communication.aggregation",
        ),
        (
            "run --communication.aggregation secure --communication.max-abs-value 0",
            "max_abs_value=0.0: expected a number > 0",
        ),
        (
            "run --communication.top-k 2 --methods fedavg",
            "top_k=2.0: expected a number > 0 and <= 1",
        ),
        ("run --communication.bits 40 --methods fedavg", "bits=40: expected an integer"),
        (
            "run --communication.bits 4 --communication.top-k 0.1 --methods fedavg",
            "communication.top_k=0.1 and communication.bits=4: expected one",
        ),
        (
            "run --communication.noise-multiplier 1 --methods fedavg",
            "--communication.noise-multiplier has no effect without",
        ),
        (
            "run --communication.target-unclipped-quantile 0.5 --methods fedavg",
            "communication.target_unclipped_quantile=0.5: noise_multiplier=None: expected a value",
        ),
        ("run --communication.clipping-norm 1 --methods fedavg", "fedavg: "),
        (
            "run --communication.aggregation secure --communication.bits 4 --methods fedavg",
            "fedavg: compression does not reduce",
        ),
        (
            "run --communication.aggregation secure --methods centralized",
            "communication: expected none with",
        ),
        (
            "run --methods fedavg fedavg:",
            "method='fedavg:': setting='': expected one of learning_rate",
        ),
        ("run --methods fedprox:prox=1 fedprox:solver.prox=1.0", "one or more different methods"),
        ("run --methods fedavg fedavg:steps=2 --solver.steps=2", "one or more different methods"),
        ("run --methods fedprox fedprox:prox=1", "one or more different methods"),
        ("run --methods divfl divfl:candidates=auto,epochs=5", "one or more different methods"),
        ("run mnist --methods fedavg fedavg:name=lenet", "one or more different methods"),
        ("run --methods divfl+equitable equitable+divfl", "one or more different methods"),
        ("run --solver.learning-rate 1e-400", "--solver.learning-rate 1e-400: 1e-400 is beyond"),
        ("run --solver.learning-rate=1e400", "1e400 is beyond the range of numbers"),
        ("run --methods fedavg:learning_rate=1e-400", "1e-400 is beyond the range of numbers"),
        ("sweep learning_rate=0.1,1e-400", "1e-400 is beyond the range of numbers"),
        ("run --solver.learning-rate 1e39", "learning_rate=1e+39: expected a"),
        ("run --solver.learning-rate 1e-39", "learning_rate=1e-39: expected 0 or a"),
        ("run --faults.dropout 1", "faults.dropout=1.0: no client would respond"),
        (f"run --training.rounds {10**400}", "training.rounds=2**"),
        (f"run --training.rounds {2**31}", "training.rounds=2147483648: expected an integer >= 1"),
        (f"sweep rounds=1,{10**30} --methods fedavg", "training.rounds=2**"),
        (f"run --solver.steps {10**400}", "steps=2**"),
        (f"run --training.eval-every {10**400}", "training.eval_every=2**"),
        ("run --training.seeds 0:20000", "0:20000: expected at most 10,000 integers in a range"),
        ("sweep seeds=5:1000000000000", "expected at most 10,000 integers in a range"),
        ("sweep lam=0.1 selector.lam=0.2", "lam, selector.lam: expected each setting once"),
        ("run --distributed=false", "--distributed=false: expected --distributed without a value"),
        (f"run --model.hidden 5 {10**400}", "hidden=2**"),
        (f"run --faults.staleness 1 --faults.max-staleness {10**400}", "max_staleness=2**"),
        (
            f"run --faults.stragglers 1 --faults.deadline-steps {2**40}",
            "deadline_steps=1099511627776",
        ),
        (f"run --faults.period {-(2**31)}", "period=-2147483648: expected"),
        (f"maximize exemplars --rounds {10**400}", "rounds=2**"),
        ("run --output=", "output='': expected a path"),
        ("run --config=", "config='': expected a path"),
        ("run --data.dir=", "data.dir='': expected a path"),
        (
            "run digits --data.unseen-fraction 1",
            "data.unseen_fraction=1.0: expected a number in [0, 1)",
        ),
        (
            "run digits --data.unseen-fraction 0.995",
            "data.unseen_fraction=0.995 holds out all of 50 clients",
        ),
        (
            "run digits --data.unseen-fraction 0.2 --selector.cohort-size 41",
            "cohort_size=41: expected an integer >= 1 and <= 40",
        ),
        (
            "data show --output partition",
            "output='partition': expected a file such as partition.png",
        ),
    ],
)
def test_a_mistake_ends_in_one_line(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("fedjax-fair: ")
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["run", "sweep", "plan", "contributions", "data show"])
def test_a_missing_central_test_set_is_named_before_other_settings(
    command, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")  # Without --data.label.
    words = [*command.split(), "--data.file=rows.csv", "--data.central-test=no.csv"]
    assert main(words) == 2
    assert "data.central_test='no.csv': no such file; expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [MemoryError("unable to allocate"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 7 TB")],
)
def test_a_run_without_enough_memory_ends_in_one_line(error, monkeypatch, capsys, tmp_path):
    def exhaust(*arguments, **options):
        raise error

    monkeypatch.setattr(experiment, "execute", exhaust)
    assert main(["run", *SMALL, "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"fedjax-fair: out of memory: {error}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--solver.batch-size", "1000000000", "--solver.replacement"],
            ["solver.batch_size=1000000000", "minibatches"],
        ),
        (["--solver.steps", "2000000000"], ["solver.steps=2000000000", "minibatches"]),
        (["--model.name", "mlp", "--model.hidden", "2000000000"], ["training.seeds", "model"]),
    ],
    ids=["batch", "steps", "model"],
)
def test_runs_that_exceed_the_memory_are_rejected_before_a_folder_is_made(
    options, words, capsys, tmp_path
):
    output = tmp_path / "runs"
    assert main(["run", *SMALL, *options, "--output", str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for word in (*words, "GB of memory"):
        assert word in line
    assert not output.exists()


class UnprintableError(ValueError):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnprintableError("why"), "its message cannot be printed"),
        (
            jax.errors.JaxRuntimeError("Disallowed device-to-host transfer"),
            "JAX_",
        ),
    ],
)
def test_errors_that_are_hard_to_read_are_one_line(error, message, monkeypatch, capsys, tmp_path):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(experiment, "execute", fail)
    assert main(["run", *SMALL, "--output", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedjax-fair: {message}")


def test_other_runtime_errors_are_raised(monkeypatch, tmp_path):
    def fail(*arguments, **options):
        raise jax.errors.JaxRuntimeError("INTERNAL: a defect")

    monkeypatch.setattr(experiment, "execute", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a defect"):
        main(["run", *SMALL, "--output", str(tmp_path)])


def test_a_missing_data_set_is_described_with_how_to_get_it(capsys, tmp_path):
    assert main(["data", "info", "mnist", "--data.dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    described = dict(line.split(maxsplit=1) for line in lines[:5])
    assert described["prepared"] == "False"
    assert "None" not in described.values()
    # Long paths are wrapped.
    assert "run `fedjax-fair data prepare mnist --data.dir" in " ".join(" ".join(lines).split())


def test_a_warning_is_one_line_without_code():
    program = (
        "import warnings; from fedjax_fair.app import cli; "
        "cli._run = lambda words: warnings.warn('a\\n  b') or 0; cli.program()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr == "fedjax-fair: warning: a b\n"
    assert ended.returncode == 0
