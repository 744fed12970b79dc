"""What secure aggregation requires of the roles of a round."""

from __future__ import annotations

from collections.abc import Sequence

from fedjax_fair.base import Aggregator, Faults, Selector

__all__ = ["check_sums"]


def check_sums(selector: Selector, aggregator: Aggregator, faults: Sequence[Faults]) -> None:
    """Requires roles that secure aggregation leaves enough to see.

    Raises:
        ValueError: If one needs to see vectors of single clients.
    """
    instead = {
        "selector": "Uniform, BySize, Full, RoundRobin, PowerOfChoice, Agnostic or DRFA",
        "aggregator": "Mean, Tilted, QFedAvg, FairFed or GIFAIR",
    }
    for role, given in {"selector": selector, "aggregator": aggregator}.items():
        if given.server_view == "vectors":
            raise ValueError(
                f"{role}: it sees vectors of single clients, which "
                f"aggregation='secure' hides; expected one that does not, such as {instead[role]}."
            )
    if any(fault.collude is not None for fault in faults):
        raise ValueError(
            "faults: a Byzantine client that knows all updates, which aggregation='secure' hides; expected an "
            "attack of one participant alone, such as 'sign_flip', 'scaling', 'noise' or 'nan'."
        )
