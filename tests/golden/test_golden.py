"""Results equal those that were recorded, so that a change of the code changes no result.

``pytest tests/golden -m "slow or not slow"`` compares all of them. With ``-m slow`` alone, programs
are compiled with other flags than recorded, and so are compared with a tolerance.
"""

import json

import jax
import numpy as np
import pytest
import record

MACHINES = record.machines()
OTHERS = {group for group, machine in MACHINES.items() if machine != record.machine()}
"""Groups that were recorded on another machine."""
RECORDED = {group: record.recorded(group) for group in record.GROUPS}
CASES = [(group, case) for group, cases in record.GROUPS.items() for case in cases]
QUICK = {
    "method-fedavg",
    "method-unionfl",
    "method-equitable",
    "method-centralized",
    "divfl-reference_clients",
    "fltrust",
    "sgd-adam",
    "several-faults",
    "privacy-secure",
    "fit_batch",
    "function-facility_location",
    "function-conditional_mutual_information",
    "function-sum_of",
    "greedy-matroids",
    "lazy_greedy",
    "sieve_batches",
    "matroid-partition",
    "matroid-graphic",
    "rounding-partition",
    "rounding-laminar",
    "federated-max_coverage",
}
"""One case of each kind, for every run of the tests."""


ROUNDED = {
    "drfa",
    "privacy",
    "adaptive_clipping",
    "privacy-stochastic_quantization",
    "privacy-secure",
    "lazy_greedy",
}
"""Cases whose settings are multiplied in single precision since they are arguments of the program.

They were constants when the results were recorded, and DRFA's step size times its steps, the noise
on a mean of three clients and the noise multiplier of updates were computed in double precision or
folded by the compiler. The results differ in the last digits. Gains of `lazy_greedy` are sums whose
order differs between processors of equal flags, by one unit in the last place.
"""


def marked():
    """The cases as parameters; all but the quick ones are slow."""
    for group, case in CASES:
        marks = () if case in QUICK else pytest.mark.slow
        yield pytest.param(group, case, id=case, marks=marks)


def test_this_machine_is_of_the_recorded_kind():
    assert MACHINES.keys() == record.GROUPS.keys()
    if OTHERS:
        found = json.dumps(record.machine())
        pytest.skip(
            f"results of {', '.join(sorted(OTHERS))} are compared with a tolerance, as "
            f"{record.MACHINE.name} has not {found}"
        )


def test_the_recorded_cases_are_all_cases():
    assert {(group, case) for group, cases in RECORDED.items() for case in cases} == set(CASES)
    assert {case for _, case in CASES} >= QUICK


@pytest.mark.parametrize(("group", "case"), list(marked()))
def test_results_are_those_recorded(group, case):
    if case == next(iter(record.GROUPS[group])):
        jax.clear_caches()  # Programs map memory, which Linux limits for a process.
    expected, actual = RECORDED[group][case], record.computed(group, case)
    assert set(actual) == set(expected)
    if group in OTHERS:
        compare_across_machines(actual, expected)
        return
    for name, values in expected.items():
        if values.dtype.kind != "f" or (is_exact(name) and case not in ROUNDED):
            assert actual[name].dtype == values.dtype, name
            np.testing.assert_array_equal(actual[name], values, err_msg=name)
        else:
            rtol = 1e-5 if case in ROUNDED else 1e-6
            np.testing.assert_allclose(
                actual[name], values, rtol=rtol, atol=1e-6, err_msg=name, strict=True
            )


def is_exact(name):
    """Whether an array is of a compiled program; eager calls may be compiled otherwise."""
    return not name.startswith("eager")


def compare_across_machines(actual, expected):
    """Compares results where other instructions round sums otherwise.

    Rounding can decide between items of almost equal gain or clients of almost equal loss, after
    which all that follows differs.
    """
    for name, values in expected.items():
        assert actual[name].shape == values.shape, name
        if values.dtype.kind != "f" and not np.array_equal(actual[name], values):
            pytest.skip(f"{name}: another choice than the recorded one")
    for name, values in expected.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(actual[name], values, rtol=1e-5, atol=1e-5, err_msg=name)
