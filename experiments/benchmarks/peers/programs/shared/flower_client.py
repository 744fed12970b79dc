"""A client of Flower's simulation, in a module that its worker processes import."""

from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_networks import images, local_sgd, network
from workloads import WORKLOADS

app = ClientApp()


@cache
def loaded(path, name):
    """Data and network, once a process."""
    arrays = dict(np.load(path))
    features, labels = images(arrays["train_x"]), torch.from_numpy(arrays["train_y"]).long()
    parts = torch.from_numpy(arrays["parts"]).long()
    return features, labels, parts, network(name, arrays)


@app.train()
def train(message, context):
    config = message.content["config"]
    workload = WORKLOADS[config["workload"]]
    features, labels, parts, model = loaded(config["path"], workload.network)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    part = parts[context.node_config["partition-id"]]
    local_sgd(model, features, labels, part, workload)
    metrics = MetricRecord({"num-examples": len(part)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
