"""Diverse client selection: a cohort whose gradients represent those of all clients."""

from __future__ import annotations

from fedjax_fair.selectors.representative_selector import RepresentativeSelector

__all__ = ["DivFL"]


class DivFL(RepresentativeSelector):
    r"""Selects the clients whose gradients represent those of all clients best.

    It maximizes :math:`G(S) = \bar G(\emptyset) - \bar G(S)` over cohorts, where

    .. math:: \bar G(S) = \sum_i \min_{j \in S} \lVert \nabla f_i - \nabla f_j \rVert

    bounds how far the cohort's gradients are from the sum of all gradients, each client being
    represented by the participant nearest to it. The sum at the empty set takes a phantom element at the
    distance of the farthest client, which makes :math:`G` a facility-location function.

    The weights of the cohort are the shares of clients that each participant represents.
    ``Mean("selector")`` uses them, the papers' averages do not.

    Info: ``objective``; ``representation``, the part :math:`G` of it; ``approximation_error``, the
    distance of the cohort's mean gradient from that of all clients (Assumption 3 of Castillo et
    al.); ``representation_error``, the same where each participant weighs by the clients it represents,
    and ``representation_bound``, :math:`\bar G(S) / N`, which is at least as large;
    ``num_nonfinite``, the number of clients with a loss or a gradient that is not finite, and
    ``first_nonfinite_client``, the lowest of their ids or -1. These clients are chosen only when all
    finite clients are, and need not be represented.

    No guarantee of differential privacy covers this selector, because its choice depends on the
    clients' gradients.

    With a ``pool`` no matrix of all distances is made, so that memory and time grow with the number
    of clients rather than with its square. Each round draws that many clients, uniformly and
    without replacement, and chooses among them alone; all clients are still represented. The choice
    is then approximate for two reasons. The best clients may not be in the pool. Distances come
    from products of centered gradients, so that distances below 3e-4 of the gradients' lengths are
    not resolved. The phantom is as far as the farthest client of the pool, which lowers the
    objective of all cohorts equally.

    With ``num_reference_clients`` a choice costs the same among any number of clients. Each round draws that many
    of the :math:`M` clients outside of the pool, uniformly and without replacement, to stand for
    all :math:`M`; the pool stands for itself. With distances :math:`d_i` from the nearest participant,
    or from the phantom if it is nearer, the gain of candidate :math:`e`,

    .. math:: \sum_{i \in \text{pool}} c_i + \frac{M}{n} \sum_{i \in \text{references}} c_i,
        \quad c_i = \max(0, d_i - D_{ie}),

    is unbiased, and its standard error is :math:`M \sqrt{(1 - n / M) \, s^2 / n}` for :math:`n`
    reference clients, with the variance :math:`s^2` of :math:`c_i` among the :math:`M` clients (denominator
    :math:`M - 1`). Both are divided by the number of clients where :math:`G` is. Only the pool and
    the reference clients are read: with fresh gradients, only these are computed. The weights of the cohort
    and the info of a round then are estimates from the same sample, and ``num_nonfinite`` counts
    clients that are read. The info also has ``standard_error``, the standard error of
    ``representation_bound`` for a given cohort. The cohort is chosen for these reference clients: on average,
    ``representation`` is a little too high and ``representation_bound`` too low
    (``docs/performance.md`` reports by how much).

    Args:
        cohort_size: Clients per round.
        candidates: Clients drawn again at each step of stochastic greedy, of which it takes the
            best; ``"all"`` considers all of them (greedy). ``"auto"`` is the cohort size, or all of
            a ``pool``, where that is the better use.
        pool: Clients drawn in each round, among which the cohort is chosen; None chooses among
            all clients, from a matrix of all distances.
        num_reference_clients: Clients outside of the pool that are drawn in each round to stand for all clients
            outside of it; at most all clients. Where fewer are outside, all of them are taken. None
            represents every client by itself. Needs a ``pool``.
        gradients: Gradients of all clients at every model (``"fresh"``), only of the cohort
            (``"stale"``), or another source of `fedjax_fair.selectors.gradients`.
        scale: ``"mean"`` divides :math:`G` by the number of clients, ``"sum"`` does not. Alone it
            changes no choice; the terms of `SubTrunc` and `UnionFL` are weighed against it.

    Raises:
        ValueError: If a setting is out of range, or (at ``init``) larger than the number of
            clients.

    References:
        Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes, *Diverse Client Selection for Federated
        Learning via Submodular Maximization*, ICLR 2022

    Examples:
        >>> DivFL(cohort_size=10)
        DivFL(cohort_size=10)
    """

    def objective_term(self, memory, context, losses, clients):
        return None
