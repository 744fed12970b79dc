"""Durations of the tasks of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Key

from fedjax_fair.timing.online import MAX_PERIOD, Online
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Number, Tree, setting
from fedjax_fair.utils.warning import warn

__all__ = ["QUANTITIES", "ClientTimes", "lognormal", "quantity_rng"]


ClientArray = Float[Array | np.ndarray, " clients"] | Sequence[float]
"""A value for each client. Its name makes fields children."""


class Quantity(NamedTuple):
    """A field of `ClientTimes` with a value for each client.

    Attributes:
        default: Value of clients without one; None if it is required.
        check: Check of values, of `fedjax_fair.utils.checks`.
    """

    default: float | None
    check: Callable[..., None]


QUANTITIES = {
    "seconds_per_example": Quantity(None, checks.non_negative),
    "seconds_per_task": Quantity(0.0, checks.non_negative),
    "download_bytes_per_second": Quantity(np.inf, checks.positive_or_infinite),
    "upload_bytes_per_second": Quantity(np.inf, checks.positive_or_infinite),
}
_MAX_MILLISECONDS = 2**31 - 128
"""The largest time of a task that both float32 and int32 hold."""


class ClientTimes(Tree):
    r"""Speed, bandwidth and availability of clients.

    A task is a download, local training and an upload. It takes

    .. math:: \frac{\text{bytes down}}{\text{download rate}} + \text{seconds per task}
        + \text{examples} \cdot \text{seconds per example} \cdot e^{\text{jitter} \cdot z}
        + \frac{\text{bytes up}}{\text{upload rate}}

    seconds, rounded to milliseconds and at least one. :math:`z` is a standard normal number of the
    task, so that the median of the factor is 1. Times do not depend on values of models.

    Args:
        seconds_per_example: Time of local training for one example, ``[clients]``, >= 0.
        seconds_per_task: Time of each task that does not depend on examples.
        download_bytes_per_second: Bandwidth, > 0; infinite takes no time.
        upload_bytes_per_second: Bandwidth, > 0.
        jitter: Standard deviation of the logarithm of the time per example, >= 0.
        device_class: Class of each client's device, an index of ``class_names``.
        class_names: Names of the classes of devices, by which results are summarized.
        online: When clients are online; None for always.

    Raises:
        ValueError: If a value is invalid, or all tasks would take no time.

    Examples:
        >>> times = ClientTimes([0.01, 0.05], seconds_per_task=1.0)
        >>> int(times.milliseconds(jax.random.key(0), 1, 300, 0, 0))
        16000
    """

    seconds_per_example: ClientArray
    _: KW_ONLY
    seconds_per_task: ClientArray | float = 0.0
    download_bytes_per_second: ClientArray | float = np.inf
    upload_bytes_per_second: ClientArray | float = np.inf
    jitter: Number = setting(checks.non_negative, default=0.0)
    device_class: Int[Array | np.ndarray, " clients"] | Sequence[int] | int = 0
    class_names: tuple[str, ...] = ("all",)
    online: Online | None = None

    def __post_init__(self):
        names = self.class_names
        is_tuple = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
        if not is_tuple or not names or len(set(names)) < len(names):
            raise ValueError(f"class_names={names!r}: expected a tuple of different strings.")
        for name, quantity in QUANTITIES.items():
            quantity.check(name, getattr(self, name), many=True)
        checks.non_negative("device_class", self.device_class, many=True)
        shape = np.shape(self.seconds_per_example)
        if len(shape) != 1:
            raise ValueError(
                f"seconds_per_example of shape {list(shape)}: expected [clients]; give one value "
                "for each client."
            )
        arrays = {name: _as_array(name, getattr(self, name), shape) for name in QUANTITIES}
        classes = _as_array("device_class", self.device_class, shape)
        if not isinstance(classes, Tracer):
            if not np.isin(classes, np.arange(len(names))).all():
                raise ValueError(
                    f"device_class={classes}: expected integers from 0 to {len(names) - 1}, "
                    f"indices of class_names={names!r}."
                )
            classes = classes.astype(np.int32)
        self._convert(**arrays, device_class=classes)
        no_time = (0.0, 0.0, np.inf, np.inf)
        if not any(isinstance(array, Tracer) for array in arrays.values()) and all(
            np.all(array == none) for array, none in zip(arrays.values(), no_time, strict=True)
        ):
            raise ValueError(
                "times: every task would take 0 seconds; set seconds_per_example or "
                "seconds_per_task."
            )

    @property
    def num_classes(self) -> int:
        """Number of classes of devices."""
        return len(self.class_names)

    def milliseconds(
        self,
        key: Key[Array, ""],
        client: Int[Array, ""] | int,
        examples: Int[Array, ""] | int,
        bytes_down: Int[Array, ""] | int,
        bytes_up: Int[Array, ""] | int,
    ) -> Int[Array, ""]:
        """Returns the time of a task in milliseconds, at least 1 and less than ``NEVER``.

        Args:
            key: Key of the task, from which its jitter is drawn.
            client: The client.
            examples: Examples that local training processes, `Solver.num_examples`.
            bytes_down: Bytes that the client receives.
            bytes_up: Bytes that it sends.
        """
        # With jitter 17 of 200,000 tasks have another time under `vmap` than alone, by this
        # factor. A table in place of the normal number did not remove the difference.
        factor = jnp.exp(self.jitter * jax.random.normal(key))
        examples, down, up = map(jnp.float32, (examples, bytes_down, bytes_up))
        seconds = self._seconds(
            examples, down, up, factor, lambda array: jnp.asarray(array)[client]
        )
        return jnp.clip(jnp.round(1000 * seconds), 1, _MAX_MILLISECONDS).astype(jnp.int32)

    def _seconds(
        self, examples, bytes_down, bytes_up, factor: Any = 1.0, take=lambda values: values
    ):
        return (
            bytes_down / take(self.download_bytes_per_second)
            + take(self.seconds_per_task)
            + examples * take(self.seconds_per_example) * factor
            + bytes_up / take(self.upload_bytes_per_second)
        )

    def check(self, num_clients: int) -> None:
        """Checks that the times are for these clients.

        Raises:
            ValueError: If they are for another number of clients.
        """
        sizes = {"times": np.shape(self.seconds_per_example)[0]}
        if self.online is not None:
            sizes["online"] = self.online.num_clients
        for name, size in sizes.items():
            if size != num_clients:
                raise ValueError(
                    f"{name} of {size} clients: expected {num_clients}, the number of clients."
                )

    def check_tasks(
        self, examples: ArrayLike, bytes_down: ArrayLike, bytes_up: ArrayLike, *, can_abort: bool
    ) -> None:
        """Checks tasks of all clients without jitter, on the host.

        Args:
            examples: Examples of each client's task, ``[clients]``.
            bytes_down: Bytes that each client receives, ``[clients]`` or a scalar.
            bytes_up: Bytes that it sends.
            can_abort: Whether a task ends without result if the client goes offline. A client
                whose longest interval is too short then causes a warning.

        Raises:
            ValueError: If a task takes more than 24 days.
        """
        work = (np.asarray(each, np.float64) for each in (examples, bytes_down, bytes_up))
        seconds = self._seconds(*work, take=np.asarray)
        if (longest := seconds.max()) > MAX_PERIOD:
            raise ValueError(
                f"client {seconds.argmax()}: a task of {longest:g} seconds; expected at most "
                f"{MAX_PERIOD} (24 days). Are the times in milliseconds?"
            )
        if can_abort and self.online is not None:
            intervals = self.online.longest()
            if (is_short := intervals < seconds).any():
                client = int(np.argmax(is_short))
                warn(
                    f"client {client}: its longest interval ({intervals[client]:g} s) is shorter "
                    f"than its task ({seconds[client]:g} s without jitter), so it may never "
                    "complete one; use offline='pause'."
                )


def lognormal(median: float, sigma: float, num_clients: int, seed: int = 0) -> ClientTimes:
    """Draws the seconds per example of each client from a lognormal distribution.

    Args:
        median: Median of the seconds per example, > 0.
        sigma: Standard deviation of their natural logarithm, >= 0.
        num_clients: Number of clients.
        seed: Seed of the draws, apart from seeds of runs: devices are the same in each run.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> lognormal(0.25, 0.0, num_clients=3).seconds_per_example.tolist()
        [0.25, 0.25, 0.25]
    """
    checks.positive("median", median)
    checks.non_negative("sigma", sigma)
    checks.positive_int("num_clients", num_clients)
    checks.non_negative_int("seed", seed)
    normal = quantity_rng(seed, "seconds_per_example").standard_normal(num_clients)
    return ClientTimes(median * np.exp(sigma * normal))


def quantity_rng(seed: int, quantity: str) -> np.random.Generator:
    """Returns a generator of numbers of a quantity, the same for each set of quantities."""
    return np.random.default_rng((seed, list(QUANTITIES).index(quantity)))


def _as_array(name, values, shape):
    """Converts a value of each client, or one of all, to an array of 32 bits."""
    if np.shape(values) not in ((), shape):
        raise ValueError(
            f"{name} of shape {list(np.shape(values))}: expected {list(shape)}, a value for each "
            "client, or one for all."
        )
    if isinstance(values, Tracer):
        return jnp.broadcast_to(values, shape)
    array = np.asarray(values)
    return np.broadcast_to(array if name == "device_class" else array.astype(np.float32), shape)
