"""Compilations of a block of code, counted by JAX's own events."""

from contextlib import contextmanager

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations():
    """A list with an entry for every compilation inside the block.

    Example:
        >>> import jax
        >>> with compilations() as compiled:
        ...     number = jax.jit(lambda x: x + 1)(1)
        >>> len(compiled) > 0
        True
    """
    compiled = []

    def note(event, duration_secs, **_):
        if event == COMPILED:
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
