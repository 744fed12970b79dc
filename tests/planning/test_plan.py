"""Plans against known costs, with a CPU as the machine."""

import importlib.util
import json
import subprocess
import sys

import jax
import pytest

import fedjax_fair as ff
from fedjax_fair.planning.machines import Machine
from fedjax_fair.planning.plan import measure_plan, plan

HERE = Machine("cpu", 1e9, platform="cpu", module="jax")
BATCH = 10
# Forward, and the gradient by the weights: features need none.
OF_A_STEP = 2 * (2 * BATCH * 64 * 10)
SCHEDULE = {"rounds": 7, "eval_every": 3, "train_loss": False}


@pytest.fixture(scope="module", autouse=True)
def here():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedjax_fair.planning.plan.devices_of", lambda machine: jax.devices())
        yield


@pytest.fixture(scope="module")
def digits():
    return ff.data.load("digits")


def fedavg(**steps):
    return ff.Round(
        model=ff.models.logistic(10),
        selector=ff.selectors.Uniform(cohort_size=5),
        solver=ff.solvers.SGD(learning_rate=0.1, batch_size=BATCH, **steps),
        aggregator=ff.aggregators.Mean(),
    )


@pytest.fixture(scope="module")
def planned(digits):
    round = fedavg(steps=4)
    return plan(HERE, [round], (0, 1), digits, **SCHEDULE)


def test_a_round_has_the_products_of_a_local_step_or_more(planned):
    """XLA counts one pass of every loop, here over participants and steps."""
    assert 2 * OF_A_STEP <= planned.work["flops"] < 2 * 5 * 4 * OF_A_STEP
    assert planned.work["bytes"] > 0


def test_memory_is_that_of_data_states_and_temporaries(digits, planned):
    def arrays(part):
        return [part.features, part.labels, part.order, part.offsets, part.sizes]

    data = [leaf for part in (digits.train, digits.test) for leaf in arrays(part)]
    held = {id(leaf): leaf.nbytes for leaf in data}
    assert planned.memory["data"] == sum(held.values())
    # A model, how often each client took part, a key, a round: of two runs, with their seeds.
    model = 4 * (64 * 10 + 10)
    assert planned.memory["states"] >= 2 * (model + 4 * digits.num_clients)
    assert planned.memory["temporaries"] > 0


def test_states_of_clients_are_counted_once(digits):
    base = fedavg(steps=4)
    model, inner = ff.models.mlp(10, hidden=(4000,)), base.solver
    round = base.replace(model=model, solver=ff.solvers.Ditto(inner, personal_prox=0.1))
    states = digits.num_clients * 4 * (64 * 4000 + 4000 + 4000 * 10 + 10)
    memory = plan(HERE, [round], (0,), digits, **SCHEDULE).memory
    assert states < memory["states"] < 1.1 * states
    assert memory["temporaries"] < 0.8 * states  # The initialization returns the states.


def test_arrays_that_runs_share_are_counted_once(digits):
    base = fedavg(steps=4)
    variables = jax.device_get(base.model.init(jax.random.key(0), digits.train.features[:1]))
    round = base.replace(model=ff.models.pretrained(base.model, variables))
    for seeds in ((0,), (0, 1, 2)):
        memory = plan(HERE, [round], seeds, digits, **SCHEDULE).memory
        assert memory["model"] == 4 * (64 * 10 + 10)


def test_parallel_runs_take_nine_tenths_of_memory(planned):
    each = (planned.memory["states"] + planned.memory["temporaries"]) / 2
    free = 0.9 * HERE.memory - planned.memory["data"]
    assert planned.max_parallel_runs * each <= free < (planned.max_parallel_runs + 1) * each


def test_records_include_metrics_and_cohorts(digits, planned):
    """At least the accuracy of every client at four evaluations, and seven cohorts of five."""
    least = 2 * 4 * (4 * 4 * digits.num_clients + 7 * 5)
    assert least < planned.records < 20 * least


def test_this_machine_is_measured(digits):
    round = fedavg(steps=4)
    here = measure_plan([round], (0, 1), digits, **SCHEDULE)
    # Evaluations before training, after 3 and 6 rounds, and after the last.
    assert here.seconds["total"] > 7 * here.seconds["round"] + 4 * here.seconds["evaluation"] > 0
    assert here.max_parallel_runs > 2
    assert here.work is None


@pytest.mark.foreign
@pytest.mark.parametrize(
    ("machine", "module"), [("v5e:1x1", "libtpu"), ("h200", "jax_cuda12_plugin")]
)
def test_a_missing_machine_is_planned_for(machine, module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}")
    code = "from fedjax_fair.app.cli import program; program()"
    command = ["plan", "digits", "--methods", "fedavg", "--machine", machine, "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)["plans"]["fedavg"]
    assert 0 < sum(found["memory"].values()) < 1e9
    assert found["work"] is None or found["work"]["flops"] > 0
