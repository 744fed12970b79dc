"""The presets of the Equitable-FL paper, on generated data of the original shapes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from experiments.reproduction import cross, equitable, paper, runs
from fedjax_fair.app.build import build
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import ModelConfig, Preset
from fedjax_fair.app.settings.paper_presets import PAPERS
from fedjax_fair.app.settings.presets import PRESETS
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.data.sources.named_sources import SOURCES
from fedjax_fair.data.sources.source import Examples, Splits
from fedjax_fair.metrics import paired
from fedjax_fair.training.fit import fit

ALL = PRESETS | PAPERS
NAMES = [name for name in ALL if name.startswith(("equitable", "cross"))]
SHAPES = {
    "mnist": ((28, 28, 1), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
    "emnist/byclass": ((28, 28, 1), 62),
}


@pytest.fixture
def generated(monkeypatch):
    """Random images, enough for every client to have all of its classes."""

    def read(name):
        shape, num_classes = SHAPES[name]
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(num_classes), 36 if num_classes == 62 else 6)

        def draw(labels):
            return Examples(rng.integers(0, 256, (labels.size, *shape), np.uint8), labels)

        return Splits(draw(labels), draw(labels[::2]), num_classes)

    for name in SHAPES:
        entry = SOURCES[name]._replace(read=read, find=lambda data_dir, name=name: name)
        monkeypatch.setitem(SOURCES, name, entry)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("generated")
def test_every_preset_can_be_built(name):
    config = replace(ALL[name].config, model=ModelConfig(name="logistic"))
    ready = build(drop_unused_settings(presets.resolve(config)))
    assert list(ready.rounds) == list(config.methods)
    assert ready.data.groups.max() + 1 == config.aggregator.num_clusters
    clients = {"emnist/byclass": (90, 18)}.get(config.data.name, (10, 4))
    assert (ready.data.num_clients, config.selector.cohort_size) == clients
    assert (config.solver.epochs, config.training.seeds) == (5, (0, 1, 2))
    assert config.data.partition_per_seed == (name != "cross" and name != "equitable")


def test_presets_have_the_methods_of_the_paper():
    for setting, reported in paper.EQUITABLE.items():
        for name in (f"equitable-{setting}", f"equitable-resnet18-{setting}"):
            named = [method.partition(":")[0] for method in ALL[name].config.methods]
            assert named == list(reported)
    # In the published table the proposed method has the smallest distance of all federated ones.
    for reported in paper.EQUITABLE.values():
        federated = [row["sigma"][0] for name, row in reported.items() if name != "centralized"]
        assert min(federated) == reported["equitable"]["sigma"][0]


def small(names):
    config = replace(PRESETS["equitable"].config, methods=names, model=ModelConfig(name="logistic"))
    return replace(config, training=replace(config.training, rounds=4, eval_every=2))


def test_the_table_has_the_metrics_of_the_runs(tmp_path, monkeypatch):
    names = ("fedprox:prox=0.5", "equitable")
    file = tmp_path / "equitable-table-mnist-runs.csv"
    config = small(names)
    runs.run_missing(config, names, (0, 1), file, equitable.SUMMARIES, equitable.OF_ROUNDS)
    kept = runs.collect(names, file)
    assert kept["round"].values.tolist() == [0, 2, 4]

    own = replace(config, training=replace(config.training, seeds=(0, 1)))
    ready = build(drop_unused_settings(presets.resolve(own)))
    # The same compiled function as above.
    settings = {"eval_every": 2, "train_loss": False, "mesh": ready.mesh}
    run = fit(ready.rounds["equitable"], ready.data, rounds=4, seeds=(0, 1), **settings).dataset
    info = run.aggregation_nmi.values[1]
    np.testing.assert_allclose(
        kept.aggregation_nmi.sel(algorithm="equitable", seed=1),
        [np.nan, info[:2].mean(), info[2:].mean()],
        rtol=1e-5,
    )
    assert kept.aggregation_nmi.sel(algorithm="fedprox:prox=0.5").isnull().all()

    monkeypatch.setitem(PAPERS, "equitable-mnist", Preset("", config))
    equitable.write_table("mnist", file)
    table = pd.read_csv(tmp_path / "equitable-table-mnist.csv").set_index(["method", "moment"])
    last = kept.sigma_acc.isel(round=-1)
    gaps = last.sel(algorithm="equitable") - last.sel(algorithm="fedprox:prox=0.5")
    np.testing.assert_allclose(
        table.loc[("equitable", "last"), "sigma less fedprox"], 100 * gaps.mean(), atol=1e-4
    )
    assert table.loc[("equitable", "last"), "sigma paper"] == 1.17
    assert "[1.17 ± 0.25]" in (tmp_path / "equitable-table-mnist.md").read_text()
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".md", ".png"}


def test_the_cross_pairs_every_selector_with_itself_and_with_weights_alone():
    names = list(PRESETS["cross"].config.methods)
    rng = np.random.default_rng(0)
    shape = ("algorithm", "seed", "round")
    measured = xr.Dataset(
        {
            metric: (shape, rng.uniform(size=(len(names), 3, 7)))
            for metric in cross.COLUMNS.values()
        },
        coords={"algorithm": names, "seed": range(3)},
    )
    table = cross.summarize(measured).set_index("selector")
    assert list(table.index) == ["random", *names[2::2]]
    ends = 100 * measured["group_sigma_acc"][..., -5:].mean("round")
    own, alone, weights = (
        ends.sel(algorithm=name).values for name in ("divfl+equitable", "divfl", "equitable")
    )
    row = table.loc["divfl"]
    np.testing.assert_allclose(row["sigma equitable"], own.mean())
    np.testing.assert_allclose(row["sigma alone sd"], alone.std(ddof=1))
    for label, other in (("selector", alone), ("weights", weights)):
        found = [row[f"sigma less {label} {end}"] for end in ("low", "mean", "high")]
        expected = paired.interval(own.astype(float) - other)
        np.testing.assert_allclose(found, [expected.low, expected.mean, expected.high])
    np.testing.assert_allclose(
        table.loc["random", "sigma less selector mean"],
        (ends.sel(algorithm="equitable") - ends.sel(algorithm="fedprox")).mean(),
    )
    text = cross.markdown(table.reset_index())
    assert f"| divfl | {alone.mean():.2f} ± " in text
    assert text.count("| - |") == 2
