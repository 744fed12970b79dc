"""Settings of files on the command line: shapes, central test sets and names of classes."""

import json

import numpy as np
import pandas as pd
import pytest

import fedjax_fair as ff
from fedjax_fair.app.cli import main
from fedjax_fair.app.experiment_data import load_data
from fedjax_fair.app.settings.config import Config, DataConfig
from fedjax_fair.app.settings.presets import resolve
from fedjax_fair.results.datasets import class_names

RNG = np.random.default_rng(0)
PIXELS, CLASSES = RNG.random((24, 784)).round(3), np.arange(24) % 3


def write_leaf(path, pixels=PIXELS, classes=CLASSES, users=("u", "v", "w")):
    parts = np.array_split(np.arange(len(classes)), len(users))
    samples = {
        user: {"x": [pixels[i].tolist() for i in part], "y": classes[part].tolist()}
        for user, part in zip(users, parts, strict=True)
    }
    counts = [len(part) for part in parts]
    content = {"users": list(users), "num_samples": counts, "user_data": samples}
    path.write_text(json.dumps(content))
    return str(path)


def load(**settings):
    return load_data(resolve(Config(data=DataConfig(**settings))))[0]


@pytest.mark.parametrize("shape", [(28, 28, 1), (28, 28), (784,), (7, 112), (14, 14, 4)])
def test_samples_of_leaf_have_a_shape(shape, tmp_path):
    file = write_leaf(tmp_path / "a.json")
    flat, made = load(file=file), load(file=file, shape=shape)
    assert made.train.features.shape[1:] == shape
    np.testing.assert_array_equal(
        made.train.features.reshape(flat.train.features.shape), flat.train.features
    )


@pytest.mark.parametrize("shape", [(28, 28, 3), (28,), (-28, -28), ()])
def test_other_shapes_are_refused(shape, tmp_path):
    with pytest.raises(ValueError, match="expected positive integers with the product 784"):
        load(file=write_leaf(tmp_path / "a.json"), shape=shape)


def test_a_shape_is_for_numbers_of_leaf(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", features=PIXELS, labels=CLASSES, client=CLASSES)
    words = ["run", "digits", "--dry-run", "--data.shape", "28", "28", "1"]
    for others in ([], ["--data.file", str(tmp_path / "a.npz")]):
        assert main([*words, *others]) == 2
        assert "--data.shape has no effect" in capsys.readouterr().err


def test_a_convolutional_network_needs_the_shape(tmp_path, capsys):
    file = write_leaf(tmp_path / "a.json")
    words = ["run", "--data.file", file, "--model.name", "femnist_cnn", "--dry-run"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "features of shape (784,)" in error
    assert "--data.shape 28 28 1" in error
    assert main([*words, "--data.shape", "28", "28", "1"]) == 0


@pytest.mark.parametrize("kind", ["json", "npz"])
def test_a_central_test_set_of_leaf(kind, tmp_path):
    file, central = write_leaf(tmp_path / "a.json"), str(tmp_path / f"central.{kind}")
    pixels = RNG.random((5, 784)).round(3)
    if kind == "json":
        write_leaf(tmp_path / "central.json", pixels, CLASSES[:5], users=("u", "other"))
    else:
        images = pixels.reshape(-1, 28, 28, 1).astype(np.float32)
        np.savez(central, features=images, labels=CLASSES[:5])
    made = load(file=file, shape=(28, 28, 1), central_test=central)
    assert made.client_names == ("u", "v", "w")
    np.testing.assert_array_equal(made.central_test.labels, CLASSES[:5])
    np.testing.assert_allclose(made.central_test.features, pixels.reshape(-1, 28, 28, 1), rtol=1e-6)


def test_a_central_test_set_of_texts(tmp_path):
    def write(name, text):
        windows = [text[i : i + 4] for i in range(len(text) - 4)]
        samples = {"x": windows, "y": list(text[4:])}
        counts = [len(windows)]
        content = {"users": ["u"], "num_samples": counts, "user_data": {"u": samples}}
        (tmp_path / name).write_text(json.dumps(content))
        return str(tmp_path / name)

    file, central = write("a.json", "to be or not to be"), write("b.json", "to be or z")
    made = load(file=file, central_test=central)
    assert made.central_test.features.shape == (6, 4)
    assert made.num_classes == len(set("to be or not z"))


def test_a_central_test_set_of_a_named_data_set(tmp_path, capsys):
    digits = ff.data.load("digits")
    file = tmp_path / "central.npz"
    np.savez(file, features=digits.test.features[:40], labels=digits.test.labels[:40])
    for settings in ({}, {"partition_per_seed": True}):
        made = load(central_test=str(file), **settings)
        np.testing.assert_array_equal(made.central_test.features, digits.test.features[:40])
    np.savez(file, features=np.zeros((3, 5), np.float32), labels=[0, 1, 2])
    (tmp_path / "central.csv").write_text("a,b\n1,2\n")
    for wrong, message in ((file, "central_test.features"), (tmp_path / "central.csv", ".npz")):
        words = ["run", "digits", "--dry-run", "--data.central-test", str(wrong)]
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "data.central_test=" in error
        assert message in error


def test_a_central_test_set_of_a_named_table(tmp_path, monkeypatch):
    number = 120
    rows = pd.DataFrame({"age_num": RNG.integers(18, 90, number), "decile_score": 1})
    rows["sex"], rows["race"] = RNG.choice(["F", "M"], number), RNG.choice(["x", "y"], number)
    rows["age_cat"] = RNG.choice(["young", "old"], number)
    rows["two_year_recid"] = RNG.choice(["no", "yes"], number)
    (tmp_path / "compas.csv").write_text(rows.to_csv(index=False))
    rows.iloc[:9].to_csv(central := tmp_path / "central.csv", index=False)
    made = load(name="compas", dir=str(tmp_path), central_test=str(central))
    np.testing.assert_array_equal(
        np.array(made.class_names)[made.central_test.labels], rows.two_year_recid[:9]
    )
    np.testing.assert_array_equal(
        made.central_test.features, made.encoding.encode(rows.iloc[:9], unseen="ignore")
    )
    rows.iloc[:9].assign(two_year_recid="maybe").to_csv(central, index=False)
    with pytest.raises(ValueError, match=r"label 'two_year_recid' has .'maybe'.: expected no, yes"):
        load(name="compas", dir=str(tmp_path), central_test=str(central))


def test_classes_of_a_column_of_arrays_have_names(tmp_path, without_figures):
    rows = pd.DataFrame({"town": list("abc") * 20, "label": ["cat", "dog"] * 30})
    rows["vector"] = [[float(i % 2), i / 60] for i in range(60)]
    rows.to_parquet(file := tmp_path / "a.parquet")
    words = ["run", "--data.file", str(file), "--data.label", "label", "--data.client", "town"]
    words += ["--data.features", "vector", "--training.rounds", "2", "--methods", "fedavg"]
    assert main([*words, "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert class_names(ff.results.open(folder)) == ["cat", "dog"]
    fitted = ff.load_model(folder, "fedavg")
    vectors = np.array(rows.vector.tolist(), np.float32)
    np.testing.assert_array_equal(fitted.predict(rows), fitted.predict(vectors))
    assert fitted.encoding.classes == ("cat", "dog")
