"""The reproduction of federated maximization: what it runs, what it keeps, what it says."""

import numpy as np
import pandas as pd
import pytest

from experiments.reproduction import federated_examples
from experiments.reproduction import federated_maximization as script
from fedjax_fair.submodular import federated as fed


@pytest.fixture
def small(monkeypatch):
    scores = np.random.default_rng(0).gamma(0.3, size=(20, 8)).astype(np.float32)

    def few(instance):
        for name in ("centralized", "popular", "random"):
            yield script.Setting(name)
        yield script.Setting("fedcg", rounds=4, cohort_size=5)
        yield script.Setting("fedcg", rounds=4)
        yield script.Setting("discrete-greedy", responses=6)

    monkeypatch.setattr(script, "settings", few)
    return fed.facility_location(scores)


def test_what_was_run_is_not_run_again(small, tmp_path, monkeypatch):
    file = tmp_path / "federated-maximization-runs.csv"
    script.run_missing("small", small, 3, (0, 1), file)
    runs = pd.read_csv(file)
    assert runs["method"].value_counts().to_dict() == {
        "centralized": 1, "popular": 1, "random": 2, "fedcg": 3, "discrete-greedy": 2,
    }  # fmt: skip

    def never(*arguments):
        raise AssertionError("ran again")

    monkeypatch.setattr(script.method_comparison, "compare", never)
    script.run_missing("small", small, 3, (0, 1), file)
    with pytest.raises(AssertionError, match="ran again"):
        script.run_missing("small", small, 4, (0, 1), file)

    script.write(file)
    table = pd.read_csv(tmp_path / "federated-maximization.csv").set_index("method")
    assert table.loc["centralized", "ratio"] == 1
    assert table.loc["popular", "beyond_popular"] == 0
    assert (table.loc["fedcg", "slack"] >= 0).all()
    own = runs[runs["method"] == "random"]["final_value"].mean()
    best = runs[runs["method"] == "centralized"]["final_value"].iloc[0]
    np.testing.assert_allclose(table.loc["random", "ratio"], own / best, rtol=1e-4)
    written = (tmp_path / "federated-maximization-tables.md").read_text()
    assert "### small, k = 3" in written
    assert "| `fedcg` | 4 | all |" in written
    assert (tmp_path / "federated-maximization.png").stat().st_size > 1000


def test_votes_for_bases_split_the_welfare_alike():
    rows = {
        (row["problem"], row["method"]): row for row in federated_examples.welfare_and_projects(0)
    }
    votes, gradients = rows["welfare", "fedcg, base"], rows["welfare", "fedcg, gradient"]
    # An agent wants every item, whichever other agents vote, and all agents have equal weights.
    assert votes["apart"] < 1e-5
    assert gradients["apart"] > 0.5
    assert votes["extension"] < 0.6 < 0.9 < gradients["extension"] <= 1.05
    assert votes["value"] < gradients["value"]
