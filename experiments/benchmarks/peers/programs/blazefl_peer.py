"""Federated averaging with BlazeFL, in threads or processes; run by its own Python.

python blazefl_peer.py threads     # ten, on free-threaded Python
python blazefl_peer.py gil         # a thread per core, with the GIL
python blazefl_peer.py processes   # a process per core

As in its authors' example, except that clients' images are tensors in memory instead of files.
"""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing
from blazefl.contrib import (
    FedAvgBaseServerHandler,
    FedAvgPartitionType,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import ModelSelector, PartitionedDataset
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch_networks import DEVICE, accuracy, images, integers, network, wait
from workloads import serve

SEED = 0
CORES = len(os.sched_getaffinity(0))
# The example has ten. Ten with the GIL were slower, and every round starts its processes again,
# which import PyTorch.
PARALLEL = {"threads": 10, "gil": CORES, "processes": CORES}
NEVER = 10**9

# Clients train in parallel already. Also in the processes, which import this module.
torch.set_num_threads(1)


class Networks(ModelSelector):
    """The network of a workload."""

    def __init__(self, arrays):
        self.layers = {name: values for name, values in arrays.items() if name.startswith("layer")}

    def select_model(self, model_name):
        """A network with the initial parameters, which training replaces."""
        return network(model_name, self.layers)


class Images(PartitionedDataset[FedAvgPartitionType]):
    """The images of the clients; an "epoch" has as many as the steps of the workload need."""

    def __init__(self, workload, features, labels, parts):
        self.taken = workload.steps * workload.batch_size
        self.features, self.labels, self.parts = features, labels, parts

    def get_dataset(self, type_, cid):
        """The images and labels of a client."""
        rows = self.parts[cid]
        return TensorDataset(self.features[rows], self.labels[rows])

    def set_dataset(self, type_, cid, dataset):
        """Nothing to do: training does not change the images."""

    def get_dataloader(self, type_, cid, batch_size, generator):
        """Minibatches in random order; a second pass has another one."""
        dataset = self.get_dataset(type_, cid)
        sampler = RandomSampler(dataset, num_samples=self.taken, generator=generator)
        return DataLoader(dataset, batch_size, sampler=sampler)


def make(mode, states, workload, path):
    arrays = dict(np.load(path))
    features, labels = images(arrays["train_x"]), integers(arrays["train_y"])
    test = images(arrays["test_x"]), integers(arrays["test_y"])
    common = {
        "model_selector": Networks(arrays),
        "model_name": workload.network,
        "dataset": Images(workload, features, labels, integers(arrays["parts"])),
        "num_clients": workload.clients,
        "device": DEVICE,
        "batch_size": workload.batch_size,
        "seed": SEED,
    }
    handler = FedAvgBaseServerHandler(
        **common, global_round=NEVER, sample_ratio=workload.cohort_size / workload.clients
    )
    common |= {"epochs": 1, "lr": workload.learning_rate, "num_parallels": PARALLEL[mode]}
    if mode == "processes":
        trainer = FedAvgProcessPoolClientTrainer(**common, state_dir=states)
    else:
        trainer = FedAvgThreadPoolClientTrainer(**common)
    trainer.progress_fn = list  # No progress bar.

    def train():
        for _ in range(workload.rounds):
            cohort = handler.sample_clients()
            trainer.local_process(handler.downlink_package(), cohort)
            for update in trainer.uplink_package():
                handler.load(update)
        wait()

    return train, lambda: accuracy(handler.model, *test)


if __name__ == "__main__":
    if sys.argv[1] == "threads" and sys._is_gil_enabled():
        sys.exit("threads: expected a Python without the GIL; a package has enabled it again.")
    torch.multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory() as folder:
        serve(partial(make, sys.argv[1], Path(folder)))
