"""How private a run is, by the accountant of dp-accounting."""

from __future__ import annotations

import math

from fedjax_fair import checks
from fedjax_fair.base import Sampling, Selector
from fedjax_fair.communication.noise import PrivacyMechanism

__all__ = ["epsilon"]


def epsilon(
    privacy: PrivacyMechanism,
    selector: Selector,
    *,
    num_clients: int,
    rounds: int,
    delta: float,
) -> float:
    r"""The :math:`\varepsilon` of a run's models, for clients as a whole.

    Two federations are neighbors if they differ in all data of one client, which is replaced by
    any other; their number is public. The sum of the updates then moves by at most twice the clip,
    hence noise counts for half of its multiplier. Where all clients take part, or in turn, a
    client is in a known number of rounds, and :math:`\varepsilon` is that of Gaussian noise,
    exactly. Where cohorts are drawn uniformly without replacement it is a bound by Rényi
    divergences, amplified by sampling.

    It covers the models (and the clip, if it adapts), for a server that is trusted to add the
    noise, in a run whose cohorts are drawn as the selector says: where clients come and go
    (``faults.Diurnal``, ``faults.Trace``) they are not. It does not cover measurements of clients
    that the simulation records.

    Args:
        privacy: Clipping and noise.
        selector: Draws the cohorts.
        num_clients: Clients of the federation.
        rounds: Rounds of the run.
        delta: In (0, 1); less than one over the number of clients, to mean something.

    Returns:
        :math:`\varepsilon`; infinite without noise.

    Raises:
        ValueError: If a number is out of range, or the selector chooses by what clients have, which
            says something of them that no noise covers.
        ImportError: If dp-accounting is not installed.

    References:
        Wang, Balle, Kasiviswanathan, *Subsampled Rényi Differential Privacy and Analytical Moments
        Accountant*, 2019, https://arxiv.org/abs/1808.00087

        Balle, Wang, *Improving the Gaussian Mechanism for Differential Privacy*, 2018,
        https://arxiv.org/abs/1805.06530

    Examples:
        >>> from fedjax_fair import communication, selectors
        >>> private, drawn = communication.DifferentialPrivacy(1.0, 4.0), selectors.Uniform(10)
        >>> spent = epsilon(private, drawn, num_clients=1000, rounds=100, delta=1e-5)
        >>> round(spent, 2)
        0.43
    """
    checks.instance(
        "privacy", privacy, PrivacyMechanism, "communication.DifferentialPrivacy(1.0, 1.0)"
    )
    checks.instance("selector", selector, Selector, "selectors.Uniform(10)")
    checks.positive_int("num_clients", num_clients)
    checks.positive_int("rounds", rounds)
    checks.positive("delta", delta)
    checks.unit_interval("delta", delta)
    noise = privacy.total_noise()
    checks.non_negative("noise_multiplier", noise)
    if selector.sampling is None:
        raise ValueError(
            "selector: its choice depends on what clients have, which no guarantee covers; "
            "expected Uniform, RoundRobin or Full."
        )
    cohort_size = selector.sampling.cohort_size or num_clients
    checks.positive_int("cohort_size", cohort_size, at_most=num_clients)
    if float(noise) == 0:
        return math.inf
    return _spent(float(noise) / 2, selector.sampling, num_clients, cohort_size, rounds, delta)


def _spent(
    noise: float, sampling: Sampling, num_clients: int, cohort_size: int, rounds: int, delta: float
) -> float:
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError as error:
        raise ImportError(
            "communication.epsilon needs dp-accounting: pip install 'fedjax-fair[privacy]'."
        ) from error
    taken = rounds
    if sampling.kind == "round_robin":
        taken = math.ceil(rounds * cohort_size / num_clients)
    whole = dp_accounting.get_epsilon_gaussian(noise / math.sqrt(taken), delta)
    if sampling.kind != "uniform" or cohort_size == num_clients:
        return float(whole)
    drawn = dp_accounting.SampledWithoutReplacementDpEvent(
        num_clients, cohort_size, dp_accounting.GaussianDpEvent(noise)
    )
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(drawn, rounds)
    # A client is in no more rounds than there are, and both bounds hold.
    return float(min(whole, accountant.get_epsilon(delta)))
