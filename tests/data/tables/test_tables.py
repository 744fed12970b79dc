"""Federated datasets from tables: encodings, labels, clients, held-out rows and mistakes."""

import jax
import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tables_of_people import BASE, LEVELS, TABLE, TOTAL, make_table, ordered

from fedjax_fair import aggregators, data, metrics, models, selectors, solvers
from fedjax_fair.data.tables.table_encoding import (
    MAX_CATEGORIES,
    Standardized,
    as_codes,
    fit_encoding,
)
from fedjax_fair.rounds.round import Round
from fedjax_fair.training import fit

FORMATS = {
    "pandas": lambda table, folder: table,
    "polars": lambda table, folder: polars.from_pandas(table),
    "arrow": lambda table, folder: pyarrow.Table.from_pandas(table),
    "csv": lambda table, folder: saved(table.to_csv, folder / "people.csv", index=False),
    "csv.gz": lambda table, folder: saved(table.to_csv, folder / "people.csv.gz", index=False),
    "tsv": lambda table, folder: saved(table.to_csv, folder / "people.tsv", index=False, sep="\t"),
    "parquet": lambda table, folder: saved(table.to_parquet, folder / "people.parquet"),
    "feather": lambda table, folder: saved(table.to_feather, folder / "people.feather"),
}


def saved(save, path, **settings):
    save(path, **settings)
    return str(path)


@pytest.mark.parametrize("kind", FORMATS)
def test_all_formats_make_the_same_dataset(kind, tmp_path):
    table = TABLE.assign(
        job=TABLE.job.where(TABLE.age > 25), hours=TABLE.hours.where(TABLE.age < 85)
    )
    expected = data.from_table(table, **BASE, name="people")
    made = data.from_table(FORMATS[kind](table, tmp_path), **BASE, name="people")
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, other)
    assert made.encoding.feature_names[1:6] == (
        "hours", "hours=missing", "job=clerk", "job=cook", "job=nurse",
    )  # fmt: skip


def test_name_is_that_of_the_file(tmp_path):
    assert data.from_table(FORMATS["csv.gz"](TABLE, tmp_path), **BASE).name == "people"
    assert data.from_table(TABLE, **BASE).name == "table"


def test_values_equal_those_of_scikit_learn():
    people = data.from_table(TABLE, **BASE, test=0.25)
    encoding, training = people.encoding, rows_of(people.train, people.encoding)
    assert encoding.classes == ("<=50K", ">50K")
    assert encoding.label == ("salary",)
    numbers = ["age", "hours", "owner"]
    texts = ["job", "sex", "race"]
    scaler = StandardScaler().fit(TABLE.loc[training, numbers].astype(float))
    one_hot = OneHotEncoder(sparse_output=False).fit(TABLE.loc[training, texts])
    expected = dict(zip(numbers, scaler.transform(TABLE[numbers].astype(float)).T, strict=True))
    names = one_hot.get_feature_names_out()
    expected |= dict(zip(names, one_hot.transform(TABLE[texts]).T, strict=True))
    features = encoding.encode(TABLE)
    assert features.dtype == np.float32
    for name, column in zip(encoding.feature_names, features.T, strict=True):
        np.testing.assert_allclose(column, expected[name.replace("=", "_")], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(people.train.features, features[training])


def rows_of(part, encoding):
    """The rows of a part, found by their features, which all differ."""
    places = {tuple(row): number for number, row in enumerate(encoding.encode(TABLE, "ignore"))}
    assert len(places) == len(TABLE)
    return np.array([places[tuple(row)] for row in np.asarray(part.features)])


@pytest.mark.parametrize("validation_fraction", [0.0, 0.3])
def test_all_arrays_of_an_example_are_of_one_row(validation_fraction):
    people = data.from_table(TABLE, **BASE, validation_fraction=validation_fraction, seed=3)
    assert people.client_names == ("north", "south", "west")
    seen = []
    for part in filter(None, (people.train, people.test, people.validation)):
        rows = TABLE.iloc[rows_of(part, people.encoding)]
        classes = np.array(people.encoding.classes)[part.labels]
        assert (rows.salary.to_numpy() == classes).all()
        for column, (name, values) in enumerate(people.sensitive_names):
            names = np.array(values)[part.sensitive_features[:, column]]
            assert (rows[name].to_numpy() == names).all()
        owners = np.repeat(people.client_names, part.sizes)
        assert (rows.town.to_numpy()[part.order] == owners).all()
        seen.append(rows.index.to_numpy()[part.order])
    assert sorted(np.concatenate(seen)) == list(range(TOTAL))
    sizes = TABLE.town.value_counts().sort_index().to_numpy()
    np.testing.assert_array_equal(people.test.sizes, np.floor(0.2 * sizes))


def test_encoding_is_fitted_on_rows_that_clients_train_on():
    people = data.from_table(TABLE, **BASE, validation_fraction=0.3)
    rows = rows_of(people.train, people.encoding)[people.train.order]
    assert len(rows) < 0.6 * TOTAL
    age = people.encoding.columns[0]
    assert age == Standardized("age", TABLE.age[rows].mean(), TABLE.age[rows].std(ddof=0), False)
    # Categories of other rows are encoded by zeros.
    test_rows = np.setdiff1d(np.arange(TOTAL), rows_of(people.train, people.encoding))
    changed = TABLE.assign(job=TABLE.job.where(~TABLE.index.isin(test_rows), "pilot"))
    others = data.from_table(changed, **BASE, validation_fraction=0.3)
    assert not any("pilot" in name for name in others.encoding.feature_names)
    jobs = [name.startswith("job=") for name in others.encoding.feature_names]
    assert (others.test.features[:, jobs] == 0).all()
    assert (others.train.features[:, jobs].sum(axis=1) == 1).all()


def test_test_rows_can_be_another_table():
    first, second = TABLE[:80], TABLE[80:].reset_index(drop=True)
    second.loc[0, "town"] = "elsewhere"
    second.loc[1, "race"] = "w"
    people = data.from_table(first, **BASE, test=second, unknown_clients="unseen")
    assert people.unseen.client_names == ("elsewhere",)
    assert int(people.train.sizes.sum()) == 80
    assert int(people.test.sizes.sum()) == 39
    assert people.sensitive_names[1].values == ("w", "x", "y", "z")
    expected = people.encoding.encode(second, "ignore")
    np.testing.assert_array_equal(people.test.features, expected)
    assert (people.test.features[1][-3:] == 0).all()
    age = people.encoding.columns[0]
    assert age.mean == first.age.mean()


def test_codes_and_numbers_as_categories():
    people = data.from_table(TABLE, **BASE, encoding="codes", categorical=["age"], test=0.0)
    encoding = people.encoding
    assert encoding.feature_names == ("age", "hours", "job", "owner", "sex", "race")
    assert encoding.columns[0].values == tuple(map(str, sorted(set(TABLE.age))))
    new = pd.DataFrame(TABLE[:2]).assign(job=["nurse", "pilot"])
    features = encoding.encode(new, unseen="ignore")
    assert features[:, 2].tolist() == [2, 3]
    assert features[:, 0].tolist() == [sorted(set(TABLE.age)).index(age) for age in new.age]


def test_missing_values():
    table = pd.DataFrame({"x": [1.0, np.nan, 3.0], "y": ["a", None, "b"], "z": [1.0, 2.0, 3.0]})
    encoding = fit_encoding(table)
    assert encoding.feature_names == ("x", "x=missing", "y=a", "y=b", "y=missing", "z")
    scale = np.sqrt(2 / 3)
    np.testing.assert_allclose(
        encoding.encode(table),
        [[-1, 0, 1, 0, 0, -1 / scale], [0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 1 / scale]],
        rtol=1e-6,
    )
    gap = table.assign(z=[np.nan, 2.0, 3.0])
    with pytest.raises(ValueError, match="column 'z': 1 values are missing, first in row 0"):
        encoding.encode(gap)
    assert encoding.encode(gap, unseen="ignore")[0, -1] == 0
    complete = fit_encoding(table.dropna())
    with pytest.raises(ValueError, match=r"column 'y' has the categories \['missing'\]"):
        complete.encode(table.assign(x=1.0))


def test_constant_columns_become_zeros():
    encoding = fit_encoding(pd.DataFrame({"x": [0.1] * 10, "y": [True] * 10}))
    assert encoding.encode(pd.DataFrame({"x": [0.1], "y": [True]})).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("column", "codes", "values"),
    [
        (["b", None, "a"], [1, -1, 0], ("a", "b")),
        (pd.Categorical(["b", "a", "b"]), [1, 0, 1], ("a", "b")),
        ([1.0, np.nan, 0.0], [1, -1, 0], ("0", "1")),
        ([10, 9, 10], [0, 1, 0], ("10", "9")),
        (pd.array([1, None, 0], dtype="Int64"), [1, -1, 0], ("0", "1")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
        (pd.array([True, None, False], dtype="boolean"), [1, -1, 0], ("False", "True")),
    ],
)
def test_values_of_columns(column, codes, values):
    found, texts = as_codes(pd.Series(column))
    assert (found.tolist(), texts) == (codes, values)


def test_new_rows_are_predicted():
    people = data.from_table(TABLE, **BASE)
    method = Round(
        models.logistic(2), selectors.Full(), solvers.SGD(0.1, 10, epochs=1), aggregators.Mean()
    )
    result = fit(method, people, rounds=1)
    rows = TABLE[:5].drop(columns=["salary", "town"])
    predicted = result.predict(people.encoding.encode(rows))
    assert predicted.shape == (1, 5)
    assert set(np.array(people.encoding.classes)[predicted[0]]) <= {"<=50K", ">50K"}


def test_names_and_encoding_do_not_compile_again():
    people = data.from_table(TABLE, **BASE)
    other = data.from_table(TABLE.rename(columns={"age": "years"}), **BASE)
    assert jax.tree.structure(people) != jax.tree.structure(other)
    structures = [jax.tree.structure(one.without_names()) for one in (people, other)]
    assert structures[0] == structures[1]


def test_splitting_by_sensitive_features():
    def shares(by, alpha=0.2):
        partitioner = data.dirichlet(4, alpha, min_partition_size=1, by=by)
        people = data.from_table(
            make_table(6000), **BASE | {"client": partitioner}, test=make_table(2000, seed=1)
        )
        assert not people.label_skew_only
        assert partitioner.by == ((by,) if isinstance(by, str) else by)
        counts = []
        for part in (people.train, people.test):
            owners = np.repeat(np.arange(4), part.sizes)
            frame = pd.DataFrame(part.sensitive_features[part.order], columns=["sex", "race"])
            frame["salary"] = part.labels[part.order]
            frame["client"] = owners
            counts.append(frame.groupby([*partitioner.by, "client"]).size().unstack(fill_value=0))
        return [table.to_numpy() / table.to_numpy().sum(axis=1, keepdims=True) for table in counts]

    for by in ("sex", ("sex", "race"), ("sex", "salary")):
        train_shares, test_shares = shares(by)
        # A draw for every group, and test rows in the same shares. The first two groups differ in
        # the last column.
        assert np.abs(train_shares[0] - train_shares[1]).max() > 0.1
        np.testing.assert_allclose(test_shares, train_shares, atol=0.02)
    even, _ = shares("sex", alpha=1e6)
    np.testing.assert_allclose(even, 0.25, atol=0.01)


def test_shares_of_a_group_are_a_draw_of_the_dirichlet_distribution():
    sex = np.repeat(["F", "M"], [300, 500])
    labels = np.zeros(800, int)
    partition = data.dirichlet(3, 0.7, min_partition_size=1, by="sex").split(labels, 5, sex=sex)
    rng = np.random.default_rng(5)
    for value, size in (("F", 300), ("M", 500)):
        ends = (np.cumsum(rng.dirichlet([0.7] * 3)) * size).astype(int)
        expected = np.diff([0, *ends[:-1], size])
        counts = [int((sex[rows] == value).sum()) for rows in partition.client_indices]
        assert counts == expected.tolist()


@pytest.mark.parametrize("partitioner", [data.iid(4), data.quantity_skew(3), data.shards(3, 2)])
def test_all_partitioners_split_tables(partitioner):
    people = data.from_table(TABLE, **BASE | {"client": partitioner})
    assert people.client_names is None
    assert "town=north" in people.encoding.feature_names


def test_targets():
    table = make_table().assign(ill=TABLE.age % 2, old=TABLE.age > 50)
    numbers = data.from_table(
        table, label="hours", client="town", target="regression", exclude=["salary"]
    )
    assert numbers.train.has_targets
    assert numbers.encoding.classes is None
    assert numbers.train.labels.shape[1] == numbers.num_classes == 1
    every = np.concatenate([numbers.train.labels[:, 0], numbers.test.labels[:, 0]])
    np.testing.assert_allclose(np.sort(every), np.sort(table.hours), rtol=1e-6)
    several = data.from_table(table, label=["ill", "old"], client="town", target="multi_label")
    assert several.num_classes == 2
    assert set(np.unique(several.train.labels)) == {0, 1}
    assert several.train.labels[:, 1].mean() > several.train.labels[:, 0].mean() - 1


def test_tables_of_integers_and_booleans_as_labels():
    for label, classes in ((TABLE.age % 3 * 2, ("0", "2", "4")), (TABLE.owner, ("False", "True"))):
        people = data.from_table(TABLE.assign(salary=label), **BASE)
        assert people.encoding.classes == classes
        assert people.num_classes == len(classes)


def test_ordered_classes_keep_their_order():
    values = np.random.default_rng(2).choice(LEVELS[:3], TOTAL)
    table = TABLE.assign(salary=ordered(values))
    people = data.from_table(table, **BASE, test=0.0)
    assert people.encoding.classes == tuple(LEVELS)
    assert people.num_classes == 4  # No row is extreme.
    found = np.array(LEVELS)[people.train.labels]
    assert (values[rows_of(people.train, people.encoding)] == found).all()
    # Test rows of a file are strings.
    for other in (ordered(values), ordered(values, LEVELS[::-1]), pd.Series(values)):
        separate = data.from_table(table, **BASE, test=TABLE.assign(salary=other))
        assert (np.array(LEVELS)[separate.test.labels] == values).all()
    numbers = TABLE.assign(salary=ordered(TABLE.age % 3, [2, 0, 1, 7]))
    assert data.from_table(numbers, **BASE).encoding.classes == ("2", "0", "1", "7")
    unordered = TABLE.assign(salary=pd.Categorical(values, LEVELS))
    assert data.from_table(unordered, **BASE).encoding.classes == ("high", "low", "medium")


def test_distances_of_ordered_classes_are_in_results():
    risks = np.array(LEVELS)[np.digitize(TABLE.hours, [30, 40, 50])]
    people = data.from_table(TABLE.assign(salary=ordered(risks)), **BASE, exclude=["hours"])
    method = Round(
        models.logistic(4), selectors.Full(), solvers.SGD(0.1, 10, epochs=2), aggregators.Mean()
    )
    distance = metrics.predictions.mean_absolute_error()
    result = fit(method, people, rounds=2, metrics=[distance])
    predicted = np.asarray(result.predict(people.test.features))[0]
    for client in range(people.num_clients):
        rows = people.test.order[people.test.offsets[client] :][: people.test.sizes[client]]
        expected = np.abs(predicted[rows] - people.test.labels[rows]).mean()
        found = result.dataset.test_mean_absolute_error.isel(seed=0, round=-1, client=client)
        assert float(found) == pytest.approx(expected, rel=1e-6)


def people_of_seed(seed, validation_fraction=0.25, rows=TABLE[:100], **changes):
    split = data.dirichlet(4, 5.0, min_partition_size=1, by="sex")
    people = data.from_table(
        rows, **BASE | {"client": split, "seed": seed, "test": TABLE[100:]} | changes
    )
    return data.hold_out(people, validation_fraction, seed) if validation_fraction else people


@pytest.mark.parametrize("validation_fraction", [0.0, 0.25])
def test_a_partition_per_seed(validation_fraction):
    alone = [people_of_seed(seed, validation_fraction) for seed in (5, 6)]
    stacked = data.stack(alone)
    assert stacked.num_partitions == 2
    assert stacked.encoding == alone[0].encoding
    assert stacked.train.sizes[0].tolist() != stacked.train.sizes[1].tolist()
    for run, one in enumerate(alone):
        for name in ("train", "test", "validation"):
            part, expected = getattr(stacked.partition(run), name), getattr(one, name)
            if expected is None:
                continue
            total = int(expected.sizes.sum())
            np.testing.assert_array_equal(part.sizes, expected.sizes)
            np.testing.assert_array_equal(part.order[:total], expected.order)
            np.testing.assert_array_equal(part.features, expected.features)
            np.testing.assert_array_equal(part.sensitive_features, expected.sensitive_features)
    method = Round(
        models.logistic(2), selectors.Uniform(2), solvers.SGD(0.1, 10, epochs=1), aggregators.Mean()
    )
    both = fit(method, stacked, rounds=2, seeds=(5, 6)).dataset
    for run, one in enumerate(alone):
        expected = fit(method, one, rounds=2, seeds=(5 + run,)).dataset.isel(seed=0)
        for name in ("test_loss", "demographic_parity_difference", "cohort_clients"):
            found = both[name].isel(seed=run)
            np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6)


def test_other_held_out_rows_are_no_partitions_of_the_same_examples(as_users_call):
    with pytest.raises(ValueError, match=r"encoding: .*; held-out rows of a seed change it, test="):
        data.stack([people_of_seed(seed, test=0.2, rows=TABLE) for seed in (0, 1)])


def test_clients_without_test_rows_of_a_group_are_listed():
    table = TABLE.assign(sex=np.where(TABLE.town == "north", "M", TABLE.sex))
    people = data.from_table(table, **BASE)
    (line,) = (line for line in str(people).splitlines() if line.startswith("empty cells"))
    assert "1 of 6 pairs of client and sex have no training examples: north x F" in line
    assert "1 of 6 pairs of client and sex have no test examples: north x F" in line


def test_too_many_categories_at_the_limit():
    fit_encoding(pd.DataFrame({"x": [f"{code}" for code in range(MAX_CATEGORIES)]}))
