"""Context of the roles of the server, with functions that measure clients."""

from __future__ import annotations

from functools import partial

from jaxtyping import Array, Int

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.evaluation.client_gradients import client_gradients
from fedjax_fair.evaluation.clients import client_means, client_performance
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import Context, Model, Variables

__all__ = ["make_context"]


def make_context(
    model: Model, round: Int[Array, ""], variables: Variables, data: FederatedData
) -> Context:
    """Makes the context of selectors and aggregators at the start of a round."""
    performance = partial(client_performance, model, examples=data.train)
    return Context(
        round=round,
        variables=variables,
        model=model,
        examples=data.train,
        groups=data.groups,
        losses=lambda variables, clients=None: performance(variables, clients=clients).loss,
        accuracies=lambda variables, clients=None: performance(variables, clients=clients).accuracy,
        gradients=lambda variables, clients=None, project=ravel: client_gradients(
            model, variables, data.train, clients, project
        ),
        client_means=lambda metric_fn, clients, updates=None: client_means(
            metric_fn, variables, data.train, clients, updates
        ),
        weighted_sum=partial(collectives.weighted_sum, data.train),
        map_clients=partial(collectives.map_clients, data.train),
        sensitive_names=data.sensitive_names,
        validation=data.validation,
    )
