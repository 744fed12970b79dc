"""The network of a training and its minibatches in PyTorch."""

import numpy as np
import torch
from torch import nn
from trainings import layers_of

torch.set_num_threads(1)  # The matrices are small.


def network(arrays):
    """Returns the multilayer perceptron with the layers of the file."""
    modules = []
    for layer in layers_of(arrays):
        linear = nn.Linear(*layer["kernel"].shape)
        linear.weight.data.copy_(torch.from_numpy(layer["kernel"].T.copy()))
        linear.bias.data.copy_(torch.from_numpy(layer["bias"]))
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def layers(state):
    """Returns the layers of parameters by name, ``0.weight``, ``0.bias``, ``2.weight``, ..."""
    values = [np.asarray(value) for value in state.values()]
    pairs = zip(values[::2], values[1::2], strict=True)
    return [{"kernel": weight.T, "bias": bias} for weight, bias in pairs]


def tensors(x, y):
    return torch.from_numpy(x), torch.from_numpy(y)
