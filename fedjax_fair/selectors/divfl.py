"""Diverse client selection (DivFL): a cohort whose gradients represent those of all clients."""

from __future__ import annotations

from fedjax_fair.selectors.representative_selector import RepresentativeSelector

__all__ = ["DivFL"]


class DivFL(RepresentativeSelector):
    r"""Selects the clients whose gradients best represent those of all clients.

    It maximizes :math:`G(S) = \bar G(\emptyset) - \bar G(S)` over cohorts, where

    .. math:: \bar G(S) = \sum_i \min_{j \in S} \lVert \nabla f_i - \nabla f_j \rVert

    bounds the distance of the cohort's gradients from the sum of all gradients if each client is
    represented by its nearest participant. The value at the empty set assumes a phantom participant
    at the distance of the farthest client, which makes :math:`G` a facility-location function.

    The weights of the cohort are the fractions of clients that each participant represents.
    ``Mean("selector")`` uses them; the averages of the papers do not.

    Info: ``objective``; ``representation``, its part :math:`G`; ``approximation_error``, the
    distance between the mean gradients of the cohort and of all clients (Assumption 3 of Castillo
    et al.); ``representation_error``, the same with the weights of the cohort;
    ``representation_bound``, :math:`\bar G(S) / N`, an upper bound of it; ``num_nonfinite``, the
    number of clients with a non-finite loss or gradient, and ``first_nonfinite_client``, their
    lowest id or -1. Such clients are not represented, and are selected only after all others.

    Differential privacy does not cover this selector, because it depends on gradients.

    With a ``pool``, memory and time grow linearly with the number of clients, not quadratically.
    Each round samples that many clients uniformly without replacement and selects among them; all
    clients are still represented. The result is approximate: the best clients may not be in the
    pool, and distances below 3e-4 of the norms of the gradients are not resolved. The phantom is
    as far as the farthest client of the pool, which lowers all objectives equally.

    With ``num_reference_clients``, the cost does not depend on the number of clients. Each round
    samples that many of the :math:`M` clients outside of the pool, uniformly without replacement,
    to represent all :math:`M`. With distances :math:`d_i` from the nearest participant, or from the
    phantom if it is nearer, the gain of candidate :math:`e`,

    .. math:: \sum_{i \in \text{pool}} c_i + \frac{M}{n} \sum_{i \in \text{references}} c_i,
        \quad c_i = \max(0, d_i - D_{ie}),

    is unbiased. Its standard error is :math:`M \sqrt{(1 - n / M) \, s^2 / n}` for :math:`n`
    reference clients, with the variance :math:`s^2` of :math:`c_i` among the :math:`M` clients
    (denominator :math:`M - 1`). Both are divided by the number of clients where :math:`G` is. Only
    the pool and the reference clients are read; with fresh gradients, only theirs are computed.
    Weights and info are then estimates from this sample, and ``num_nonfinite`` counts clients that
    are read. ``standard_error`` is that of ``representation_bound`` for a given cohort. Because the
    cohort is selected on the same sample, ``representation`` is slightly too high on average and
    ``representation_bound`` too low (see ``docs/performance.md``).

    Args:
        cohort_size: Clients per round.
        candidates: Clients sampled at each step of stochastic greedy, of which the best is taken;
            ``"all"`` considers all (greedy). ``"auto"`` is the cohort size, or with a ``pool`` all.
        pool: Clients sampled per round from which the cohort is selected; None selects from all
            clients, with a matrix of all distances.
        num_reference_clients: Clients sampled per round outside of the ``pool``, which is required,
            to represent all clients outside; at most all. None represents every client by itself.
        gradients: Gradients of all clients at every model (``"fresh"``), only of the cohort
            (``"stale"``), or a source from `fedjax_fair.selectors.gradients`.
        scale: ``"mean"`` divides :math:`G` by the number of clients, ``"sum"`` does not. It matters
            only relative to the terms of `SubTrunc` and `UnionFL`.

    Raises:
        ValueError: If an argument is out of range, or (at ``init``) exceeds the number of clients.

    References:
        Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes, *Diverse Client Selection for Federated
        Learning via Submodular Maximization*, ICLR 2022

    Examples:
        >>> DivFL(cohort_size=10)
        DivFL(cohort_size=10)
    """

    def objective_term(self, memory, context, losses, clients):
        return None
