"""The networks and local training in PyTorch, from parameters that all programs start from."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from workloads import TEST_BATCH

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    """Two convolutions beside a shortcut; layers in the order of the file."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        projected = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if projected else None
        self.norms = nn.ModuleList(nn.GroupNorm(2, outputs, eps=1e-6) for _ in range(2 + projected))

    def forward(self, x):
        """Images with other channels."""
        y = functional.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        if self.shortcut is not None:
            x = self.norms[2](self.shortcut(x))
        return functional.relu(x + y)


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def resnet18():
    stem = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.GroupNorm(2, 64, eps=1e-6), nn.ReLU()]
    shapes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [
        block
        for inputs, outputs, stride in shapes
        for block in (Block(inputs, outputs, stride), Block(outputs, outputs, 1))
    ]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def network(name, arrays):
    """The network with the parameters of the file."""
    model = {"lenet": lenet, "cnn": cnn, "resnet18": resnet18}[name]()
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.GroupNorm)]
    channels = None
    for number, layer in enumerate(layers):
        weight = arrays[f"layer{number:02d}.{'scale' if _is_norm(layer) else 'kernel'}"]
        if isinstance(layer, nn.Conv2d):
            weight, channels = weight.transpose(3, 2, 0, 1), weight.shape[3]
        elif isinstance(layer, nn.Linear):
            weight, channels = _channels_first(weight, channels).T, None
        layer.weight.data.copy_(torch.from_numpy(np.ascontiguousarray(weight)))
        if layer.bias is not None:
            layer.bias.data.copy_(torch.from_numpy(arrays[f"layer{number:02d}.bias"]))
    return model.to(DEVICE)


def _is_norm(layer):
    return isinstance(layer, nn.GroupNorm)


def _channels_first(weight, channels):
    """Rows for images that are flattened with their channels first, not last."""
    if channels is None:
        return weight
    side = int((weight.shape[0] // channels) ** 0.5)
    return weight.reshape(side, side, channels, -1).transpose(2, 0, 1, 3).reshape(weight.shape)


def local_sgd(model, features, labels, part, workload):
    """Trains on the examples of one client; every epoch is another order."""
    optimizer = torch.optim.SGD(model.parameters(), workload.learning_rate)
    batches = []
    while len(batches) < workload.steps:
        batches += part[torch.randperm(len(part))].split(workload.batch_size)
    for rows in batches[: workload.steps]:
        optimizer.zero_grad()
        functional.cross_entropy(model(features[rows]), labels[rows]).backward()
        optimizer.step()


def images(pixels):
    """Scaled images with the channels first."""
    scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
    return scaled.contiguous().to(DEVICE)


def integers(values):
    return torch.from_numpy(values).long().to(DEVICE)


def wait():
    """Until an accelerator has finished."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def accuracy(model, features, labels):
    """Fraction of the images that are classified correctly."""
    model.eval()
    correct = sum(
        (model(x).argmax(1) == y).sum().item()
        for x, y in zip(features.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True)
    )
    model.train()
    return correct / len(labels)
