"""Workloads that every program trains, and how it is requested to. Standard library only."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """A federation to train, by any program.

    Attributes:
        network: "lenet", "cnn" (the network of pfl's CIFAR-10 benchmark), "resnet18", or
            "char_lstm" for text, whose examples are windows.
        clients: Number of clients; all have equally many examples.
        cohort_size: Clients per round, drawn uniformly unless ``selector`` says otherwise.
        batch_size: Examples of a local step.
        steps: Local SGD steps of a client.
        rounds: Rounds of a repetition.
        learning_rate: Local step size.
        selector: "uniform", "divfl" or "subtrunc", the latter two from fresh full gradients.
        evaluation: Whether every repetition ends with a pass over the test examples.
    """

    network: str
    clients: int
    cohort_size: int
    batch_size: int
    steps: int
    rounds: int
    learning_rate: float
    selector: str = "uniform"
    evaluation: bool = False

    @property
    def examples(self) -> int:
        """Examples that a repetition trains on."""
        return self.rounds * self.cohort_size * self.steps * self.batch_size


WORKLOADS = {
    "mnist": Workload("lenet", 100, 10, 50, 20, 2, 0.05),
    "cifar10": Workload("cnn", 1000, 50, 10, 5, 2, 0.1, evaluation=True),
    "divfl": Workload("lenet", 100, 10, 50, 20, 1, 0.05, selector="divfl"),
    "subtrunc": Workload("lenet", 100, 10, 50, 20, 1, 0.05, selector="subtrunc"),
    "resnet18": Workload("resnet18", 4, 4, 32, 2, 1, 0.01),
    "clients10": Workload("lenet", 1000, 10, 10, 6, 10, 0.1),
    "clients100": Workload("lenet", 1000, 100, 10, 6, 3, 0.1),
    "clients1000": Workload("lenet", 1000, 1000, 10, 6, 1, 0.1),
    "shakespeare": Workload("char_lstm", 30, 6, 10, 14, 2, 1.0),
}
CANDIDATES = 10  # Of a step of stochastic greedy.
LAM, B = 0.5, 1.1  # SubTrunc's weight and limit.
TEST_BATCH = 250


def serve(make: Callable[[Workload, str], tuple[Callable[[], Any], ...]]):
    """Answers requests, one JSON object a line.

    Args:
        make: From a workload and the file of its data to two functions: one trains for another
            repetition and waits until that is done, the other returns the test accuracy so far.
            Programs that train on text have a third, which returns the test loss.
    """
    train = accuracy = loss = None
    for line in sys.stdin:
        request = json.loads(line)
        start, used = time.perf_counter(), time.process_time()
        if "workload" in request:
            train, accuracy, *rest = make(WORKLOADS[request["workload"]], request["data"])
            loss, answer = (rest or [None])[0], {}
        elif request["do"] == "train":
            train()
            answer = {
                "seconds": time.perf_counter() - start,
                "core_seconds": time.process_time() - used,
            }
        elif request["do"] == "accuracy":
            answer = {"accuracy": float(accuracy())}
        else:
            answer = {"loss": float(loss())}
        print(json.dumps(answer), flush=True)
