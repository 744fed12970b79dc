"""Examples that solvers process, against the gradients that they compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_conformance import AGGREGATORS, FEDERATION, PAIRS, SOLVERS, model_of
from test_sgd import client_of

from fedjax_fair import selectors, solvers
from fedjax_fair.models.wrappers import Wrapper
from fedjax_fair.rounds.round import Round, run

SIZES = FEDERATION.train.sizes
counts: list[int] = []


class Counted(Wrapper):
    """A model that counts the examples whose gradients are computed."""

    def apply(self, params, state, x, *, train, key, example_mask=None):
        settings = {"train": train, "key": key, "example_mask": example_mask}
        outputs, state = super().apply(params, state, x, **settings)
        return count_gradients(outputs), state


@jax.custom_vjp
def count_gradients(outputs):
    return outputs


def count(_, slopes):
    # Slopes of padding are zero.
    number = jnp.sum(jnp.any(slopes != 0, axis=-1))
    jax.debug.callback(lambda number: counts.append(int(number)), number)
    return (slopes,)


count_gradients.defvjp(lambda outputs: (outputs, None), count)


@pytest.mark.parametrize("name", SOLVERS)
def test_examples_are_those_whose_gradients_are_computed(name):
    pair = PAIRS.get(name, "mean")
    solver = SOLVERS[name]()
    model = Counted(model_of((name, pair)))
    round = Round(model, selectors.Full(), solver, AGGREGATORS[pair](), clients_per_batch=1)
    jax.effects_barrier()
    counts.clear()
    train = jax.jit(lambda key: run(round, round.init(key, FEDERATION), FEDERATION, 1))
    jax.block_until_ready(train(jax.random.key(0))[1].loss)
    jax.effects_barrier()
    assert sum(counts) == solver.num_examples(jnp.asarray(SIZES)).sum()


@pytest.mark.parametrize("max_steps", [None, 1, 3, 100])
@pytest.mark.parametrize(
    "settings", [{"steps": 5}, {"epochs": 2}, {"steps": 5, "replacement": True}]
)
def test_steps_are_those_that_local_training_takes(settings, max_steps, federation, model):
    sgd = solvers.SGD(0.1, 1, **settings)
    instructions = {} if max_steps is None else {"max_steps": jnp.int32(max_steps)}
    key, sizes = jax.random.key(0), jnp.asarray(federation.train.sizes)
    variables = model.init(key, federation.train.features[:1])
    for solver in (sgd, solvers.FedRep(sgd, ("bias",), body_epochs=2)):

        @jax.jit
        def steps_of(index, instructions, solver=solver):
            client = client_of(federation, model, index, instructions=instructions)
            client = client._replace(state=solver.init(key, variables, client))
            return solver.solve(key, variables, client).steps

        examples = solver.num_examples(sizes, **instructions)
        for client in (1, 3):  # Of eight examples, and of one. Each minibatch has one.
            assert steps_of(client, instructions) == examples[client]


def test_a_smaller_last_minibatch_counts_as_what_it_holds():
    sgd = solvers.SGD(0.1, batch_size=4, steps=7)
    sizes = np.array([3, 4, 9])
    batches = [[3], [4], [4, 4, 1]]
    expected = [sum((7 * each)[:7]) for each in batches]
    assert sgd.num_examples(jnp.asarray(sizes)).tolist() == expected
