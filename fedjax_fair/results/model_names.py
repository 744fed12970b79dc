"""Names of the global and the personalized models of methods in tables."""

from __future__ import annotations

__all__ = ["MARK", "is_repeated", "method_of", "reference"]

MARK = " (personalized)"
"""End of the names of personalized models."""


def method_of(name: str) -> str:
    """Returns the method of an entry of `by_model`."""
    return name.removesuffix(MARK)


def is_repeated(name: str, names: list[str]) -> bool:
    """Returns whether an entry has the cohorts of another one, that of the global model."""
    return name.endswith(MARK) and method_of(name) in names


def reference(name: str, names: list[str], baseline: str) -> str | None:
    """Returns the entry of a baseline method that an entry of `by_model` is compared with.

    Global models are compared with global ones, personalized ones with personalized ones. A method
    without personalized models, on either side, has the model that serves the client on both.

    Returns:
        The entry; None if the baseline has no such model.

    Examples:
        >>> names = ["fedavg", "ditto", "ditto (personalized)"]
        >>> [reference(name, names, "ditto") for name in names]
        ['ditto (personalized)', 'ditto', 'ditto (personalized)']
        >>> [reference(name, names, "fedavg") for name in names]
        ['fedavg', 'fedavg', 'fedavg']
    """
    method = method_of(baseline)
    serving = f"{method}{MARK}" if f"{method}{MARK}" in names else method
    is_global = f"{name}{MARK}" in names
    wanted = method if is_global else serving
    return wanted if wanted in names else None
