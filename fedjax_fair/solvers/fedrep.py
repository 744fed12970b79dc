"""FedRep: a personal head that is trained before the shared body."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fedjax_fair.roles import Client, LocalResult, Variables, setting
from fedjax_fair.solvers.ditto import PERSONAL_KEY
from fedjax_fair.solvers.split import HeadSolver, keep_personal
from fedjax_fair.utils import checks

__all__ = ["FedRep"]


class FedRep(HeadSolver):
    r"""SGD on a personal head :math:`h_i`, then on the shared body :math:`\phi`.

    .. math:: h_i \leftarrow h_i - \eta \nabla_h f_i(\phi, h_i; B)
        \quad (\tau_h \text{ epochs}), \qquad
        \phi \leftarrow \phi - \eta \nabla_\phi f_i(\phi, h_i; B)
        \quad (\tau_\phi \text{ epochs})

    Each phase starts with zero momentum and leaves the other part, with its normalization
    statistics, as it is; normalization uses the statistics of minibatches in both. The server
    averages the body. All heads start equal. An instruction ``max_steps`` limits the steps of both
    phases together.

    Args:
        solver: SGD, whose ``epochs`` or ``steps`` are for the head (:math:`\tau_h`); 10 epochs
            in the paper.
        head_layers: Layers of the head, as of `FedPer`.
        body_epochs: :math:`\tau_\phi` >= 0, epochs of the body; 1 or 5 in the paper.

    Raises:
        ValueError: As of `FedPer`, or if ``body_epochs`` is negative.

    References:
        Collins, Hassani, Mokhtari, Shakkottai, *Exploiting Shared Representations for Personalized
        Federated Learning*, 2021, https://arxiv.org/abs/2102.07078

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> fedrep = FedRep(SGD(0.01, batch_size=10, epochs=10, momentum=0.5), body_epochs=1)
    """

    body_epochs: int = setting(checks.non_negative_int, default=1, at_most=checks.MAX_INT)

    @property
    def fixed_num_steps(self):
        return self.solver.fixed_num_steps and self.body_epochs == 0

    def solve(self, key, variables, client):
        is_head = self.mask(variables, client)
        start = self.personalize(key, variables, client)
        head = self.solver.solve(
            key, variables, client, start=start, anchor=start.params, is_trained=is_head
        )
        if self.body_epochs == 0:
            return keep_personal(is_head, start, head)
        trained = jax.tree.map(jnp.add, start, head.update)
        solver = self._body_solver
        is_body = jax.tree.map(lambda head: not head, is_head)
        client, has_steps = _with_remaining_steps(client, head)
        key_body = jax.random.fold_in(key, PERSONAL_KEY)
        body = solver.solve(
            key_body, variables, client, start=trained, anchor=trained.params, is_trained=is_body
        )
        both = _join(is_head, head, body)
        result = jax.tree.map(partial(jnp.where, has_steps), both, head)
        return keep_personal(is_head, start, result)

    def num_examples(self, sizes, max_steps=None):
        head = self.solver.num_examples(sizes, max_steps)
        if self.body_epochs == 0:
            return head
        if max_steps is not None:
            max_steps = max_steps - self.solver.num_steps(sizes, max_steps)
        return head + self._body_solver.num_examples(sizes, max_steps)

    @property
    def _body_solver(self):
        return self.solver.replace(steps=None, epochs=self.body_epochs)


def _with_remaining_steps(client: Client, head: LocalResult) -> tuple[Client, Bool[Array, ""]]:
    """Returns the client with the steps that are left for the body, and whether there are any."""
    if "max_steps" not in client.instructions:
        return client, jnp.array(True)
    left = client.instructions["max_steps"] - head.steps
    instructions = client.instructions | {"max_steps": jnp.maximum(left, 1)}  # SGD takes one.
    return client._replace(instructions=instructions), left > 0


def _join(is_head: Variables, head: LocalResult, body: LocalResult) -> LocalResult:
    """Returns the result of both phases."""
    update = jax.tree.map(
        lambda is_head, *updates: updates[0 if is_head else 1], is_head, head.update, body.update
    )
    steps = head.steps + body.steps
    total = head.loss * head.steps.astype(jnp.float32) + body.loss * body.steps.astype(jnp.float32)
    return body._replace(update=update, loss=total / steps.astype(jnp.float32), steps=steps)
