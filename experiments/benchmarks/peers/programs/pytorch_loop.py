"""Federated averaging as a loop over clients in PyTorch; run by its own Python."""

import numpy as np
import torch
from torch.nn import functional
from torch_networks import accuracy, inputs, integers, local_sgd, loss, network, wait
from workloads import CANDIDATES, LAM, B, serve


def make(workload, path):
    arrays = dict(np.load(path))
    features, labels = inputs(arrays["train_x"]), integers(arrays["train_y"])
    test = inputs(arrays["test_x"]), integers(arrays["test_y"])
    parts = integers(arrays["parts"])
    model = network(workload.network, arrays)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)

    def full_gradient(part):
        """Loss and gradient of a client's examples."""
        model.zero_grad()
        total = 0.0
        for rows in part.split(200):
            loss = functional.cross_entropy(model(features[rows]), labels[rows], reduction="sum")
            (loss / len(part)).backward()
            total += loss.item()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        return total / len(part), gradient

    def select():
        if workload.selector == "uniform":
            return rng.choice(workload.clients, workload.cohort_size, replace=False)
        losses, gradients = zip(*[full_gradient(part) for part in parts], strict=True)
        distances = torch.cdist(torch.stack(gradients), torch.stack(gradients)).cpu().numpy()
        bonus = np.log1p(losses) if workload.selector == "subtrunc" else np.zeros(len(parts))
        return greedy(distances, bonus, workload.cohort_size, rng)

    def train_round():
        chosen = select()
        start = {name: value.clone() for name, value in model.state_dict().items()}
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in chosen:
            model.load_state_dict(start)
            local_sgd(model, features, labels, parts[client], workload)
            for name, value in model.state_dict().items():
                mean[name] += value / len(chosen)
        model.load_state_dict(mean)

    def train():
        for _ in range(workload.rounds):
            train_round()
        if workload.evaluation:
            accuracy(model, *test)
        wait()

    return train, lambda: accuracy(model, *test), lambda: loss(model, *test)


def greedy(distances, bonus, size, rng):
    """Stochastic greedy for the mean representation plus the truncated bonus."""
    nearest, total, chosen = distances.max(axis=1), 0.0, []
    for _ in range(size):
        rest = np.setdiff1d(np.arange(len(distances)), chosen)
        candidates = rng.choice(rest, min(CANDIDATES, len(rest)), replace=False)
        saved = np.maximum(nearest[:, None] - distances[:, candidates], 0).mean(axis=0)
        gains = saved + LAM * (np.minimum(B, total + bonus[candidates]) - min(B, total))
        best = candidates[np.argmax(gains)]
        chosen.append(best)
        nearest, total = np.minimum(nearest, distances[:, best]), total + bonus[best]
    return chosen


serve(make)
