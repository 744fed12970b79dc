"""FedAvg, and a personalized model that is fine-tuned from the global one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fedjax_fair.roles import Client, Variables, setting
from fedjax_fair.solvers.sgd import SGD
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["FineTuned", "fine_tune"]


class FineTuned(WrappedSGD):
    """Local SGD, whose global model every client fine-tunes at every evaluation.

    The personalized model of a client is the global one after some more steps on the client's
    training examples, also for clients that were never drawn. It is discarded after the evaluation:
    the global model is the same as in FedAvg, and clients keep no state.

    Args:
        solver: SGD of the local training, and with other numbers of steps of fine-tuning.
        fine_tuning_steps: Steps of fine-tuning; 0 is the global model.

    Raises:
        ValueError: If the solver is no `SGD`, or ``fine_tuning_steps`` is negative.

    Examples:
        >>> fine_tuned = FineTuned(SGD(0.1, batch_size=10, epochs=1), fine_tuning_steps=20)
    """

    fine_tuning_steps: int = setting(checks.non_negative_int, default=10)

    def personalize(self, key, variables, client):
        return fine_tune(self.solver, self.fine_tuning_steps, key, variables, client)


def fine_tune(
    solver: SGD, steps: int, key: Key[Array, ""], variables: Variables, client: Client
) -> Variables:
    """Returns the variables after some steps of SGD on the client's training examples."""
    if steps == 0:
        return variables
    update = solver.replace(steps=steps, epochs=None).solve(key, variables, client).update
    tuned = jax.tree.map(jnp.add, variables, update)
    # A client without training examples has no gradients.
    return jax.tree.map(lambda new, old: jnp.where(client.size > 0, new, old), tuned, variables)
