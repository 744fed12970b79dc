"""Times of tasks against NumPy, and tables of devices."""

import re
import warnings

import jax
import numpy as np
import pytest

from fedjax_fair import timing
from fedjax_fair.timing.clock import NEVER

KEY = jax.random.key(0)


@jax.jit
def milliseconds(times, key, client, examples, down, up):
    return times.milliseconds(key, client, examples, down, up)


def test_a_task_is_a_download_training_and_an_upload():
    times = timing.ClientTimes(
        np.array([0.5, 0.01]),
        seconds_per_task=np.array([0.0, 1.0]),
        download_bytes_per_second=np.array([np.inf, 1000.0]),
        upload_bytes_per_second=np.array([np.inf, 500.0]),
    )
    assert int(milliseconds(times, KEY, 0, 7, 10**9, 10**9)) == 3500
    assert int(milliseconds(times, KEY, 1, 300, 2000, 750)) == 2000 + 1000 + 3000 + 1500


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, 1),
        (0.0004, 1),
        (0.0016, 2),
        (1.2344, 1234),
        (1.2346, 1235),
        (2e6, 2 * 10**9),
        (1e30, 2**31 - 128),
    ],
)
def test_times_are_whole_milliseconds_from_1_to_the_largest(seconds, expected):
    times = timing.ClientTimes([seconds, 1.0])
    assert int(times.milliseconds(KEY, 0, 1, 0, 0)) == expected < NEVER


def test_jitter_is_lognormal_with_median_1_and_only_of_the_time_per_example():
    number, jitter = 20_001, 0.5
    times = timing.ClientTimes([1.0], seconds_per_task=100.0).replace(jitter=jitter)
    keys = jax.random.split(KEY, number)
    drawn = jax.vmap(lambda key: times.milliseconds(key, 0, 10, 0, 0))(keys)
    logs = np.log((np.asarray(drawn) / 1000 - 100) / 10)
    # Standard errors of a median, and of a standard deviation, of normal numbers.
    assert abs(np.median(logs)) < 4 * jitter * np.sqrt(np.pi / 2 / number)
    assert abs(logs.std() - jitter) < 4 * jitter / np.sqrt(2 * number)


def test_other_times_and_jitters_compile_nothing():
    traced = []

    @jax.jit
    def run(times):
        traced.append(times)
        return times.milliseconds(KEY, 0, 10, 0, 0)

    for seconds, jitter in ((1.0, 0.1), (2.0, 0.7), (0.0, 0.2)):
        run(timing.ClientTimes([seconds, 1.0], jitter=jitter))
    assert len(traced) == 1


BY_CLIENT = """client, seconds_per_example, upload_bytes_per_second, device_class
b, 0.02, 100, slow
a, 0.01, 200, fast
c, 0.03, inf, slow
"""


def test_the_order_of_clients_in_a_table_has_no_effect(tmp_path):
    pandas = pytest.importorskip("pandas")
    names = ("a", "b", "c")
    path = tmp_path / "speeds.csv"
    path.write_text(BY_CLIENT)
    times = timing.from_table(path, 3, client_names=names)
    assert times.seconds_per_example.tolist() == [np.float32(x) for x in (0.01, 0.02, 0.03)]
    assert times.upload_bytes_per_second.tolist() == [200, 100, np.inf]
    assert times.download_bytes_per_second.tolist() == [np.inf] * 3
    assert times.class_names == ("fast", "slow")
    assert times.device_class.tolist() == [0, 1, 1]
    header, *rows = BY_CLIENT.splitlines(keepends=True)
    path.write_text(header + "".join(rows[::-1]))
    assert timing.from_table(path, 3, client_names=names) == times
    frame = pandas.read_csv(path, skipinitialspace=True)
    assert timing.from_table(frame, 3, client_names=names) == times
    assert timing.from_table(frame.assign(client=[2, 0, 1]), 3) == times


CLASSES = {
    "device_class": ["fast", "slow", "other"],
    "share": [0.5, 0.3, 0.2],
    "seconds_per_example": [0.01, None, None],
    "seconds_per_example_median": [None, 0.05, None],
    "seconds_per_example_sigma": [None, 0.5, None],
    "seconds_per_example_p10": [None, None, 0.02],
    "seconds_per_example_p50": [None, None, 0.03],
    "seconds_per_example_p90": [None, None, 0.12],
    "seconds_per_task": [1, 2, 3],
}


@pytest.mark.parametrize(
    ("num_clients", "counts"),
    # Quotas 3.5, 2.1, 1.4; then 0.5, 0.3, 0.2; then 5.5, 3.3, 2.2.
    [(7, [4, 2, 1]), (1, [1, 0, 0]), (11, [6, 3, 2])],
)
def test_shares_are_rounded_by_largest_remainders(num_clients, counts):
    times = timing.from_table(CLASSES, num_clients)
    assert np.bincount(times.device_class, minlength=3).tolist() == counts


def test_quantities_have_the_distributions_of_their_columns():
    number = 60_000
    times = timing.from_table(CLASSES, number)
    assert times.seconds_per_task.tolist() == (1 + times.device_class).tolist()
    fast, slow, other = (times.seconds_per_example[times.device_class == row] for row in range(3))
    assert set(fast) == {np.float32(0.01)}
    logs = np.log(slow / 0.05)
    assert abs(logs.mean()) < 4 * 0.5 / np.sqrt(len(logs))
    assert abs(logs.std() - 0.5) < 4 * 0.5 / np.sqrt(2 * len(logs))
    assert [other.min(), other.max()] == [np.float32(0.02), np.float32(0.12)]
    # Logarithms are linear between percentiles: halfway between 50 and 90 is a factor of 2.
    for value, percent in ((0.03, 50), (0.06, 70), (0.03 * 2**0.5, 60)):
        error = np.sqrt(percent / 100 * (1 - percent / 100) / len(other))
        assert abs(np.mean(other < value) - percent / 100) < 4 * error
    assert abs(np.mean(other == np.float32(0.12)) - 0.1) < 4 * 0.3 / np.sqrt(len(other))


def test_lognormal_is_a_table_of_one_class():
    table = {
        "device_class": ["all"],
        "share": [1],
        "seconds_per_example_median": [0.02],
        "seconds_per_example_sigma": [0.7],
    }
    assert timing.lognormal(0.02, 0.7, 9, seed=3) == timing.from_table(table, 9, seed=3)
    assert timing.lognormal(0.02, 0.7, 9, seed=3) != timing.lognormal(0.02, 0.7, 9, seed=4)


def test_classes_are_assigned_at_random_by_group_by_size_or_explicitly():
    first, second = (timing.from_table(CLASSES, 20, seed=seed) for seed in range(2))
    assert first == timing.from_table(CLASSES, 20)
    assert first.device_class.tolist() != second.device_class.tolist()
    groups = [2, 0, 1, 1]
    by_group = timing.from_table(CLASSES, 4, assign="group", groups=groups)
    assert by_group.device_class.tolist() == groups
    assert by_group == timing.from_table(CLASSES, 4, assign=groups)
    # With these sizes "other" needs 3 + 5.5 * 0.03 s, "slow" 2 + 5.5 * 0.05 s, "fast" 1 s.
    by_size = timing.from_table(CLASSES, 10, assign="size", sizes=range(1, 11))
    assert by_size.device_class.tolist() == [0] * 5 + [1] * 3 + [2] * 2
    # With many examples "slow" is slower than "other".
    by_size = timing.from_table(CLASSES, 10, assign="size", sizes=np.arange(1, 11) * 100)
    assert by_size.device_class.tolist() == [0] * 5 + [2] * 2 + [1] * 3


def by_class(**columns):
    return {"device_class": ["a"], "share": [1], "seconds_per_example": [1]} | columns


def by_client(**columns):
    return {"client": [0, 1], "seconds_per_example": [1, 1]} | columns


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: timing.from_table(by_client(seconds_per_example=[1, -0.1]), 2),
            "table, row 1: seconds_per_example=-0.1: expected a number >= 0.",
        ),
        (
            lambda: timing.from_table(by_client(seconds_per_example=["1", "fast"]), 2),
            "table, row 1: seconds_per_example='fast': expected a number >= 0.",
        ),
        (
            lambda: timing.from_table(by_client(upload_bytes_per_second=[np.nan, 1]), 2),
            "table, row 0: upload_bytes_per_second=None: expected a number > 0.",
        ),
        (
            lambda: timing.from_table(by_client(upload_bytes_per_second=[0, 1]), 2),
            "table, row 0: upload_bytes_per_second=0.0: expected a number > 0.",
        ),
        (
            lambda: timing.from_table(by_client(), 3),
            "table: client 2 has no row; add one.",
        ),
        (
            lambda: timing.from_table(by_client(client=[0, 0]), 2),
            "table, row 1: client 0 has another row; remove one.",
        ),
        (
            lambda: timing.from_table(by_client(client=["a", "c17"]), 2, client_names=("a", "b")),
            "table, row 1: client 'c17' is not in the data; its clients are 'a', 'b'.",
        ),
        (
            lambda: timing.from_table(by_client(share=[1, 1]), 2),
            "table: column 'share': expected one of client, seconds_per_example, ",
        ),
        (
            lambda: timing.from_table({"seconds_per_example": [1]}, 1),
            "table: no column device_class; expected device_class, share, ",
        ),
        (
            lambda: timing.from_table(by_class(share=[0.8]), 5),
            "table: column share sums to 0.8; expected 1.",
        ),
        (
            lambda: timing.from_table(by_class(share=[-1]), 5),
            "table, row 0: share=-1.0: expected a number in [0, 1].",
        ),
        (
            lambda: timing.from_table({"device_class": ["a"], "seconds_per_example": [1]}, 5),
            "table: no column share; add it, or choose another assign.",
        ),
        (
            lambda: timing.from_table(
                by_class(
                    seconds_per_example=[None],
                    seconds_per_example_p50=[0.02],
                    seconds_per_example_p90=[0.01],
                ),
                5,
            ),
            "table, row 0: seconds_per_example_p90=0.01 is less than _p50=0.02.",
        ),
        (
            lambda: timing.from_table(by_class(seconds_per_example_p50=[0.02]), 5),
            "table, row 0: seconds_per_example, seconds_per_example_p50; expected ",
        ),
        (
            lambda: timing.from_table(by_class(seconds_per_example=[""]), 5),
            "table, row 0: nothing; expected seconds_per_example, or seconds_per_example_median ",
        ),
        (
            lambda: timing.from_table(by_class(seconds_per_task_median=[1]), 5),
            "table, row 0: seconds_per_task_median; expected seconds_per_task, or ",
        ),
        (
            lambda: timing.from_table(by_class(seconds_per_task_p101=[1]), 5),
            "table: column 'seconds_per_task_p101': expected one of device_class, share, ",
        ),
        (
            lambda: timing.from_table(by_class(), 5, assign="group"),
            "assign='group': the data has no groups; use 'random' or 'size'.",
        ),
        (
            lambda: timing.from_table(by_class(), 2, assign="group", groups=[0, 1]),
            "groups=[0 1]: expected an integer from 0 to 0, a row of the table, for each of 2 ",
        ),
        (
            lambda: timing.from_table(by_class(), 2, assign="group", groups=[[0, 1], [1, 0]]),
            "groups of shape [2, 2]: expected [2], equal in the partitions of all seeds; make ",
        ),
        (
            lambda: timing.from_table(by_class(), 2, assign="size", sizes=[[1, 2], [2, 1]]),
            "sizes of shape [2, 2]: expected [2], equal in the partitions of all seeds; make ",
        ),
        (
            lambda: timing.from_table(by_class(), 5, assign="size"),
            "sizes of shape []: expected the number of examples of each of 5 clients",
        ),
        (
            lambda: timing.from_table(by_class(), 5, assign="speed"),
            "assign='speed': expected one of 'random', 'size', 'group'.",
        ),
        (
            lambda: timing.from_table({"client": [0], "seconds_per_example": []}, 5),
            "table: columns of [0, 1] rows; expected equal lengths.",
        ),
        (
            lambda: timing.ClientTimes([0, 0]),
            "times: every task would take 0 seconds; set seconds_per_example or seconds_per_task.",
        ),
        (
            lambda: timing.ClientTimes([1, 1]).check(20),
            "times of 2 clients: expected 20, the number of clients.",
        ),
        (
            lambda: (
                timing.ClientTimes([1, 1])
                .replace(online=timing.Online.from_intervals([[(0, 5)]], 9))
                .check(2)
            ),
            "online of 1 clients: expected 2, the number of clients.",
        ),
        (
            lambda: timing.ClientTimes([1, 2.6e5]).check_tasks([5, 10], 0, 0, can_abort=True),
            "client 1: a task of 2.6e+06 seconds; expected at most 2147483 (24 days). Are the ",
        ),
        (lambda: timing.ClientTimes(1.0), "seconds_per_example of shape []: expected [clients]; "),
        (
            lambda: timing.ClientTimes([1, 1], seconds_per_task=[1, 1, 1]),
            "seconds_per_task of shape [3]: expected [2], a value for each client, or one for all.",
        ),
        (
            lambda: timing.ClientTimes([1, 1], device_class=[0, 1]),
            "device_class=[0 1]: expected integers from 0 to 0, indices of class_names=('all',).",
        ),
        (lambda: timing.ClientTimes([1], jitter=-1), "jitter=-1: expected a number >= 0."),
        (lambda: timing.ClientTimes([1], class_names=()), "class_names=(): expected a tuple of "),
        (lambda: timing.lognormal(0.0, 1.0, 5), "median=0.0: expected a number > 0."),
        (lambda: timing.lognormal(1.0, -1.0, 5), "sigma=-1.0: expected a number >= 0."),
    ],
)
def test_bad_times_are_refused(make, message, as_users_call):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_lines_of_files_are_named(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text("client,seconds_per_example\n0,1\n\n1,-0.1\n")
    with pytest.raises(ValueError, match=r"^speeds\.csv, line 4: seconds_per_example=-0\.1: exp"):
        timing.from_table(path, 2)


def test_intervals_that_are_shorter_than_tasks_cause_a_warning():
    online = timing.Online.from_intervals([[(0, 90)], [(0, 20), (50, 80)]], period=90)
    times = timing.ClientTimes([1.0, 1.0], online=online)
    message = r"client 1: its longest interval \(30 s\) is shorter than its task \(45 s without"
    with pytest.warns(UserWarning, match=message):
        times.check_tasks(np.array([100, 45]), 0, 0, can_abort=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        times.check_tasks(np.array([100, 30]), 0, 0, can_abort=True)
        times.check_tasks(np.array([100, 45]), 0, 0, can_abort=False)
