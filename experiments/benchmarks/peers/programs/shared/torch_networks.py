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


class CharacterLSTM(nn.Module):
    """An embedding, LSTM layers and a dense layer, with the parameters of the file."""

    def __init__(self, arrays):
        super().__init__()
        embedding, head = arrays["layer00.embedding"], arrays["layer01.kernel"]
        kernels = [arrays[name] for name in sorted(arrays) if name.endswith("kernel")][1:]
        inputs, width = embedding.shape[1], head.shape[0]
        self.embedding = nn.Embedding.from_pretrained(torch.from_numpy(embedding), freeze=False)
        self.lstm = nn.LSTM(inputs, width, len(kernels), batch_first=True)
        self.head = nn.Linear(*head.shape)
        self.head.weight.data.copy_(torch.from_numpy(head.T.copy()))
        self.head.bias.data.copy_(torch.from_numpy(arrays["layer01.bias"]))
        for number, kernel in enumerate(kernels):
            bias = arrays[f"layer{number + 2:02d}.bias"] + np.repeat([0, 0, 1, 0], width)
            # PyTorch's third gate is the second of the file.
            weight, bias = (
                torch.from_numpy(np.concatenate([v[0], v[2], v[1], v[3]], axis=-1).T.copy())
                for v in (np.split(kernel, 4, axis=1), np.split(np.float32(bias), 4))
            )
            layer = {name: getattr(self.lstm, f"{name}_l{number}") for name in _LSTM_ARRAYS}
            layer["weight_ih"].data.copy_(weight[:, :-width])
            layer["weight_hh"].data.copy_(weight[:, -width:])
            layer["bias_ih"].data.copy_(bias)
            # The sum of two trained biases would take steps of twice the size.
            layer["bias_hh"].data.zero_()
            layer["bias_hh"].requires_grad_(False)

    def forward(self, tokens):
        """Logits of the character after each token, with the classes second."""
        return self.head(self.lstm(self.embedding(tokens))[0]).transpose(1, 2)


_LSTM_ARRAYS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def network(name, arrays):
    """The network with the parameters of the file."""
    if name == "char_lstm":
        return CharacterLSTM(arrays).to(DEVICE)
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


def inputs(features):
    """Scaled images, or tokens."""
    return images(features) if features.ndim == 4 else integers(features)


def integers(values):
    return torch.from_numpy(values).long().to(DEVICE)


def wait():
    """Until an accelerator has finished."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def accuracy(model, features, labels):
    """Fraction of the labels that are predicted correctly."""
    model.eval()
    correct = sum(
        (model(x).argmax(1) == y).sum().item()
        for x, y in zip(features.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True)
    )
    model.train()
    return correct / labels.numel()


@torch.no_grad()
def loss(model, features, labels):
    """Mean cross-entropy of the labels."""
    return functional.cross_entropy(model(features), labels).item()
