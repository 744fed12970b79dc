r"""Guarantees of the continuous algorithms, from quantities that a run measured.

*r* is the rank, :math:`\eta` the step, *T* the number of rounds, :math:`m_F = \max_e F(\{e\})`, and
:math:`\Gamma` the sum of the spreads of all rounds. Errors of about *r* times the mean spread often
exceed the optimum: the bound is then vacuous.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair.submodular.federated.importance_factors import importance_factors
from fedjax_fair.submodular.federated.problem import Problem
from fedjax_fair.submodular.federated.trajectory import ContinuousRun
from fedjax_fair.utils import checks

__all__ = [
    "Guarantee",
    "largest_single",
    "report",
    "theorem_3_2",
    "theorem_3_5",
    "theorem_4_3",
    "theorem_5_1",
]


Number = Float[Array, "..."] | float


class Guarantee(NamedTuple):
    """Bound ``factor * OPT <= value + error``.

    Attributes:
        factor: Multiplicative factor of the optimum.
        error: Additive error.
        probability: Probability with which the bound holds.
    """

    factor: Number
    error: Number
    probability: float

    def slack(self, value: Number, optimum: Number) -> Number:
        """Computes the value minus its lower bound; at least 0 if the theorem holds."""
        return value + self.error - self.factor * optimum


def largest_single(problem: Problem, client_weights: ArrayLike | None = None) -> Array:
    """Computes ``m_F``, the largest value of a single item.

    Examples:
        >>> from fedjax_fair.submodular import federated
        >>> problem = federated.facility_location([[3.0, 1.0], [0.0, 2.0]])
        >>> float(largest_single(problem))
        1.5
    """
    return jnp.max(importance_factors(problem, client_weights).singles)


def theorem_3_2(run: ContinuousRun, largest: Number) -> Guarantee:
    r"""Returns the bound of ``fedcg`` with all clients.

    :math:`(1 - (1 - \eta)^T) OPT \leq F(x_T) + \eta r \Gamma + T \eta^2 r^2 m_F / 2`, also with the
    value of any base as *OPT*.

    Args:
        run: A run.
        largest: ``largest_single`` of the problem.
    """
    rounds = run.spread.shape[0]
    curvature = rounds * run.step**2 * run.rank**2 * largest / 2
    error = run.step * run.rank * jnp.sum(run.spread) + curvature
    return Guarantee(1 - (1 - run.step) ** rounds, error, 1.0)


def theorem_3_5(
    run: ContinuousRun, largest: Number, *, cohort_size: int, delta: float
) -> Guarantee:
    r"""Returns the bound of ``fedcg`` with *K* clients per round.

    It adds :math:`6\eta r\Gamma\sqrt{T/(K\delta)}` to the error of Theorem 3.2.

    Args:
        run: A run.
        largest: ``largest_single`` of the problem.
        cohort_size: Clients per round, *K*.
        delta: Failure probability, in (0, 1).
    """
    full, root = theorem_3_2(run, largest), _root(run, cohort_size, delta)
    error = full.error + 6 * run.step * run.rank * jnp.sum(run.spread) * root
    return Guarantee(full.factor, error, 1 - delta)


def theorem_4_3(
    run: ContinuousRun, largest: Number, *, cohort_size: int, delta: float, sigma: Number
) -> Guarantee:
    r"""Returns the bound of ``fedcg_plus``, as in the paper's appendix.

    With :math:`B = 2 R \sigma r + 2 r^{1.5} \sum_t L_t` over *R* rounds, it adds :math:`\eta B +
    \eta \sqrt{R/(K\delta)} (6 r \Gamma + B)` to the error of Theorem 3.2.

    Args:
        run: A run. The error is NaN if ``run.lipschitz`` is.
        largest: ``largest_single`` of the problem.
        cohort_size: Clients per round, *K*.
        delta: Failure probability, in (0, 1).
        sigma: Largest error of an element of a gradient, in units of value; 0 if exact.
    """
    checks.non_negative("sigma", sigma)
    full, root = theorem_3_2(run, largest), _root(run, cohort_size, delta)
    rounds, rank = run.spread.shape[0], run.rank
    local = 2 * rounds * sigma * rank + 2 * rank**1.5 * jnp.sum(run.lipschitz)
    sampling = root * (6 * rank * jnp.sum(run.spread) + local)
    return Guarantee(full.factor, full.error + run.step * (local + sampling), 1 - delta)


def theorem_5_1(epsilon: float, *, size: int, cardinality: bool) -> Guarantee:
    r"""Returns the bound of ``discrete_greedy(..., epsilon=epsilon, resample=False)``.

    With probability ``1 - 1 / size`` the sample of clients is within a factor of :math:`1 \pm
    \varepsilon` of *F* on all sets of at most *r* items. Greedy with factor *c* then reaches
    :math:`c\,(1 - \varepsilon) / (1 + \varepsilon)` of the optimum; the paper states :math:`c -
    \varepsilon`.

    Args:
        epsilon: In (0, 1).
        size: Number of items.
        cardinality: Whether the matroid is uniform.

    Examples:
        >>> round(theorem_5_1(0.1, size=10, cardinality=True).factor, 3)
        0.517
    """
    checks.unit_interval("epsilon", epsilon)
    checks.positive_int("size", size)
    greedy_factor = 1 - float(np.exp(-1)) if cardinality else 0.5
    return Guarantee(greedy_factor * (1 - epsilon) / (1 + epsilon), 0.0, 1 - 1 / size)


def report(
    run: ContinuousRun, guarantee: Guarantee, *, value: Number, greedy: Number
) -> dict[str, float]:
    """Summarizes a run and its guarantee.

    Args:
        run: A run.
        guarantee: Bound of a theorem for the run.
        value: Value of the rounded set.
        greedy: Value of ``centralized_greedy``.

    Returns:
        ``extension`` at the last point, ``value``, ``greedy``, ``optimum_upper_bound``, ``ratio``
        of value and greedy, ``guaranteed`` extension and ``slack``.
    """
    extension, greedy = float(run.extension[-1]), float(greedy)
    guaranteed = float(guarantee.factor) * greedy - float(guarantee.error)
    return {
        "extension": extension,
        "value": float(value),
        "greedy": greedy,
        "optimum_upper_bound": float(jnp.min(run.extension[:-1] + run.max_base_gain)),
        "ratio": float(value) / greedy,
        "guaranteed": guaranteed,
        "slack": extension - guaranteed,
    }


def _root(run: ContinuousRun, cohort_size: int, delta: float) -> float:
    checks.positive_int("cohort_size", cohort_size)
    checks.positive("delta", delta)
    checks.unit_interval("delta", delta)
    return float(np.sqrt(run.spread.shape[0] / (cohort_size * delta)))
