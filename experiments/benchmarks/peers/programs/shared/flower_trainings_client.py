"""A client of Flower's simulation that trains on a file, in a module that its workers import."""

import json
from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional
from trainings import Settings, minibatches, split_by_client
from trainings_torch import network, tensors

app = ClientApp()


@cache
def load(path):
    """Returns the clients' examples and the network, once a process and file."""
    arrays = dict(np.load(path))
    return [tensors(x, y) for x, y in split_by_client(arrays)], network(arrays)


@app.query()
def query(message, context):
    content = RecordDict({"config": ConfigRecord({"client": context.node_config["partition-id"]})})
    return Message(content=content, reply_to=message)


@app.train()
def train(message, context):
    config, client = message.content["config"], context.node_config["partition-id"]
    settings = Settings(**json.loads(config["settings"]))
    clients, model = load(config["path"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = clients[client]
    start = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), settings.learning_rate)
    rng = np.random.default_rng((settings.seed, config["server-round"], client))
    for rows in minibatches(rng, len(y), settings):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[rows]), y[rows])
        if mu := config.get("proximal-mu"):
            loss = loss + mu / 2 * distance(model.parameters(), start, config["squared"])
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def distance(parameters, start, squared):
    """Returns the sum over arrays of the squared norms of differences.

    Without squares, it is the sum in the example of Flower's `FedProx`.
    """
    norms = [(p - q).norm(2) for p, q in zip(parameters, start, strict=True)]
    return sum(norm**2 if squared else norm for norm in norms)
