"""Base class of solvers that train with SGD."""

from __future__ import annotations

from typing import ClassVar

from fedjax_fair.roles import Solver, setting
from fedjax_fair.solvers.sgd import SGD
from fedjax_fair.utils import checks

__all__ = ["WrappedSGD"]


class WrappedSGD(Solver):
    """Base class of solvers that change or repeat the training of `SGD`.

    Attributes:
        accepts_optimizer: Whether ``SGD.optimizer`` may be set. Solvers that compute with the
            length of SGD's steps refuse it.
    """

    accepts_optimizer: ClassVar[bool] = True

    solver: SGD = setting(checks.instance, SGD, "solvers.SGD(0.1, batch_size=10, epochs=1)")

    def __post_init__(self):
        if self.solver.optimizer is not None and not self.accepts_optimizer:
            raise ValueError(
                f"solver={self.solver!r}: expected SGD without an optimizer; remove optimizer."
            )

    @property
    def fixed_num_steps(self):
        return self.solver.fixed_num_steps

    def solve(self, key, variables, client):
        return self.solver.solve(key, variables, client)

    def num_examples(self, sizes, max_steps=None):
        """Returns the examples of whose losses the solver computes gradients, those of SGD."""
        return self.solver.num_examples(sizes, max_steps)
