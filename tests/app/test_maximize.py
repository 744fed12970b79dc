"""Commands of federated maximization: tables, folders, figures and errors."""

import json
import shutil

import jax
import numpy as np
import pytest
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app import maximize
from fedjax_fair.app.cli import main
from fedjax_fair.app.settings.config import Maximize
from fedjax_fair.data.sources.ratings import read_ratings
from fedjax_fair.report.maximization import chosen_pictures, value_against_bits
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated import method_comparison

METHODS = [
    "centralized", "popular", "random", "fedcg", "fedcg-gradient", "fedcg+", "discrete-greedy",
]  # fmt: skip
SMALL = [
    "--k=4",
    "--rounds=3",
    "--local-steps=2",
    "--clients=10",
    "--cohort-size=3",
    "--seeds",
    "1",
    "5",
]
RNG = np.random.default_rng(0)
SCORES = RNG.gamma(0.3, size=(30, 12)).astype(np.float32)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    parent = tmp_path_factory.mktemp("maximize") / "runs"
    assert main(["maximize", "exemplars", *SMALL, "--output", str(parent)]) == 0
    (path,) = parent.iterdir()
    return path


def test_the_folder_has_settings_and_results(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["k"] == 4
    assert config["clients"] == 10
    assert "jax" in json.loads((folder / "env.json").read_text())["versions"]
    assert {path.name for path in (folder / "plots").iterdir()} == {
        "chosen.png",
        "value-against-bits.png",
    }
    assert "Federated maximization on exemplars" in (folder / "report.html").read_text("utf8")
    found = results.open(folder)
    assert found["algorithm"].values.tolist() == METHODS
    assert found["seed"].values.tolist() == [1, 5]
    assert (found["chosen"].sum("item") == 4).all()
    best = found["final_value"].sel(algorithm="centralized", seed=1)
    assert (found["final_value"] <= best * 1.02).all()
    assert (found["final_value"].sel(algorithm="random") < 0.99 * best).all()


def test_show_prints_the_table(folder, capsys):
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    found = results.open(folder).mean("seed")
    greedy = found["final_value"].sel(algorithm="centralized")
    for method in METHODS:
        (row,) = (line for line in shown.splitlines() if line.split()[:1] == [method])
        own = found.sel(algorithm=method)
        assert f"{own['final_value']:.4g}" in row
        assert f"{100 * own['final_value'] / greedy:.1f}" in row


def test_an_interrupted_one_is_resumed_from_the_start(folder, tmp_path, monkeypatch, capsys):
    found, stopped = results.open(folder), tmp_path / "stopped"
    stopped.mkdir()
    for name in ("config.json", "env.json"):
        shutil.copy(folder / name, stopped)
    asked = {}

    def solve(task, config, show):
        asked[task.name] = config
        return found

    monkeypatch.setattr(maximize, "solve", solve)
    assert main(["resume", str(stopped)]) == 0
    assert (asked["exemplars"].k, asked["exemplars"].seeds) == (4, (1, 5))
    xr.testing.assert_identical(results.open(stopped), found)
    assert f"Run folder: {stopped}" in capsys.readouterr().out


def test_values_of_sets_are_correct(folder):
    found, task = results.open(folder), maximize.exemplars(10)
    for mask, said in zip(
        found["chosen"].values.reshape(-1, 355).astype(bool),
        found["final_value"].values.ravel(),
        strict=True,
    ):
        served = task.scores[:, :, mask].max(axis=2).sum(axis=1)
        np.testing.assert_allclose(said, served.mean(), rtol=1e-5)


def test_public_images_are_not_private():
    task = maximize.exemplars(10)
    # The scores of an image that is an exemplar too would hold a correlation of 1.
    correlations = task.scores * np.count_nonzero(task.scores.any(axis=2), axis=1)[:, None, None]
    assert correlations.max() < 1 - 1e-4
    assert np.all(task.scores >= 0)
    np.testing.assert_allclose(task.scores.max(axis=2).sum(axis=1), 0.93, atol=0.05)


@pytest.fixture(scope="module")
def compared():
    chosen = method_comparison.methods(rounds=6, local_steps=3, cohort_size=None, kappa=None)
    chosen |= {
        f"{name}, few": method
        for name, method in method_comparison.methods(
            rounds=6, local_steps=3, cohort_size=5, kappa=8.0
        ).items()
    }
    four = matroids.Uniform(4, 12)
    ways = method_comparison.baselines() | chosen
    return method_comparison.compare(fed.facility_location(SCORES), four, ways, seeds=(0, 1))


def test_bits_are_counted_as_the_algorithms_send_them(compared):
    last = compared.max("round")
    floats, base = 32 * 12, 4 * 4  # Of n = 12 numbers; of 4 items out of 12.

    def bits(name):
        return [int(last[column].sel(algorithm=name).max()) for column in ("bits_up", "bits_down")]

    assert bits("centralized") == bits("random") == [0, 0]
    assert bits("popular") == [30 * floats, 0]
    assert bits("fedcg") == [6 * 30 * base, 6 * 30 * floats]
    assert bits("fedcg, few") == [6 * 5 * base, 6 * 5 * floats]
    assert bits("fedcg-gradient") == [6 * 30 * floats, 6 * 30 * floats]
    assert bits("fedcg+") == [2 * 30 * floats, 2 * 30 * floats]
    # Factors once up and down; then all clients answer, and learn the items so far.
    responses_up = 30 * 4 * (0 + 1 + 2 + 3)
    assert bits("discrete-greedy") == [5 * 30 * floats, 30 * floats + responses_up]
    assert int(last["rounds"].sel(algorithm="discrete-greedy").max()) == 4 + 2


def test_all_clients_answering_is_centralized_greedy(compared):
    of_all, own = (compared.sel(algorithm=name) for name in ("centralized", "discrete-greedy"))
    assert (of_all["chosen"] == own["chosen"]).all()
    few = compared.sel(algorithm="discrete-greedy, few")
    assert (few["responded"].max("round") < own["responded"].max("round")).all()


def test_guarantees_hold(compared):
    optimum = compared["final_value"].max()
    reached = compared["extension_reached"] + compared["guaranteed_error"]
    slack = (reached - compared["guaranteed_factor"] * optimum).dropna("algorithm")
    assert slack.sizes["algorithm"] == 5  # All but greedy ones and fedcg+ with all clients.
    assert (slack >= 0).all()
    upper_bound = compared["upper_bound"].sel(algorithm="fedcg-gradient")
    assert (upper_bound >= optimum).all()


def test_kappa_gives_the_expected_number_of_responses():
    problem = fed.facility_location(SCORES)
    factors = np.asarray(fed.importance_factors(problem).factors)
    for responses in (1, 7.5, 29, int(np.count_nonzero(factors))):
        kappa = fed.kappa_for_responses(factors, responses)
        np.testing.assert_allclose(np.minimum(kappa * factors, 1).sum(), responses, rtol=1e-5)
    with pytest.raises(ValueError, match=r"responses=31: expected a number in \(0, 30\]"):
        fed.kappa_for_responses(factors, 31)


def test_figures_show_the_numbers(folder):
    found = results.open(folder)
    figure = value_against_bits(found)
    (line,) = (line for line in figure.axes[0].lines if line.get_label() == "fedcg")
    own = found.mean("seed").sel(algorithm="fedcg")
    spent = (own["bits_up"] + own["bits_down"]).dropna("round").values[1:]
    np.testing.assert_allclose(np.asarray(line.get_xdata(), float), spent)
    panels = chosen_pictures(found).axes
    assert len(panels) == 4 * len(METHODS)
    first = found["chosen"].values[0, 0].astype(bool)
    shown = np.array([axes.images[0].get_array() for axes in panels[:4]])
    order = np.argsort(found["label"].values[first], kind="stable")
    np.testing.assert_array_equal(shown, found["picture"].values[first][order])


def test_one_seed_is_no_number_of_seeds(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(maximize, "execute", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["maximize", "exemplars", "--seeds", "4", f"--output={tmp_path}"]) == 130
    assert "one seed, 4; for 4 seeds write --seeds 0:4\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("exempalrs", "did you mean 'maximize exemplars'"),
        ("", "maximize exemplars"),
        ("exemplars --kk 3", "unknown option --kk"),
        ("exemplars --k 0", "k=0"),
        ("exemplars --k 356", "k=356: expected an integer >= 1 and <= 355"),
        ("exemplars --k few", "--k"),
        ("exemplars --rounds 0", "rounds=0"),
        ("exemplars --rounds 3 --local-steps 4", "local_steps=4"),
        ("exemplars --cohort-size 51", "cohort_size=51"),
        ("exemplars --clients 0", "num_clients=0"),
        ("exemplars --clients 2000", "1442 examples for num_clients=2000: expected at least 6000"),
        ("exemplars --seeds 1 1", "seeds"),
        ("movielens --data.dir /nowhere", "/nowhere"),
        ("movielens --data.dri /nowhere", "did you mean --data.dir"),
        ("movielens --data.name movielens/2m-ratings --data.dir /nowhere", "2m-ratings"),
    ],
)
def test_a_mistake_ends_in_one_line(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["maximize", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedjax-fair: ")
    assert message in line
    assert not list(tmp_path.iterdir())


def test_ratings_are_those_of_the_set(tfds_folder):
    ratings = read_ratings("movielens/100k-ratings", tfds_folder)
    assert ratings.num_users == 943
    assert ratings.titles.shape == (1682,)
    counts = np.bincount(ratings.stars.astype(int))
    np.testing.assert_array_equal(counts[1:], [6110, 11370, 27145, 34174, 21201])
    most = np.bincount(ratings.movies).argmax()
    assert ratings.titles[most] == "Star Wars (1977)"
    with pytest.raises(ValueError, match="expected ratings with a user_id"):
        read_ratings("mnist", tfds_folder)


def test_movielens_end_to_end(tfds_folder, monkeypatch):
    methods = method_comparison.methods
    monkeypatch.setattr(
        method_comparison, "methods", lambda **settings: {"fedcg": methods(**settings)["fedcg"]}
    )
    task = maximize.movielens("movielens/100k-ratings", str(tfds_folder))
    found = maximize.solve(task, Maximize(k=5, rounds=4, local_steps=2, cohort_size=30, seeds=(0,)))
    share = found["final_value"] / found["final_value"].sel(algorithm="centralized")
    assert share.sel(algorithm="random") < 0.7 < share.sel(algorithm="fedcg")
    value = jax.jit(lambda scores, mask: task.make(scores).value(mask))
    own = value(task.scores, np.asarray(found["chosen"][0, 0], bool))
    np.testing.assert_allclose(own, found["final_value"][0, 0], rtol=1e-6)
