"""Per-FedAvg: a global model that is good after a step of SGD on a client's examples."""

from __future__ import annotations

import jax

from fedjax_fair.roles import Number, Variables, setting
from fedjax_fair.solvers.ditto import PERSONAL_KEY
from fedjax_fair.solvers.fine_tuned import fine_tune
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["PerFedAvg"]


class PerFedAvg(WrappedSGD):
    r"""First-order model-agnostic meta-learning in local training.

    A local step takes the gradient at the model after a step on another, independent minibatch,

    .. math:: \tilde{w} = w - \alpha \nabla f_i(w; B), \qquad
        w \leftarrow w - \eta \nabla f_i(\tilde{w}; B'),

    without second derivatives (FO). Local steps are counted as steps of :math:`w`, each of two
    minibatches. The personalized model of a client is the global one after steps with the rate
    :math:`\alpha` on its training examples. It is discarded after the evaluation.

    Args:
        solver: SGD, with the outer step size :math:`\eta` as ``learning_rate``.
        inner_learning_rate: :math:`\alpha` >= 0; 0 is FedAvg.
        fine_tuning_steps: Steps of the personalized model; 0 is the global model.

    Raises:
        ValueError: If the solver is no `SGD`, or a setting is negative.

    References:
        Fallah, Mokhtari, Ozdaglar, *Personalized Federated Learning: A Meta-Learning Approach*,
        2020, https://arxiv.org/abs/2002.07948

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> per_fedavg = PerFedAvg(SGD(0.1, batch_size=10, epochs=1), inner_learning_rate=0.1)
    """

    inner_learning_rate: Number = setting(checks.non_negative, default=0.01)
    fine_tuning_steps: int = setting(checks.non_negative_int, default=1)

    def solve(self, key, variables, client):
        key_inner = jax.random.fold_in(key, PERSONAL_KEY)

        def batch_gradient(gradient_fn, variables, memory):
            inner = gradient_fn(variables, key_order=key_inner)
            adapted = jax.tree.map(
                lambda w, g: w - self.inner_learning_rate * g, variables.params, inner.gradient
            )
            return gradient_fn(Variables(adapted, variables.state)), memory

        return self.solver.solve(key, variables, client, batch_gradient=batch_gradient)

    def num_examples(self, sizes, max_steps=None):
        return 2 * self.solver.num_examples(sizes, max_steps)

    def personalize(self, key, variables, client):
        inner = self.solver.replace(learning_rate=self.inner_learning_rate)
        return fine_tune(inner, self.fine_tuning_steps, key, variables, client)
