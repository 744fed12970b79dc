"""Files of arrays as Keras, MedMNIST and PFLlib write them."""

import json

import numpy as np
import pytest

from fedjax_fair import data
from fedjax_fair.app.cli import main

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8)
CLASSES = np.arange(60) % 3
HALVES = data.dirichlet(3, 0.5)


def keras(path, column=False, **changes):
    labels = CLASSES.astype(np.uint8)
    labels = labels[:, None] if column else labels
    arrays = {"x_train": IMAGES[:45], "y_train": labels[:45]}
    arrays |= {"x_test": IMAGES[45:], "y_test": labels[45:]} | changes
    np.savez_compressed(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def medmnist(path, labels=None):
    labels = CLASSES[:, None].astype(np.uint8) if labels is None else labels
    cuts = {"train": slice(30), "val": slice(30, 45), "test": slice(45, 60)}
    arrays = {f"{part}_images": IMAGES[cut] for part, cut in cuts.items()}
    np.savez_compressed(path, **arrays, **{f"{k}_labels": labels[cut] for k, cut in cuts.items()})
    return path


def pfllib(folder, plain=True, test=True, clients=range(12)):
    """Twelve clients of five examples, of which PFLlib pickles the dictionaries."""
    for part, rows in (("train", slice(3)), ("test", slice(3, 5))):
        (folder / part).mkdir(parents=True)
        for client in clients if part == "train" or test else ():
            own = slice(5 * client, 5 * client + 5)
            arrays = {
                "x": IMAGES[own][rows].astype(np.float32)[..., None] / 255,
                "y": CLASSES[own][rows],
            }
            with (folder / part / f"{client}.npz").open("wb") as file:
                np.savez_compressed(file, **(arrays if plain else {"data": arrays}))
    (folder / "config.json").write_text(json.dumps({"num_clients": 12}))
    return folder


def rows_of(part):
    return sorted(row.tobytes() for row in np.asarray(part.features)[np.asarray(part.order)])


def bytes_of(images):
    return sorted(image.tobytes() for image in images)


@pytest.mark.parametrize("column", [False, True])
def test_keras_files_are_divided_by_a_partition(column, tmp_path):
    made = data.from_npz(keras(tmp_path / "mnist.npz", column), partition=HALVES, seed=3)
    assert (made.name, made.num_clients, made.num_classes) == ("mnist", 3, 3)
    assert made.train.features.shape == (45, 8, 8, 1)
    assert rows_of(made.train) == bytes_of(IMAGES[:45])
    expected = HALVES.split(CLASSES[:45], 3)
    np.testing.assert_array_equal(made.train.order, expected.order)
    # Test examples follow the classes of the clients.
    train, test = (part.class_counts(3) > 0 for part in (made.train, made.test))
    assert (train | ~test).all()
    assert made.test.sizes.sum() > 0


def test_validation_examples_of_medmnist_stay_apart(tmp_path):
    made = data.from_npz(medmnist(tmp_path / "a.npz"), partition=data.iid(2), seed=1)
    assert made.train.labels.tolist() == CLASSES[:30].tolist()
    assert rows_of(made.train) == bytes_of(IMAGES[:30])
    for part, images in ((made.validation, IMAGES[30:45]), (made.test, IMAGES[45:])):
        assert set(rows_of(part)) <= set(bytes_of(images))
        assert part.sizes.sum() > 0
    data.validate(made)
    with_fraction = data.from_npz(
        tmp_path / "a.npz", partition=data.iid(2), validation_fraction=0.5
    )
    assert with_fraction.train.sizes.sum() == 30


def test_a_folder_of_pfllib_has_a_file_for_each_client(tmp_path):
    made = data.from_npz(pfllib(tmp_path / "MNIST"))
    assert made.client_names == tuple(map(str, range(12)))
    assert made.train.sizes.tolist() == [3] * 12
    assert made.test.sizes.tolist() == [2] * 12
    rows = made.train.order[made.train.offsets[10] :][:3]
    expected = IMAGES[50:53].astype(np.float32)[..., None] / 255
    np.testing.assert_array_equal(np.sort(made.train.features[rows], 0), np.sort(expected, 0))
    held_out = data.from_npz(pfllib(tmp_path / "b", test=False), test_fraction=0.4)
    assert held_out.test.sizes.tolist() == [1] * 12


def test_test_files_of_pfllib_follow_the_rule_of_unknown_clients(tmp_path):
    folder = pfllib(tmp_path / "a")
    (folder / "train" / "7.npz").unlink()
    with pytest.raises(ValueError, match=r"a: test_clients: 2 test examples .* first \['7'\]"):
        data.from_npz(folder)
    assert data.from_npz(folder, unknown_clients="unseen").unseen.client_names == ("7",)


MISTAKES = {
    "pickles": (
        lambda at: pfllib(at, plain=False),
        r"train/0.npz: expected plain arrays, got pickled objects.*\['data'\].item\(\)\)",
    ),
    "objects": (
        lambda at: keras(at / "a.npz", x_train=np.array([{}] * 45)),
        "a.npz: expected plain arrays, got pickled objects",
    ),
    "an empty folder": (lambda at: at, "is a folder without train/\\*.npz"),
    "no clients": (lambda at: keras(at / "a.npz"), r"lacks \['client'\]: .* or a partition"),
    "other names": (
        lambda at: keras(at / "a.npz", x_train=None, images=IMAGES),
        r"lacks \['features'\]: .*it has labels, test_features, test_labels, images",
    ),
    "names of two tools": (
        lambda at: keras(at / "a.npz", train_images=IMAGES),
        "expected each part once; remove one of the arrays for features",
    ),
    "a table": (
        lambda at: at.joinpath("a.npz").write_text("a,b") and at / "a.npz",
        r"a.npz: expected an .npz file of plain arrays",
    ),
    "several labels": (
        lambda at: medmnist(at / "a.npz", np.ones((60, 14), np.uint8)),
        r"train_labels of uint8 and shape \(30, 14\): .*as_multi_label",
    ),
}


@pytest.mark.parametrize(("write", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_explained(write, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        data.from_npz(write(tmp_path))
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((2, 4, 8, 1)), "y": np.zeros(2, int)}, r"3.npz has features of shape"),
        ({"x": np.ones((2, 8, 8, 1)), "y": np.zeros(3, int)}, r"3.npz has .*of equal lengths"),
        ({"x": np.ones((2, 8, 8, 1))}, r"3.npz has features \(2, 8, 8, 1\): expected x and y"),
    ],
)
def test_files_of_clients_fit_together(arrays, message, tmp_path):
    folder = pfllib(tmp_path / "a")
    np.savez(folder / "train" / "3.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        data.from_npz(folder)


def test_a_partition_of_a_file_with_clients_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.eye(4), labels=[0, 1, 0, 1], client=[0, 0, 1, 1])
    with pytest.raises(ValueError, match="has the array client: expected no partition"):
        data.from_npz(tmp_path / "a.npz", partition=data.iid(2))


def test_arrays_are_divided_by_a_partitioner():
    groups = {"sex": ["F", "M"] * 30}
    by_sex = data.dirichlet(2, 0.5, by="sex")
    made = data.from_arrays(
        np.eye(60), CLASSES, clients=by_sex, sensitive_features=groups, test_fraction=0.0
    )
    expected = by_sex.split(CLASSES, 0, sex=np.array(groups["sex"]))
    assert made.train.sizes.tolist() == expected.sizes.tolist()
    with pytest.raises(ValueError, match="test_clients: expected None with a partitioner"):
        data.from_arrays(np.eye(60), CLASSES, clients=by_sex, test_clients=[1])
    with pytest.raises(ValueError, match="expected all three or none"):
        data.from_arrays(np.eye(60), CLASSES, clients=data.iid(2), test_labels=[1])


@pytest.mark.parametrize(
    ("write", "options", "shown"),
    [
        (keras, ["--data.partition=iid", "--data.clients=4"], "4"),
        (medmnist, ["--data.partition=shards", "--data.clients=3"], "3"),
        (pfllib, [], "12: 0, 1, 2"),
    ],
)
def test_files_of_other_tools_on_the_command_line(write, options, shown, tmp_path, capsys):
    path = write(tmp_path / ("folder" if write is pfllib else "a.npz"))
    assert main(["data", "show", f"--data.file={path}", *options]) == 0
    assert f"clients            {shown}" in capsys.readouterr().out
    assert main(["data", "show", f"--data.file={path}", "--data.label=y"]) == 2
    if write is not pfllib:
        assert main(["data", "show", f"--data.file={path}"]) == 2
        assert "lacks ['client']" in capsys.readouterr().err


def test_a_folder_without_data_is_named_on_the_command_line(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("a,b")
    assert main(["data", "show", f"--data.file={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert f"data.file='{tmp_path}' is a folder without .parquet, .feather, .json" in error
    assert main(["data", "show", f"--data.file={tmp_path / 'none.npz'}"]) == 2
    assert "no such file; expected a table, an .npz file" in capsys.readouterr().err
