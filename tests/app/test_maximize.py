"""Commands of federated maximization: tables, folders, figures and errors."""

import itertools
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from fedjax_fair import results
from fedjax_fair.app import maximize
from fedjax_fair.app.cli import main
from fedjax_fair.app.maximization_tasks import (
    Task,
    constraint,
    exemplars,
    features,
    movielens,
    scores,
)
from fedjax_fair.app.settings.config import Maximize, MaximizeFeatures
from fedjax_fair.data.sources.ratings import read_ratings
from fedjax_fair.report.maximization_page import chosen_pictures, value_against_bits
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated import method_comparison

METHODS = list(method_comparison.NAMES)
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
    found, task = results.open(folder), exemplars(10)
    for mask, said in zip(
        found["chosen"].values.reshape(-1, 355).astype(bool),
        found["final_value"].values.ravel(),
        strict=True,
    ):
        served = task.scores[:, :, mask].max(axis=2).sum(axis=1)
        np.testing.assert_allclose(said, served.mean(), rtol=1e-5)


def test_public_images_are_not_private():
    task = exemplars(10)
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
        ("exemplars --methods fedgc", "did you mean 'fedcg'"),
        ("exemplars --step 0.1", "step * rounds is 2, expected at most 1"),
        ("exemplars --sigma 0", "sigma=0"),
        ("exemplars --epsilon 1", "epsilon=1"),
        ("exemplars --matroid laminar --rounding pipage", "use 'swap'"),
        ("exemplars --matroid partitions", "did you mean"),
        ("exemplars --matroid partition --per-class 0", "per_class=0"),
        ("exemplars --per-class 0", "per_class=0: expected an integer >= 1."),
        ("features --bins 0", "bins=0: expected an integer >= 1."),
        ("exemplars --matroid missing.json", "missing.json"),
        ("scores", "file=None: expected a table of scores; set --file."),
        ("scores --file missing.csv", "missing.csv"),
        ("features --file missing.csv", "missing.csv"),
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
    task = movielens("movielens/100k-ratings", str(tfds_folder))
    found = maximize.solve(task, Maximize(k=5, rounds=4, local_steps=2, cohort_size=30, seeds=(0,)))
    share = found["final_value"] / found["final_value"].sel(algorithm="centralized")
    assert share.sel(algorithm="random") < 0.7 < share.sel(algorithm="fedcg")
    value = jax.jit(lambda scores, mask: task.make(scores).value(mask))
    own = value(task.scores, np.asarray(found["chosen"][0, 0], bool))
    np.testing.assert_allclose(own, found["final_value"][0, 0], rtol=1e-6)


def task(**changes):
    """A problem of six items in two classes."""
    values = np.array([[5, 0, 1, 0, 2, 0], [0, 4, 0, 1, 0, 2], [1, 1, 3, 0, 0, 1]], np.float32)
    made = Task(
        "small", fed.facility_location, values, np.array(list("abcdef")), np.array([1, 1, 2]),
        classes=np.array(list("xxxyyy")),
    )  # fmt: skip
    return made._replace(**changes)


def solved(made=None, **settings):
    start = {"k": 2, "rounds": 4, "local_steps": 2, "cohort_size": "all", "seeds": (0,)}
    return maximize.solve(made or task(), Maximize(**start | settings))


@pytest.mark.parametrize(
    ("settings", "rank", "feasible", "infeasible"),
    [
        ({}, 2, "ab", "abc"),
        ({"matroid": "partition"}, 2, "af", "ab"),
        ({"matroid": "partition", "per_class": 2}, 4, "abde", "abc"),
        ({"matroid": "laminar", "k": 3, "per_class": 2}, 3, "abd", "abde"),
        ({"matroid": {"partition": {"blocks": [0, 0, 0, 0, 1, 1], "capacities": [1, 2]}}}, 3,
         "aef", "ab"),
        ({"matroid": {"laminar": {"sets": [[1, 1, 0, 0, 0, 0], [1] * 6], "capacities": [1, 3]}}},
         3, "acd", "ab"),
        ({"matroid": {"graphic": {"edges": [[0, 1], [1, 2], [2, 0], [2, 3], [3, 4], [4, 2]]}}}, 4,
         "abde", "abc"),
    ],
)  # fmt: skip
def test_sets_obey_every_matroid(settings, rank, feasible, infeasible, tmp_path):
    if isinstance(settings.get("matroid"), dict):
        file = tmp_path / "matroid.json"
        file.write_text(json.dumps(settings["matroid"]))
        settings = settings | {"matroid": str(file)}
    matroid = constraint(Maximize(**settings), task()) if settings else None
    found = solved(**settings)
    assert found.attrs["k"] == rank
    if matroid is not None:
        for letters in (feasible, infeasible):
            mask = jnp.asarray(np.isin(list("abcdef"), list(letters)))
            assert matroid.independent(mask) == (letters == feasible)
        for mask in found["chosen"].values.reshape(-1, 6).astype(bool):
            assert matroid.independent(jnp.asarray(mask))
    # The best base by enumeration bounds all, and greedy reaches half of it.
    subsets = [np.isin(range(6), each) for each in itertools.combinations(range(6), rank)]
    values = [
        task().scores[:, mask].max(axis=1).mean()
        for mask in subsets
        if matroid is None or matroid.independent(jnp.asarray(mask))
    ]
    assert found["final_value"].max() <= max(values) + 1e-6
    assert found["final_value"].sel(algorithm="centralized") >= max(values) / 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"graphik": {"edges": [[0, 1]]}}', "did you mean 'graphic'"),
        ('{"graphic": {"edge": [[0, 1]]}}', "edge"),
        ('{"graphic": {"edges": [[0, 1]]}}', "expected a matroid of the 6 items, got one of 1"),
        ('{"partition": {"blocks": [0, 1, 2, 0, 0, 0], "capacities": [1]}}', "blocks: expected"),
        ("[1]", "expected one of"),
        ('{"graphic": 3}', "expected one of"),
        ("{", "expected one of"),
    ],
)
def test_a_file_that_describes_no_matroid_is_refused(content, message, tmp_path):
    file = tmp_path / "matroid.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        constraint(Maximize(matroid=str(file)), task())
    assert "\n" not in str(error.value)


def test_items_without_classes_have_no_partition():
    with pytest.raises(ValueError, match="items of small have no classes"):
        constraint(Maximize(matroid="partition"), task(classes=None))


def test_weights_of_clients_follow_their_examples():
    found = solved(client_weights="size")
    for mask, said in zip(
        found["chosen"].values[:, 0].astype(bool), found["final_value"].values[:, 0], strict=True
    ):
        own = task().scores[:, mask].max(axis=1)
        np.testing.assert_allclose(said, own @ [0.25, 0.25, 0.5], rtol=1e-6)


@pytest.mark.parametrize("rounding", ["swap", "pipage"])
def test_random_rounding_makes_bases(rounding):
    found = solved(rounding=rounding, seeds=(0, 1, 2))
    assert (found["chosen"].sum("item") == 2).all()
    if rounding == "pipage":
        own = found.sel(algorithm=["fedcg", "fedcg-gradient", "fedcg+"])
        np.testing.assert_array_equal(own["final_value"], own["rounded"])


def test_a_smaller_step_goes_less_far():
    far, near = (solved(step=step, methods=("fedcg", "fedcg+")) for step in (0.25, 0.05))
    for name in ("fedcg", "fedcg+"):
        reached = [each["extension_reached"].sel(algorithm=name).item() for each in (near, far)]
        assert 0 < reached[0] < reached[1]
    assert near["algorithm"].values.tolist() == ["centralized", "popular", "fedcg", "fedcg+"]


def test_epsilon_has_the_bound_of_theorem_5_1():
    found = solved(epsilon=0.5).sel(algorithm="discrete-greedy")
    np.testing.assert_allclose(found["guaranteed_factor"], (1 - np.exp(-1)) * 0.5 / 1.5, rtol=1e-6)
    assert found["guaranteed_error"].item() == 0
    half = solved(epsilon=0.5, matroid="partition").sel(algorithm="discrete-greedy")
    np.testing.assert_allclose(half["guaranteed_factor"], 0.5 * 0.5 / 1.5, rtol=1e-6)


def test_sampled_gradients_have_the_error_of_theorem_4_3():
    exact, sampled = (solved(sigma=sigma, cohort_size=3) for sigma in (None, 0.5))
    errors = [each["guaranteed_error"].sel(algorithm="fedcg+").item() for each in (exact, sampled)]
    # 2 R sigma r (1 + sqrt(R / (K delta))) of R = 2 rounds, r = 2, K = 3, delta = 0.05 and a step
    # of 1/2; sigma is half of 5, the largest value of an item to a client.
    added = 0.5 * 2 * 2 * 2.5 * 2 * (1 + np.sqrt(2 / (3 * 0.05)))
    # The paths differ, and with them the other terms.
    assert errors[1] > added
    assert errors[1] > errors[0]


def test_importance_factors_are_the_largest_shares():
    shares = task().scores / task().scores.sum(axis=0)
    np.testing.assert_allclose(solved()["importance_factor"], shares.max(axis=1), rtol=1e-6)


def table(path, rows):
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    return str(path)


def test_scores_of_a_table(tmp_path, capsys):
    rows = [["name", "a", "b", "c"], ["p", 4, 0, 1], ["q", 0, 3, 2], ["r", 1, 0, 0]]
    file = table(tmp_path / "scores.csv", rows)
    values = np.array([row[1:] for row in rows[1:]], float)
    best, covered = scores(file, "facility_location"), scores(file, "coverage")
    found = solved(made=best, k=1).sel(algorithm="centralized")
    assert best.labels[found["chosen"].values[0].astype(bool)] == ["a"]
    np.testing.assert_allclose(found["final_value"], 5 / 3, rtol=1e-6)
    np.testing.assert_allclose(solved(made=covered, k=1)["final_value"][0], 2 / 3, rtol=1e-6)
    # Additive values: every item is given to the client that values it most.
    given = solved(made=scores(file, "welfare"), k=1).sel(
        algorithm=["centralized", "fedcg-gradient"]
    )
    np.testing.assert_allclose(given["final_value"], values.max(axis=0).sum() / 3, rtol=1e-6)
    assert given.attrs["k"] == 3
    runs = tmp_path / "runs"
    arguments = ["--file", file, "--k=2", "--cohort-size=all", "--seeds", "3", f"--output={runs}"]
    assert main(["maximize", "scores", *arguments]) == 0
    assert "2 of 3 items for 3 clients" in capsys.readouterr().out
    (folder,) = runs.iterdir()
    assert json.loads((folder / "config.json").read_text())["command"] == "maximize scores"
    (folder / "results.nc").unlink()
    assert main(["resume", str(folder)]) == 0
    assert results.open(folder)["seed"].values.tolist() == [3]


@pytest.mark.parametrize("cell", ["-1", "", "inf"])
def test_scores_that_are_no_values_are_refused(cell, tmp_path):
    file = table(tmp_path / "scores.csv", [["a", "b"], [1, 2], [cell, 3]])
    with pytest.raises(ValueError, match="expected numbers >= 0"):
        scores(file, "coverage")


def test_features_of_a_table(tmp_path):
    rng = np.random.default_rng(0)
    label, client = np.tile([0, 1], 60), np.repeat([0, 1, 2], 40)
    noise = rng.normal(size=120).round(3)
    close = np.where(rng.random(120) < 0.9, label, 1 - label)
    kind = np.where(label == 1, "yes", "no")
    rows = [["noise", "close", "kind", "y", "owner"]]
    rows += map(list, zip(noise, close, kind, label, client, strict=True))
    file = table(tmp_path / "examples.csv", rows)
    made = features(MaximizeFeatures(file=file, label="y", client="owner"))
    assert made.labels.tolist() == ["noise", "close", "kind"]
    assert made.sizes.tolist() == [40, 40, 40]
    found = solved(made=made, k=1, sigma=0.5).sel(algorithm="centralized")
    assert made.labels[found["chosen"].values[0].astype(bool)] == ["kind"]
    # One is added to each of four counts, for 20 examples of each label on a client.
    joint = np.array([[21, 1, 1, 1], [1, 21, 1, 1]]) / 48
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    information = np.sum(joint * np.log(joint / independent))
    np.testing.assert_allclose(found["final_value"], information, rtol=1e-5)
    with pytest.raises(ValueError, match="label=None: expected a column of"):
        features(MaximizeFeatures(file=file, client="owner"))
    with pytest.raises(ValueError, match=r"client='own': expected a column of .*owner"):
        features(MaximizeFeatures(file=file, label="y", client="own"))


@pytest.mark.parametrize("column", ["label", "client"])
def test_rows_without_a_label_or_client_are_named(column, tmp_path):
    rows = [["x", "label", "client"], [0, 1, "p"], [1, 0, "q"], [1, 1, "q"]]
    rows[2][rows[0].index(column)] = ""
    file = table(tmp_path / "examples.csv", rows)
    with pytest.raises(ValueError, match=f"{column}='{column}': 1 rows of .* have no value"):
        features(MaximizeFeatures(file=file, label="label", client="client"))
