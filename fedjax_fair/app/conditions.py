"""What goes wrong and what is sent, from the sections of a configuration that say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedjax_fair import checks, communication, faults
from fedjax_fair.app.config import Config
from fedjax_fair.base import Faults

__all__ = ["communication_of", "faults_of"]


def faults_of(config: Config) -> list[Faults]:
    """What goes wrong, as the settings say.

    Raises:
        ValueError: If a setting is out of range, is missing, or changes nothing.
    """
    own, found = config.faults, []
    for name in ("dropout", "stragglers", "staleness", "byzantine"):
        checks.probability(f"faults.{name}", getattr(own, name))
    if own.dropout:
        found.append(faults.Dropout(own.dropout))
    needed = {"deadline_steps": "stragglers", "max_staleness": "staleness", "attack": "byzantine"}
    for name, of in needed.items():
        amount = getattr(own, of)
        if bool(amount) != (getattr(own, name) is not None):
            raise ValueError(
                f"faults.{name}={getattr(own, name)!r}: expected it together with faults.{of}, "
                f"got {amount!r}."
            )
    if own.strength is not None and not own.byzantine:
        raise ValueError(f"faults.strength={own.strength!r}: expected faults.byzantine above 0.")
    if own.deadline_steps is not None:
        found.append(faults.Stragglers(own.stragglers, deadline_steps=own.deadline_steps))
    if own.max_staleness is not None:
        found.append(
            _named(
                "faults.max_staleness",
                faults.Staleness,
                own.staleness,
                max_staleness=own.max_staleness,
            )
        )
    if own.attack is not None:
        found.append(faults.Byzantine(own.byzantine, own.attack, own.strength))
    if own.period is not None:
        found.append(faults.Diurnal(own.period))
    return found


def communication_of(config: Config) -> dict[str, Any]:
    """What participants send, as arguments of ``Round``.

    Raises:
        ValueError: If a setting is out of range, or changes nothing.
    """
    own = config.communication
    if own.max_abs_value is not None and own.aggregation != "secure":
        raise ValueError(
            f"communication.max_abs_value={own.max_abs_value!r}: expected communication.aggregation='secure'."
        )
    given: dict[str, Any] = {"aggregation": own.aggregation}
    if own.max_abs_value is not None:
        given["aggregation"] = communication.SecureAggregation(own.max_abs_value)
    if own.top_k is not None and own.bits is not None:
        raise ValueError(
            f"communication.top_k={own.top_k!r}: expected it without communication.bits."
        )
    if own.top_k is not None:
        given["compression"] = _named("communication.top_k", communication.TopK, own.top_k)
    if own.bits is not None:
        given["compression"] = communication.StochasticQuantization(own.bits)
    for name in ("noise_multiplier", "target_unclipped_quantile"):
        if getattr(own, name) is not None and own.clipping_norm is None:
            raise ValueError(
                f"communication.{name}={getattr(own, name)!r}: expected communication.clipping_norm."
            )
    if own.clipping_norm is not None:
        noise = 0.0 if own.noise_multiplier is None else own.noise_multiplier
        if own.target_unclipped_quantile is None:
            given["privacy"] = communication.DifferentialPrivacy(own.clipping_norm, noise)
        else:
            given["privacy"] = _named(
                "communication.clipping_norm with communication.target_unclipped_quantile",
                communication.AdaptiveClipping,
                noise,
                initial_clipping_norm=own.clipping_norm,
                target_unclipped_quantile=own.target_unclipped_quantile,
            )
    return given


def _named(setting: str, constructor: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """What a constructor makes; an error begins with the setting, which the constructor calls otherwise."""
    try:
        return constructor(*given, **more)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None
