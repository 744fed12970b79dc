"""What methods compile together."""

from dataclasses import dataclass

import pytest

from fedjax_fair.app import presets
from fedjax_fair.app.build import build
from fedjax_fair.app.config import Config
from fedjax_fair.base import Metric
from fedjax_fair.training.functions import functions


def evaluations(*rounds, **settings):
    return [
        functions(lambda _, made=made: made, made.model, train_loss=True, **settings).evaluate
        for made in rounds
    ]


@pytest.fixture(scope="module")
def rounds():
    config = presets.resolve(Config(methods=("fedavg", "divfl")))
    other = presets.resolve(Config(methods=("fedavg",)))
    return [*build(config).rounds.values(), *build(other).rounds.values()]


def test_methods_of_an_experiment_share_the_program_that_evaluates(rounds):
    fedavg, divfl, elsewhere = evaluations(*rounds)
    assert fedavg is divfl
    assert elsewhere is not fedavg  # Another model, of which nobody knows that it is the same.


@dataclass
class Worst:
    """A metric that cannot be hashed."""

    def __call__(self, clients):
        return clients.test_accuracy.min()


def test_what_cannot_be_compared_is_not_shared(rounds):
    own = Metric("worst", "the worst accuracy", "1", "clients", "uniform", Worst())
    with pytest.raises(TypeError):
        hash(own)
    one, other = evaluations(rounds[0], rounds[0], own_metrics=[own])
    assert one is not other
    assert evaluations(rounds[0])[0] is not one
