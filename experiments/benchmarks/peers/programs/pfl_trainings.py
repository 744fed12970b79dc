"""FedAvg and FedProx with pfl's algorithms on PyTorch; run by its own Python.

pfl takes the examples of a user in their order. Shuffled ones are a data set of its interface.
"""

import types

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional
from trainings import minibatches, serve, split_by_client
from trainings_torch import layers, network, tensors

NEVER = 10**9


class Shuffled(Dataset):
    """Examples of a user that are shuffled for each epoch of local training."""

    def __init__(self, x, y, rng, settings):
        super().__init__((x, y))
        self.rng, self.settings = rng, settings

    def iter(self, batch_size):
        """Yields the minibatches of all local steps."""
        for rows in minibatches(self.rng, len(self), self.settings):
            yield [values[rows] for values in self.raw_data]


def loss(self, x, y, eval=False):
    return functional.cross_entropy(self(x), y)


def metrics(self, x, y, eval=True):
    return {"loss": Weighted(0.0, len(y))}


def train(arrays, settings):
    module, rng = network(arrays), np.random.default_rng(settings.seed)
    module.loss = types.MethodType(loss, module)
    module.metrics = types.MethodType(metrics, module)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    users = [Shuffled(*tensors(x, y), rng, settings) for x, y in split_by_client(arrays)]
    chosen = iter(arrays["cohorts"].ravel().tolist())
    rounds, cohort_size = arrays["cohorts"].shape
    parameters = {
        "central_num_iterations": rounds,
        "evaluation_frequency": NEVER,
        "train_cohort_size": cohort_size,
        "val_cohort_size": None,
    }
    algorithm = FedProx() if settings.prox else FederatedAveraging()
    algorithm.run(
        algorithm_params=FedProxParams(**parameters, mu=settings.prox)
        if settings.prox
        else NNAlgorithmParams(**parameters),
        backend=SimulatedBackend(
            FederatedDataset(users.__getitem__, lambda: next(chosen)),
            None,
            postprocessors=[WeightByDatapoints()],
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=settings.learning_rate,
            local_batch_size=settings.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=settings.batch_size),
        send_metrics_to_platform=False,
    )
    return layers(module.state_dict())


serve(train)
