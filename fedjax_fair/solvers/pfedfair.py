"""pFedFair: personalized models that are fair to sensitive groups, near an accurate global one."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedjax_fair.roles import Client, LocalResult, Number, Variables, setting
from fedjax_fair.solvers.group_penalty import PenaltyCriterion, penalized_loss
from fedjax_fair.solvers.sgd import BatchGradient
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["PFedFair"]


class PFedFair(WrappedSGD):
    r"""SGD on the client's loss and on the Moreau envelope of its loss with a penalty on groups.

    With the penalty :math:`\rho_i` of `GroupPenalty`, the clients minimize the mean of

    .. math:: L_i(w) + \lambda \min_v \Big\{ L_i(v) + \eta \rho_i(v) + \frac{\gamma}{2}
        \lVert v - w \rVert^2 \Big\}.

    A local step takes a minibatch, some inner steps on the objective of :math:`v` from :math:`v =
    w`, and then :math:`w \leftarrow w - \alpha (\nabla L_i(w) + \lambda \gamma (w - v))`. Clients
    send :math:`w`, which stays accurate; the personalized model of a client is the last :math:`v`
    of the same local training from the current global model. It is discarded after the evaluation.

    The paper estimates the demographic parity of scores by kernel densities; the penalty here is
    that of this package. Its text was not available: the objective is that of notes on it, whose
    printed minimizer lacks the penalty, in contradiction to the definition.

    Args:
        solver: SGD of :math:`w`, with :math:`\alpha` as ``learning_rate``.
        strength: :math:`\eta` >= 0, in nats.
        envelope_weight: :math:`\lambda` >= 0; 0 is SGD.
        personal_prox: :math:`\gamma` >= 0; the inner steps are stable for step sizes below
            :math:`2 / \gamma`.
        inner_learning_rate: Step size of the inner steps, >= 0.
        inner_steps: Inner steps of each local step.
        criterion: As of `GroupPenalty`.
        sensitive_feature: As of `GroupPenalty`.

    Raises:
        ValueError: If the solver is no `SGD`, a setting is invalid, or (when traced) the data has
            no sensitive features, none of this name, or more than one label per example.

    References:
        Lei, Gong, Dou, Farnia, *pFedFair: Towards Optimal Group Fairness-Accuracy Trade-off in
        Heterogeneous Federated Learning*, 2025, https://arxiv.org/abs/2503.14925

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> pfedfair = PFedFair(SGD(0.1, batch_size=32, epochs=1), strength=0.9)
    """

    strength: Number = setting(checks.non_negative, default=1.0)
    envelope_weight: Number = setting(checks.non_negative, default=1.0)
    personal_prox: Number = setting(checks.non_negative, default=1.0)
    inner_learning_rate: Number = setting(checks.non_negative, default=0.1)
    inner_steps: int = setting(checks.positive_int, default=5)
    criterion: PenaltyCriterion = "demographic_parity"
    sensitive_feature: str | None = None

    def solve(self, key, variables, client):
        return self._train(key, variables, client)[0]

    def num_examples(self, sizes, max_steps=None):
        return (self.inner_steps + 1) * self.solver.num_examples(sizes, max_steps)

    def personalize(self, key, variables, client):
        result, fair = self._train(key, variables, client)
        return Variables(fair, jax.tree.map(jnp.add, variables.state, result.update.state))

    def _train(self, key, variables: Variables, client: Client) -> tuple[LocalResult, PyTree]:
        """Returns the result of the local training, and the last personalized parameters."""
        fair_loss = penalized_loss(self, client)

        def batch_gradient(gradient_fn, variables, memory):
            return self.combined_gradient(
                gradient_fn,
                lambda variables: gradient_fn(variables, batch_loss=fair_loss),
                variables,
            )

        result = self.solver.solve(
            key, variables, client, batch_gradient=batch_gradient, memory=variables.params
        )
        return result._replace(state=client.state), result.state

    def combined_gradient(
        self,
        gradient_fn: Callable[[Variables], BatchGradient],
        fair_gradient_fn: Callable[[Variables], BatchGradient],
        variables: Variables,
    ) -> tuple[BatchGradient, PyTree]:
        """Returns the gradient of the objective at a model, and the personalized parameters.

        Args:
            gradient_fn: Gradient of the loss of a minibatch.
            fair_gradient_fn: The same with the penalty.
            variables: The model.
        """

        def step(fair, _):
            found = fair_gradient_fn(Variables(fair, variables.state))
            fair = jax.tree.map(
                lambda v, g, w: v - self.inner_learning_rate * (g + self.personal_prox * (v - w)),
                *(fair, found.gradient, variables.params),
            )
            return fair, None

        fair, _ = jax.lax.scan(step, variables.params, length=self.inner_steps)
        found = gradient_fn(variables)
        scale = self.envelope_weight * self.personal_prox
        gradient = jax.tree.map(
            lambda g, w, v: g + scale * (w - v), found.gradient, variables.params, fair
        )
        return found._replace(gradient=gradient), fair
