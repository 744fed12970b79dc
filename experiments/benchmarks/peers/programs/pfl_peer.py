"""Federated averaging with pfl on PyTorch; run by its own Python.

pfl takes the images of a user in their order, at most one pass if steps are counted: a user's
images are repeated as often as the steps need.
"""

import types

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional
from torch_networks import accuracy, images, integers, network, wait
from workloads import TEST_BATCH, serve

NEVER = 10**9


def loss(self, x, y, eval=False):
    self.train(not eval)
    return functional.cross_entropy(self(x), y)


@torch.no_grad()
def metrics(self, x, y, eval=True):
    self.train(not eval)
    correct = (self(x).argmax(1) == y).sum().item()
    return {"accuracy": Weighted(correct, len(y))}


def make(workload, path):
    arrays = dict(np.load(path))
    features, labels = images(arrays["train_x"]), integers(arrays["train_y"])
    test = images(arrays["test_x"]), integers(arrays["test_y"])
    np.random.seed(0)  # noqa: NPY002 - what pfl draws from
    torch.manual_seed(0)
    module = network(workload.network, arrays)
    module.loss = types.MethodType(loss, module)
    module.metrics = types.MethodType(metrics, module)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    taken = workload.steps * workload.batch_size
    users = {
        number: (features[rows], labels[rows])
        for number, part in enumerate(arrays["parts"])
        for rows in [np.resize(part, taken)]
    }
    data = FederatedDataset.from_slices(users, get_user_sampler("random", range(len(users))))
    backend = SimulatedBackend(data, None, postprocessors=[WeightByUser()])
    evaluating = NNEvalHyperParams(local_batch_size=TEST_BATCH)
    # The callback evaluates whenever a run starts, which is once a repetition.
    evaluation = CentralEvaluationCallback(Dataset(list(test)), evaluating, frequency=NEVER)
    algorithm, done = FederatedAveraging(), 0

    def train():
        nonlocal done
        done += workload.rounds
        algorithm.run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=done,
                evaluation_frequency=NEVER,
                train_cohort_size=workload.cohort_size,
                val_cohort_size=None,
            ),
            backend=backend,
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1,
                local_learning_rate=workload.learning_rate,
                local_batch_size=workload.batch_size,
            ),
            model_eval_params=evaluating,
            callbacks=[evaluation] if workload.evaluation else [],
            send_metrics_to_platform=False,
        )
        wait()

    return train, lambda: accuracy(module, *test)


serve(make)
