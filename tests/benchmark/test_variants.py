"""Variants with faults, compute and the deviation by chance, on a small benchmark."""

import shutil

import numpy as np
import pandas as pd
import pytest
import short_track

from fedjax_fair import results
from fedjax_fair.benchmark import collected, federations, measures, report

pytestmark = pytest.mark.integration

METHODS = ("fedavg", "q_fedavg", "local_converged")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A benchmark of one short federated dataset and its variant with dropouts."""
    folder = tmp_path_factory.mktemp("benchmark") / "embedded"
    track = short_track.make_track(METHODS)._replace(
        variants=("groups_dropouts",), variant_methods=("fedavg", "q_fedavg")
    )
    variant = federations._with_dropouts(federations.FEDERATIONS["groups"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(federations.FEDERATIONS, variant.name, variant)
        with short_track.finished(folder, track):
            yield folder


def test_variants_have_faults_and_their_own_methods(finished):
    whole, variant = (
        results.open(finished / "programs" / name / "fedavg" / "final.nc")
        for name in ("groups", "groups_dropouts")
    )
    assert variant.attrs["data_digest"] == whole.attrs["data_digest"]
    assert not np.array_equal(variant["test_accuracy"], whole["test_accuracy"])
    names = {path.name for path in (finished / "programs" / "groups_dropouts").iterdir()}
    assert names == {"fedavg", "q_fedavg"}


def test_overall_results_do_not_depend_on_variants(finished, tmp_path):
    copy = tmp_path / "embedded"
    shutil.copytree(finished, copy)
    shutil.rmtree(copy / "programs" / "groups_dropouts")
    with_variants, without = (
        report.contents(collected.collect(folder)) for folder in (finished, copy)
    )
    pd.testing.assert_frame_equal(with_variants.ranking, without.ranking)
    assert len(without.ranking)
    compared = with_variants.differences
    is_variant = compared["federation"] == "groups_dropouts"
    assert set(compared.loc[is_variant, "method"]) == {"q_fedavg"}
    kept = compared[~is_variant].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, without.differences)


def test_compute_is_relative_to_fedavg(finished):
    table = collected.collect(finished).all_runs
    table = table[(table["measure"] == "relative_compute") & (table["criterion"] == "mean")]
    compute = table.groupby(["federation", "method"])["value"].first()
    assert compute["groups", "fedavg"] == compute["groups_dropouts", "fedavg"] == 1
    # All 24 clients instead of six.
    assert compute["groups", "local_converged"] == pytest.approx(4, rel=0.02)


def test_the_deviation_by_chance_is_that_of_simulated_test_sets(finished):
    final = next(f for f in measures.finals(finished) if f.method == "fedavg")
    found = measures.noise_floor(final.last)
    counts = final.last["test_examples"].transpose("seed", "client", "class").values
    correct = final.last["test_accuracy"].transpose("seed", "client").values * counts.sum(axis=2)
    rng = np.random.default_rng(0)
    for seed in range(3):
        sizes = counts[seed].sum(axis=1).astype(int)
        fractions = rng.binomial(sizes, correct[seed].sum() / sizes.sum(), (4000, len(sizes)))
        squared = np.var(fractions / sizes, axis=1).mean()
        assert found[seed] == pytest.approx(np.sqrt(squared), rel=0.02)
