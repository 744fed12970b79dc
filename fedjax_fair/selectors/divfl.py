"""Diverse client selection (DivFL): a cohort whose gradients represent those of all clients."""

from __future__ import annotations

from fedjax_fair.selectors.representative_selector import RepresentativeSelector

__all__ = ["DivFL"]


class DivFL(RepresentativeSelector):
    r"""Selects the clients whose gradients best represent those of all clients.

    It maximizes :math:`G(S) = \bar G(\emptyset) - \bar G(S)` over cohorts, where

    .. math:: \bar G(S) = \sum_i \min_{j \in S} \lVert \nabla f_i - \nabla f_j \rVert

    bounds the distance to the sum of all gradients if each client is represented by its nearest
    participant. The empty set has a phantom participant at the distance of the farthest client,
    which makes :math:`G` a facility-location function. The weights of the cohort are the fractions
    of clients that each participant represents, which ``Mean("selector")`` uses, unlike the papers.

    Info: ``objective``; ``representation``, its part :math:`G`; ``approximation_error``, the
    distance between the mean gradients of the cohort and of all clients (Assumption 3 of Castillo
    et al.); ``representation_error``, the same with the weights of the cohort;
    ``representation_bound``, its upper bound :math:`\bar G(S) / N`; ``num_nonfinite``, the number
    of clients with a non-finite loss or gradient, which are selected last and not represented; and
    ``first_nonfinite_client``, their lowest id or -1.

    Differential privacy does not cover a selection by gradients.

    With a ``pool``, memory and time grow linearly with the number of clients, not quadratically.
    Each round selects among clients sampled uniformly without replacement; all clients are still
    represented. Gradients closer than 3e-4 of their norm count as equal. The phantom is
    at the distance of the farthest client of the pool.

    With ``num_reference_clients``, the cost does not depend on the number of clients. Each round
    samples :math:`n` of the :math:`M` clients outside of the pool to represent all :math:`M`. With
    distances :math:`d_i` from the nearest participant or phantom, the gain of candidate :math:`e`,

    .. math:: \sum_{i \in \text{pool}} c_i + \frac{M}{n} \sum_{i \in \text{references}} c_i,
        \quad c_i = \max(0, d_i - D_{ie}),

    is unbiased. Its standard error is :math:`M \sqrt{(1 - n / M) \, s^2 / n}` with the variance
    :math:`s^2` of :math:`c_i` among the :math:`M` clients (denominator :math:`M - 1`). Only
    gradients of pool and sample are read; weights and info are estimates from these. Info
    ``standard_error`` is that of ``representation_bound`` for a given cohort. Because the cohort is
    selected on the same sample, ``representation`` is slightly too high on average, and
    ``representation_bound`` too low (``docs/performance.md``).

    Args:
        cohort_size: Clients per round.
        candidates: Clients sampled at each step of stochastic greedy; ``"all"`` considers all
            (greedy). ``"auto"`` is the cohort size, or with a ``pool`` all.
        pool: Clients sampled per round to select from; None selects from all clients, with a matrix
            of all distances.
        num_reference_clients: Clients sampled per round outside of the ``pool``, which is required;
            None represents every client by itself.
        gradients: Gradients of all clients at every model (``"fresh"``), only of the cohort
            (``"stale"``), or a source from `fedjax_fair.selectors.gradients`.
        scale: ``"mean"`` divides :math:`G` by the number of clients, ``"sum"`` does not, which
            matters for the terms of `SubTrunc` and `UnionFL`.

    Raises:
        ValueError: If an argument is out of range, or (at ``init``) exceeds the number of clients.

    References:
        Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes, *Diverse Client Selection for Federated
        Learning via Submodular Maximization*, 2022, https://openreview.net/forum?id=nwKXyFvaUm

    Examples:
        >>> DivFL(cohort_size=10)
        DivFL(cohort_size=10)
    """

    def objective_term(self, memory, context, losses, clients):
        return None
