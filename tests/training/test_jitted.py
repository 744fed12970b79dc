"""Functions that methods share."""

import pytest

from fedjax_fair import aggregators, models, selectors, solvers
from fedjax_fair.app.build import build
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.roles import Metric
from fedjax_fair.rounds.round import Round
from fedjax_fair.training.jitted import make_functions
from fedjax_fair.training.stacked import stack_trees


def evaluations(*rounds, **settings):
    return [
        make_functions(stack_trees([made]), train_loss=True, **settings).evaluate for made in rounds
    ]


@pytest.fixture(scope="module")
def rounds():
    config = presets.resolve(Config(methods=("fedavg", "divfl")))
    other = presets.resolve(Config(methods=("fedavg",)))
    return [*build(config).rounds.values(), *build(other).rounds.values()]


def test_methods_of_an_experiment_share_the_evaluation(rounds):
    fedavg, divfl, elsewhere = evaluations(*rounds)
    assert fedavg is divfl
    assert elsewhere is fedavg  # An equal model.


def worst(clients):
    return clients.test_accuracy.min()


def test_functions_of_code_that_may_change_are_not_shared(rounds):
    own = Metric("worst", "the worst accuracy", "1", "clients", "uniform", worst)
    one, other = evaluations(rounds[0], rounds[0], custom_metrics=[own])
    assert one is not other
    assert evaluations(rounds[0])[0] is not one


def test_a_field_of_a_split_is_the_split_of_the_fields():
    methods = [
        Round(
            models.logistic(3),
            selectors.UnionFL(3, mu),
            solvers.SGD(rate, 2, epochs=1, prox=prox),
            aggregators.Mean(),
        )
        for mu, rate, prox in ((1.0, 0.1, 0.0), (1.0, 0.2, 0.5), (2.0, 0.2, 0.0))
    ]
    for chosen in (methods, methods[:1]):
        whole = stack_trees(chosen)
        for field in ("model", "selector", "solver", "aggregator"):
            part, alone = (
                whole.field(field),
                stack_trees([getattr(method, field) for method in chosen]),
            )
            assert part.structure == alone.structure
            assert part.shared == alone.shared
            assert [leaf.tolist() for leaf in part.per_run] == [
                leaf.tolist() for leaf in alone.per_run
            ]
