"""Privacy accounting with dp-accounting."""

from __future__ import annotations

import math

from fedjax_fair.communication.differential_privacy import PrivacyMechanism
from fedjax_fair.roles import Selector
from fedjax_fair.utils import checks

__all__ = ["epsilon"]


# Replacing one client is the relation for which sampling without replacement has a theorem; one
# relation for all selectors makes their epsilons comparable. Weights must be equal, because numbers
# of examples are private data too.
def epsilon(
    privacy: PrivacyMechanism,
    selector: Selector,
    *,
    num_clients: int,
    rounds: int,
    delta: float,
) -> float:
    r"""Computes :math:`\varepsilon` of the models of a run, for clients as the unit of privacy.

    Neighboring federated datasets differ in all data of one client, which is replaced. The sum of
    updates then changes by at most twice the clipping norm, so that half of the noise multiplier
    counts. For `Full` and `RoundRobin` :math:`\varepsilon` is the exact one of Gaussian noise. For
    `Uniform` it is a bound by Rényi divergences, with amplification by sampling.

    The guarantee covers the models and the adaptive clipping norm, with a server trusted to add the
    noise, but neither client metrics in results nor cohorts that depend on availability.

    Args:
        privacy: Clipping and noise.
        selector: Selector of the cohorts.
        num_clients: Number of clients, which is public.
        rounds: Number of rounds.
        delta: In (0, 1); meaningful below ``1 / num_clients``.

    Returns:
        :math:`\varepsilon`; infinity without noise.

    Raises:
        ValueError: If an argument is out of range, or the choice of the selector depends on the
            data of clients, which the noise does not cover.

    References:
        Wang, Balle, Kasiviswanathan, *Subsampled Rényi Differential Privacy and Analytical Moments
        Accountant*, 2019, https://arxiv.org/abs/1808.00087

        Balle, Wang, *Improving the Gaussian Mechanism for Differential Privacy*, 2018,
        https://arxiv.org/abs/1805.06530

    Examples:
        >>> from fedjax_fair import communication, selectors
        >>> private = communication.DifferentialPrivacy(1.0, noise_multiplier=4.0)
        >>> spent = epsilon(
        ...     private, selectors.Uniform(10), num_clients=1000, rounds=100, delta=1e-5
        ... )
        >>> round(spent, 2)
        0.43
    """
    example = "communication.DifferentialPrivacy(1.0, 1.0)"
    checks.instance("privacy", privacy, PrivacyMechanism, example)
    checks.instance("selector", selector, Selector, "selectors.Uniform(10)")
    checks.positive_int("num_clients", num_clients)
    checks.positive_int("rounds", rounds)
    checks.open_interval("delta", delta)
    noise_multiplier = privacy.noise_multiplier  # pyright: ignore[reportAttributeAccessIssue]
    checks.non_negative("noise_multiplier", noise_multiplier)
    sampling = selector.sampling
    if sampling is None:
        raise ValueError(
            f"selector={selector!r} depends on the data of clients, which no guarantee covers; "
            "use Uniform, RoundRobin or Full."
        )
    cohort_size = sampling.cohort_size or num_clients
    checks.positive_int("cohort_size", cohort_size, at_most=num_clients)
    if float(noise_multiplier) == 0:
        return math.inf
    checks.installed(f"privacy={privacy!r}", "dp_accounting", "privacy")
    # Version 0.6 needs attrs below 24.
    import dp_accounting  # Takes a second.
    from dp_accounting import rdp

    noise = float(noise_multiplier) / 2
    in_turn = sampling.kind == "round_robin"
    rounds_of_client = math.ceil(rounds * cohort_size / num_clients) if in_turn else rounds
    noise_of_all = noise / math.sqrt(rounds_of_client)
    without_sampling = dp_accounting.get_epsilon_gaussian(noise_of_all, delta)
    if sampling.kind != "uniform" or cohort_size == num_clients:
        return float(without_sampling)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        num_clients, cohort_size, dp_accounting.GaussianDpEvent(noise)
    )
    replace_one = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=replace_one)
    accountant.compose(event, rounds)
    # Both are valid bounds, because a client takes part in at most all rounds.
    return float(min(without_sampling, accountant.get_epsilon(delta)))
