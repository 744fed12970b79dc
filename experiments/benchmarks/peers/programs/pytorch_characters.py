"""Federated averaging of a character LSTM as a loop over clients in PyTorch; run by its own Python.

The first request has the sizes, each other one trains for a repetition.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class Network(nn.Module):
    """An embedding, LSTM layers and a dense layer."""

    def __init__(self, sizes):
        super().__init__()
        self.embedding = nn.Embedding(sizes["characters"], sizes["embedding_width"])
        self.lstm = nn.LSTM(
            sizes["embedding_width"], sizes["width"], sizes["layers"], batch_first=True
        )
        self.head = nn.Linear(sizes["width"], sizes["characters"])

    def forward(self, tokens):
        """Logits of the character after each token."""
        return self.head(self.lstm(self.embedding(tokens))[0])


def make(sizes):
    torch.manual_seed(0)
    total = sizes["clients"] * sizes["windows"]
    tokens = torch.randint(sizes["characters"], (total, sizes["length"] + 1))
    model = Network(sizes)

    def train_round():
        start = {name: value.clone() for name, value in model.state_dict().items()}
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in torch.randperm(sizes["clients"])[: sizes["cohort_size"]].tolist():
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), sizes["learning_rate"])
            own = torch.arange(client, total, sizes["clients"])
            for _ in range(sizes["steps"]):
                batch = tokens[own[torch.randperm(len(own))[: sizes["batch_size"]]]]
                optimizer.zero_grad()
                logits = model(batch[:, :-1]).flatten(0, 1)
                functional.cross_entropy(logits, batch[:, 1:].flatten()).backward()
                optimizer.step()
            for name, value in model.state_dict().items():
                mean[name] += value / sizes["cohort_size"]
        model.load_state_dict(mean)

    def train():
        for _ in range(sizes["rounds"]):
            train_round()

    return train


train = None
for line in sys.stdin:
    request, start = json.loads(line), time.perf_counter()
    if train is None:
        train = make(request)
    else:
        train()
    print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
