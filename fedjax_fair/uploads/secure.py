"""Secure aggregation as a setting of a round."""

from __future__ import annotations

from collections.abc import Sequence

from fedjax_fair import checks
from fedjax_fair.base import Aggregator, Faults, Selector
from fedjax_fair.numerics.secure_sum import Secure

__all__ = ["require_sums", "secure"]


def secure(limit: float = Secure().limit) -> Secure:
    """Members send masked updates, of which the server learns the sum alone.

    Members multiply their update by their weight and round it to whole multiples of a step; masks
    of all pairs hide it, and cancel in the sum (`fedjax_fair.numerics.secure_sum`). Where members
    drop out, the masks that they leave behind are recovered.

    Args:
        limit: The largest absolute value of a number in an update, > 0; 16 by default. The step is
            ``limit`` over about 2**30. An update beyond it is not wrapped: the update of the round
            is then not finite, which ends a run as divergence does.

    Returns:
        ``Secure``, for ``make_round(..., aggregation=secure(limit))``; ``"secure"`` stands for
        ``secure()``.

    Raises:
        ValueError: If ``limit`` is not a number > 0.

    References:
        Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*,
        2017, https://eprint.iacr.org/2017/281

    Examples:
        >>> aggregation = secure(limit=4.0)
    """
    checks.positive("limit", limit)
    return Secure(float(limit))


def require_sums(selector: Selector, aggregator: Aggregator, faults: Sequence[Faults]) -> None:
    """Requires roles that secure aggregation leaves enough to see.

    Raises:
        ValueError: If one needs to see vectors of single clients.
    """
    instead = {
        "selector": "uniform, by_size, full, round_robin, power_of_choice, agnostic or drfa",
        "aggregator": "mean, tilted, q_fedavg, fairfed or gifair",
    }
    for role, given in {"selector": selector, "aggregator": aggregator}.items():
        if given.sees == "vectors":
            raise ValueError(
                f"{role}: it sees vectors of single clients, which "
                f"aggregation='secure' hides; expected one that does not, such as {instead[role]}."
            )
    if any(fault.collude is not None for fault in faults):
        raise ValueError(
            "faults: a liar that knows all updates, which aggregation='secure' hides; expected an "
            "attack of one member alone, such as 'sign_flip', 'scaling', 'noise' or 'nan'."
        )
