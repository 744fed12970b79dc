"""FedAvg and FedProx with Flower's strategies, simulated on Ray; run by its own Python.

python flower_trainings.py 20           # clients
python flower_trainings.py 20 example   # with the proximal term of the example of `FedProx`
"""

import json
import logging
import sys
import tempfile
from functools import partial
from pathlib import Path

import flower_trainings_client
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, FedProx
from flwr.simulation import run_simulation
from trainings import serve
from trainings_torch import layers, network

CLIENTS = int(sys.argv[1])
SQUARED = sys.argv[2:] != ["example"]
app = ServerApp()


class GivenCohorts:
    """A strategy that sends to given clients in place of random ones."""

    def _construct_messages(self, record, node_ids, message_type):
        chosen = self.cohorts[record["config"]["server-round"] - 1]
        return super()._construct_messages(record, [self.nodes[i] for i in chosen], message_type)


class GivenFedAvg(GivenCohorts, FedAvg):
    """FedAvg with given cohorts."""


class GivenFedProx(GivenCohorts, FedProx):
    """FedProx with given cohorts."""


def nodes_by_client(grid):
    """Returns the node of each client."""
    messages = [
        Message(content=RecordDict(), message_type=MessageType.QUERY, dst_node_id=node)
        for node in grid.get_node_ids()
    ]
    replies = grid.send_and_receive(messages)
    return {r.content["config"]["client"]: r.metadata.src_node_id for r in replies}


def train(grid, folder, arrays, settings):
    file = Path(folder) / f"{len(list(Path(folder).iterdir()))}.npz"
    np.savez(file, **arrays)
    model, cohorts = network(arrays), arrays["cohorts"]
    options = {"fraction_train": cohorts.shape[1] / CLIENTS, "fraction_evaluate": 0.0}
    if settings.prox:
        strategy = GivenFedProx(**options, proximal_mu=settings.prox)
    else:
        strategy = GivenFedAvg(**options)
    strategy.cohorts, strategy.nodes = cohorts.tolist(), nodes_by_client(grid)
    config = {"path": str(file), "settings": json.dumps(settings._asdict()), "squared": SQUARED}
    result = strategy.start(
        grid, ArrayRecord(model.state_dict()), len(cohorts), train_config=ConfigRecord(config)
    )
    return layers(result.arrays.to_torch_state_dict())


@app.main()
def main(grid, context):
    with tempfile.TemporaryDirectory() as folder:
        serve(partial(train, grid, folder))


logging.getLogger("flwr").setLevel(logging.ERROR)
run_simulation(
    app,
    flower_trainings_client.app,
    num_supernodes=CLIENTS,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
