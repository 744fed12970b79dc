"""Checkpoints detect damage and fall back to the previous one."""

import shutil
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fedjax_fair as ff
from fedjax_fair.training import checkpoints, fingerprint
from fedjax_fair.training.loop import Callback


class Stop(Callback):
    """Stops after a round."""

    def __init__(self, round):
        self._round = round

    def on_evaluation(self, evaluation):
        return evaluation.round == self._round


@pytest.fixture(scope="module")
def data():
    return ff.data.load("digits", ff.data.iid(5))


@pytest.fixture(scope="module")
def train(data):
    method = ff.Round(
        ff.models.logistic(data.num_classes),
        ff.selectors.Uniform(2),
        ff.solvers.SGD(0.1, 10, steps=2),
        ff.aggregators.Mean(),
    )

    def train(folder=None, callbacks=()):
        return ff.fit(
            method, data, rounds=6, eval_every=2, checkpoints=folder, callbacks=callbacks
        ).dataset

    return train


@pytest.fixture(scope="module")
def uninterrupted(train):
    return train()


@pytest.fixture(scope="module")
def stopped(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    train(folder, [Stop(4)])
    return folder


@pytest.fixture
def folder(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "checkpoints")


def files_of(folder, step):
    return [path for path in sorted((folder / str(step)).rglob("*")) if path.is_file()]


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << position % 8
    path.write_bytes(content)


def test_the_last_two_remain(folder):
    assert sorted(path.name for path in folder.iterdir() if path.name.isdigit()) == ["2", "4"]


@pytest.mark.parametrize(
    ("stop", "seconds", "written"),
    [
        (6, [0, 0, 0], ["6"]),  # The end is always saved.
        (4, [0, 0], ["4"]),  # So is a stop, for example by a signal.
        (6, [20, 11, 29], ["4", "6"]),  # Intervals start at the last checkpoint.
        (6, [31, 29, 0], ["2", "6"]),
    ],
)
def test_checkpoints_are_half_a_minute_apart(stop, seconds, written, train, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoints, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoints, "SAVE_INTERVAL_S", 30.0)

    class Clock(Stop):
        def on_evaluation(self, evaluation):
            if evaluation.round:
                now[0] += seconds[evaluation.round // 2 - 1]
            return super().on_evaluation(evaluation)

    train(tmp_path / "checkpoints", [Clock(stop)])
    assert (
        sorted(path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir())
        == written
    )


@pytest.mark.parametrize("number", range(3))
def test_a_flipped_bit_in_the_newest_goes_back_to_the_one_before(
    folder, train, uninterrupted, number
):
    rng = np.random.default_rng(number)
    files = [path for path in files_of(folder, 4) if path.stat().st_size]
    flip(files[rng.integers(len(files))], int(rng.integers(2**20)))
    with pytest.warns(UserWarning, match="damaged"):
        resumed = train(folder)
    xr.testing.assert_identical(resumed, uninterrupted)


def test_a_checkpoint_that_names_modules_of_classes_resumes_bit_for_bit(
    train, uninterrupted, tmp_path, monkeypatch
):
    """As checkpoints did before classes had their public names in them."""

    def name_with_module(value):
        name = public_name(value)
        return name.replace("ff.", "fedjax_fair.earlier.") if name.startswith("ff.") else name

    public_name = fingerprint._name
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "_name", name_with_module)
        train(tmp_path, [Stop(4)])
    xr.testing.assert_identical(train(tmp_path), uninterrupted)


def test_a_missing_file_is_damage(folder, train, uninterrupted):
    shutil.rmtree(folder / "4" / "state")
    with pytest.warns(UserWarning, match="damaged"):
        xr.testing.assert_identical(train(folder), uninterrupted)


def test_a_checkpoint_without_a_digest_is_intact(folder, train, uninterrupted):
    (folder / "4" / "sha256").unlink()
    xr.testing.assert_identical(train(folder), uninterrupted)


def test_foreign_files_and_folders_are_ignored(folder, train, uninterrupted):
    foreign = [
        *(".DS_Store", "3", "_notes", "backup/4/state/x", "5/notes.txt", "8/sha256", "4~/state/x"),
        *("4/.DS_Store", "4/Thumbs.db", "4/._state", "4/.nfs01", "4/old/x", "4/sha256.conflict"),
        *("4/state/desktop.ini", "4/history/_METADATA~", "4/history/d/copy", "2/.DS_Store"),
    ]
    for name in foreign:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "6").mkdir()
    (folder / "9").symlink_to(folder / "4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xr.testing.assert_identical(train(folder), uninterrupted)
    assert (folder / "6" / "state").is_dir()
    assert not (folder / "2").exists()
    for name in foreign[:7]:
        assert (folder / name).read_text() == name


def test_a_file_with_the_name_of_the_next_checkpoint_is_an_error(folder, train):
    (folder / "6").mkdir()
    (folder / "6" / "notes.txt").write_text("x")
    with pytest.raises(OSError, match="exists"):
        train(folder)
    assert (folder / "6" / "notes.txt").exists()


def test_a_file_instead_of_the_folder_is_an_error(tmp_path, train):
    (tmp_path / "checkpoints").write_text("x")
    with pytest.raises(ValueError, match="checkpoints="):
        train(tmp_path / "checkpoints")


def test_threads_that_share_a_folder_are_refused(folder, train, uninterrupted):
    """All but one; they would write the same checkpoint at the same time."""
    started = threading.Barrier(3)

    def resume(_):
        started.wait()
        try:
            return train(folder)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(3) as threads:
        ended = list(threads.map(resume, range(3)))
    refused = [end for end in ended if isinstance(end, str)]
    assert len(refused) < 3
    assert all("is used by another process or thread" in message for message in refused)
    for end in ended:
        if not isinstance(end, str):
            xr.testing.assert_identical(end, uninterrupted)


def test_a_folder_is_free_after_an_error_and_in_a_callback_is_not(folder, train):
    class Nested(Callback):
        def on_evaluation(self, evaluation):
            train(folder)

    with pytest.raises(ValueError, match="is used by another process or thread"):
        train(folder, [Nested()])
    with pytest.raises(ValueError, match="seeds"):
        checkpoints.Checkpoints(folder, (7,), {}, 6, 2)
    train(folder)


def test_damage_to_all_checkpoints_is_an_error(folder, train):
    for step in (2, 4):
        (folder / str(step) / "sha256").write_text("0")
    with (
        pytest.warns(UserWarning, match="round 4"),
        pytest.raises(ValueError, match="damaged"),
    ):
        train(folder)
    assert (folder / "2").is_dir()


def test_a_folder_that_is_deleted_is_not_made_again(train, tmp_path):
    folder = tmp_path / "checkpoints"

    class Delete(Callback):
        def on_evaluation(self, evaluation):
            if evaluation.round == 4:
                shutil.rmtree(folder)

    with pytest.raises(FileNotFoundError, match="deleted"):
        train(folder, [Delete()])
    assert not folder.exists()


class Keeping(ff.solvers.SGD):
    """Counts in a vector how often a client has trained."""

    def solve(self, key, variables, client):
        result = super().solve(key, variables, client)
        return result._replace(state=jax.tree.map(lambda leaf: leaf + 1, client.state))


def test_only_runs_with_states_of_clients_save_them(folder, data, tmp_path):
    assert not (folder / "4" / "clients").exists()

    def train(width):
        method = ff.Round(
            ff.models.logistic(data.num_classes),
            ff.selectors.Uniform(2),
            Keeping(0.1, 10, steps=2),
            ff.aggregators.Mean(),
        )
        with pytest.MonkeyPatch.context() as patch:
            first = {"count": jnp.zeros(width)}
            patch.setattr(Keeping, "init", lambda self, key, variables, client: first)
            options = {"checkpoints": tmp_path / "kept", "allow_changed_code": True}
            return ff.fit(method, data, rounds=2, eval_every=2, **options).dataset

    train(3)
    assert (tmp_path / "kept" / "2" / "clients").exists()
    train(3)
    with pytest.raises(ValueError, match=r"state\['count'\]") as raised:
        train(4)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("scaffold", None), ("ditto", None), ("top_k", None), ("ditto", "bfloat16")],
)
def test_runs_with_states_of_clients_resume_bit_for_bit(name, dtype, data, tmp_path):
    sgd, mean = ff.solvers.SGD(0.1, 10, steps=2), ff.aggregators.Mean()
    solver, aggregator, compression = {
        "scaffold": (ff.solvers.Scaffold(sgd), ff.aggregators.ScaffoldMean(), None),
        "ditto": (ff.solvers.Ditto(sgd, 0.5), mean, None),
        "top_k": (sgd, mean, ff.communication.TopK(0.3)),
    }[name]
    model, selector = ff.models.logistic(data.num_classes), ff.selectors.Uniform(2)
    settings = {"compression": compression, "client_state_dtype": dtype}
    method = ff.Round(model, selector, solver, aggregator, **settings)
    options = {"rounds": 6, "eval_every": 2, "seeds": (0, 1)}
    ff.fit(method, data, **options, checkpoints=tmp_path, callbacks=[Stop(4)])
    if dtype is not None:
        exact = method.replace(client_state_dtype=None)
        with pytest.raises(ValueError, match="client_state_dtype="):
            ff.fit(exact, data, **options, checkpoints=tmp_path)
    resumed = ff.fit(method, data, **options, checkpoints=tmp_path).dataset
    xr.testing.assert_identical(resumed, ff.fit(method, data, **options).dataset)
