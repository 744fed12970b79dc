"""The log of a run is that of its results, whatever happened to the file."""

import json
import warnings

import numpy as np
import pytest
import xarray as xr

from fedjax_fair.app.run_folder import MetricsLog
from fedjax_fair.results.files import read_evaluations
from fedjax_fair.training.loop import Evaluation


def log_of(path, rounds=(0, 2), seeds=(0, 1)):
    """A log whose file holds all lines of its results."""
    rng = np.random.default_rng(0)
    shape = (len(seeds), len(rounds))
    values = rng.uniform(size=shape).astype(np.float32)
    columns = {"sigma_acc": values, "accuracy_mean_clients": np.where(values > 0.9, np.nan, values)}
    results = xr.Dataset(
        {name: (("seed", "round"), value) for name, value in columns.items()},
        {"seed": list(seeds), "round": list(rounds)},
    )
    log = MetricsLog(path, "fedavg", ["fedavg", "divfl"])
    for i, done in enumerate(rounds):
        summaries = {name: value[:, i] for name, value in columns.items()}
        log.on_evaluation(Evaluation(done, rounds[-1], seeds, summaries, clients=None, seconds=0.5))  # type: ignore
    return results


def without_times(path):
    return [line | {"seconds": None} for line in map(json.loads, path.read_text().splitlines())]


def test_any_flipped_bit_is_noticed(tmp_path):
    """Except in the time, which the results do not have."""
    path = tmp_path / "metrics.jsonl"
    results = log_of(path, rounds=(0,), seeds=(0,))
    content, lines = path.read_bytes(), without_times(path)
    time = content.index(b"0.5,")
    for position, bit in np.ndindex(len(content), 8):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            log = MetricsLog(path, "fedavg", ["fedavg", "divfl"])
            log.on_start(0, (0,))
        except ValueError as error:
            assert "metrics.jsonl" in str(error)  # noqa: PT017
            continue
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            log.on_end(results)
        assert without_times(path) == lines
        is_incomplete = position == len(content) - 1
        assert warned or is_incomplete or position in range(time, time + 3)


def test_evaluations_are_those_of_the_log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    results = log_of(path)
    evaluations = read_evaluations(path).sel(algorithm="fedavg", drop=True)
    for name in results:
        np.testing.assert_allclose(evaluations[name].transpose("seed", "round"), results[name])
    lines = path.read_text().splitlines()
    edited = lines[0].replace('"sigma_acc": 0', '"sigma_acc": {}, "x": 0')
    path.write_text("\n".join([edited, *lines[1:-1], lines[-1][:-9]]))
    evaluations = read_evaluations(path).sel(algorithm="fedavg")
    missing = evaluations.sigma_acc.transpose("seed", "round").isnull().values
    np.testing.assert_array_equal(missing, [[True, False], [False, True]])
    path.write_text('{"algorithm": "fedavg", "seed": 0, "round": 0}\n')
    with pytest.raises(ValueError, match="evaluations"):
        read_evaluations(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 7}, r"line 5 is of 'fedavg', seed 7, round 0, which are not of this run"),
        ({"algorithm": "krum"}, r"line 5 is of 'krum', seed 0, round 0"),
        ({"round": 4}, r"line 5 is of 'fedavg', seed 0, round 4"),
        ({"round": -1}, r"line 5 is of 'fedavg', seed 0, round -1"),
    ],
)
def test_lines_of_another_run_are_refused(changes, message, tmp_path):
    path = tmp_path / "metrics.jsonl"
    log_of(path)
    line = json.loads(path.read_text().splitlines()[0]) | changes
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=rf"metrics\.jsonl': {message}"):
        MetricsLog(path, "fedavg", ["fedavg", "divfl"]).on_start(2, (0, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines, lines[0]],
        lambda lines: [lines[0], *lines],
        lambda lines: [lines[0].replace("sigma_acc", "sigma_bcc"), *lines[1:]],
        lambda lines: [lines[0].replace(", ", ",  "), *lines[1:]],
        lambda lines: [*lines[:2], lines[2].replace("0.5", "NaN"), lines[3]],
        lambda lines: [*lines[:2], lines[2].replace("0.5", '"0.5"'), lines[3]],
        lambda lines: [lines[0].replace(": 0.5", ": -0.5"), *lines[1:]],
        lambda lines: [lines[0][:-1] + ', "sigma_acc": 0.5}', *lines[1:]],
        lambda lines: [lines[0] + "\r", *lines[1:]],
        lambda lines: ["\ufeff" + lines[0], *lines[1:]],
    ],
)
def test_changed_and_repeated_lines_are_written_again(change, tmp_path):
    path = tmp_path / "metrics.jsonl"
    results = log_of(path)
    lines, other = path.read_text().splitlines(), '{"algorithm": "divfl", "seed": 0, "round": 0}'
    expected = without_times(path)
    path.write_text("\n".join([*change(lines), other, ""]))
    log = MetricsLog(path, "fedavg", ["fedavg", "divfl"])
    log.on_start(2, (0, 1))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl"):
        log.on_end(results)
    *after, last = without_times(path)
    assert after == expected
    assert last == json.loads(other) | {"seconds": None}
