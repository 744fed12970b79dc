"""Text on the command line."""

import gzip
import json

import pytest

from fedjax_fair import results
from fedjax_fair.app.cli import main

ROLES = {
    "Ophelia": "My lord, I have remembrances of yours, that I have longed long to re-deliver; ",
    "Hamlet": "No, not I; I never gave you aught. Ha, ha! are you honest? ",
    "Ghost": "Mark me. I am thy father's spirit, ",
}


@pytest.fixture
def folder(tmp_path):
    lines = [
        {"play": "hamlet", "role": role, "text": speech}
        for _ in range(8)
        for role, speech in ROLES.items()
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    (tmp_path / "shakespeare.jsonl.gz").write_bytes(gzip.compress(content))
    return tmp_path


SMALL = [
    *("run", "shakespeare", "--methods", "fedavg", "--data.clients", "2"),
    *("--data.min-characters", "250", "--data.length", "20", "--model.width", "8"),
    *("--training.rounds", "2", "--training.seeds", "0", "--selector.cohort-size", "2"),
]


@pytest.mark.parametrize(
    "network", [[], ["--model.name", "char_transformer", "--model.heads", "2"]]
)
def test_roles_are_trained_by_name(folder, network, capsys, monkeypatch, without_figures):
    monkeypatch.setattr("fedjax_fair.app.experiment.draw", lambda dataset, folder: None)
    output = folder / "runs"
    given = ["--data.dir", str(folder), "--output", str(output), *network]
    assert main([*SMALL, *given]) == 0
    shown = capsys.readouterr().out
    assert "Test perplexity of " in shown
    dataset = results.open(next(output.rglob("results.nc")))
    assert set(dataset["client"].values) <= {f"hamlet: {role}" for role in ROLES}
    assert {"perplexity_pooled", "perplexity_mean_clients"} <= set(dataset)
    assert dataset["train_examples"].attrs["units"] == "labels"


def test_roles_are_shown(folder, capsys):
    words = ["data", "show", "--data.name", "shakespeare", "--data.dir", str(folder)]
    assert main([*words, "--data.length", "20", "--data.min-characters", "280"]) == 0
    shown = capsys.readouterr().out
    assert "hamlet: Ghost, hamlet: Hamlet, hamlet: Ophelia" in shown
    assert "20 labels per example" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data.length 500", "length=500: expected at most 77"),
        ("--data.length 0", "length=0: expected an integer >= 1"),
        ("--data.length ten", "--data.length ten: expected an integer"),
        ("--data.min-characters 9999", "min_characters=9999: expected at most"),
        ("--data.clients 4", "num_clients=4: expected at most 3"),
        ("--data.name mnist", "--data.length has no effect"),
        ("--model.name lenet", "--model.width has no effect"),
        ("--model.name char_transformer --model.heads 3", "width=8: expected a multiple of 6"),
        ("--model.embedding-width 0", "embedding_width=0: expected an integer >= 1"),
        ("--data.partition-per-seed --training.seeds 0 1", "client_names: expected"),
    ],
)
def test_bad_settings_of_text_are_one_line(folder, words, message, capsys):
    given = [*SMALL, "--data.dir", str(folder), "--output", str(folder / "runs"), *words.split()]
    assert main(given) == 2
    shown = capsys.readouterr().err.strip()
    assert message in shown
    assert "\n" not in shown
    assert not (folder / "runs").exists()


def test_other_networks_and_data_are_refused(folder, capsys):
    for words, message in (
        (["run", "digits", "--model.name", "char_lstm"], "expected tokens, integers"),
        (["run", "shakespeare", "--data.dir", str(folder / "none")], "no shakespeare.jsonl.gz in"),
    ):
        assert main(words) == 2
        shown = capsys.readouterr().err.strip()
        assert message in shown
        assert "\n" not in shown
