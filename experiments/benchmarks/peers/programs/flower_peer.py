"""Federated averaging with Flower's simulation on Ray; run by its own Python.

python flower_peer.py mnist   # the workload, whose clients Ray simulates
"""

import logging
import sys
from functools import partial

import flower_client
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_networks import accuracy, images, network
from workloads import WORKLOADS, serve

NAME = sys.argv[1]
CLIENTS = WORKLOADS[NAME].clients
app = ServerApp()


def make(grid, workload, path):
    data = dict(np.load(path))
    model = network(workload.network, data)
    test = images(data["test_x"]), torch.from_numpy(data["test_y"]).long()
    config = ConfigRecord({"workload": NAME, "path": path})
    strategy = FedAvg(
        fraction_train=workload.cohort_size / CLIENTS,
        fraction_evaluate=0.0,
        min_available_nodes=CLIENTS,
    )

    def train():
        arrays = ArrayRecord(model.state_dict())
        result = strategy.start(grid, arrays, workload.rounds, train_config=config)
        model.load_state_dict(result.arrays.to_torch_state_dict())

    return train, lambda: accuracy(model, *test)


@app.main()
def main(grid, context):
    serve(partial(make, grid))


logging.getLogger("flwr").setLevel(logging.ERROR)
run_simulation(
    app,
    flower_client.app,
    num_supernodes=CLIENTS,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
