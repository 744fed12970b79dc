"""Local stochastic gradient descent, with FedProx's proximal term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from fedjax_fair.numerics.labels import mean_over_labels, mean_per_example
from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.roles import Client, LocalResult, Number, Solver, Variables, setting
from fedjax_fair.roles.model import apply_masked
from fedjax_fair.utils import checks

__all__ = ["SGD", "STEPS_PER_BLOCK", "BatchGradient", "BatchLoss"]

# Minibatches drawn together if the number of steps is traced: drawing one takes several
# microseconds of small operations. Unrolled local steps were no faster, and compiled longer.
STEPS_PER_BLOCK = 32
_MAX_STEPS = 2**31 - 1  # Steps are counted in 32 bits.

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]
BatchLoss = Callable[
    [
        Float[Array, " batch"],
        Bool[Array, " batch"],
        Int[Array, " batch"],
        Float[Array, "batch ..."],
    ],
    Float[Array, ""],
]


class BatchGradient(NamedTuple):
    """The gradient of a minibatch.

    Attributes:
        gradient: Gradient of the loss, with ``gradient_offset`` and decay, of the parameters.
        loss: The loss, nats for cross-entropy.
        state: The new state of the model, such as running statistics.
    """

    gradient: PyTree
    loss: Float[Array, ""]
    state: PyTree


class SGD(Solver):
    r"""Minibatch SGD on one client's examples, from the global model.

    A step follows the gradient of the minibatch loss plus decay and proximal terms,

    .. math:: w \leftarrow w - \eta\,(\nabla f_i(w; B) + \text{decay}\, w + \mu\,(w - w_t)).

    The minibatch loss is the mean over the labels of its examples that are not masked.
    An epoch is a random permutation of the client's examples, whose last minibatch may be smaller.
    Padded positions repeat an example with weight zero, which statistics of batch normalization do
    not count.

    Instructions: ``loss_weight``, a factor of the loss without proximal term and decay;
    ``snapshot_step``, the number of steps before a copy of the model; ``max_steps`` >= 1. Reports:
    ``last_batch``, the indices of the last minibatch, -1 in padded positions. Sends: ``snapshot``,
    the update after ``snapshot_step`` steps.

    Args:
        learning_rate: Step size, >= 0, or a schedule, a function of the absolute round.
        batch_size: Maximum number of examples per minibatch.
        steps: Local steps of every client. Exactly one of ``steps`` and ``epochs``.
        epochs: Passes over the client's examples: a client of ``n`` examples takes ``epochs *
            ceil(n / batch_size)`` steps.
        momentum: Heavy-ball momentum in ``[0, 1)``, from zero in every round.
        weight_decay: Decay, >= 0, added to the gradient.
        prox: FedProx's ``mu`` >= 0; 0 is plain SGD.
        optimizer: A function from a learning rate to an optax optimizer, in place of SGD with
            momentum.
        replacement: Whether to draw every minibatch independently, with replacement.

    Raises:
        ValueError: If a setting is out of range, not exactly one of ``steps`` and ``epochs`` is
            given, or both ``momentum`` and ``optimizer`` are.

    References:
        Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, *Federated Optimization in Heterogeneous
        Networks*, 2020, https://arxiv.org/abs/1812.06127

    Examples:
        >>> fedavg = SGD(0.1, batch_size=32, epochs=5)
        >>> fedprox = SGD(0.1, batch_size=32, epochs=5, prox=0.01)
        >>> halved = SGD(lambda round: 0.1 * 0.5 ** (round // 100), batch_size=32, steps=10)
        >>> adam = SGD(1e-3, batch_size=32, steps=10, optimizer=optax.adam)
    """

    learning_rate: Number | Schedule
    batch_size: int = setting(checks.positive_int)
    _: KW_ONLY
    steps: int | None = setting(checks.positive_int, default=None, at_most=_MAX_STEPS)
    epochs: int | None = setting(checks.positive_int, default=None, at_most=_MAX_STEPS)
    momentum: Number = setting(checks.unit_interval, default=0.0)
    weight_decay: Number = setting(checks.non_negative, default=0.0)
    prox: Number = setting(checks.non_negative, default=0.0)
    optimizer: Callable[..., optax.GradientTransformation] | None = setting(
        checks.function, "from a learning rate, such as optax.adam", default=None
    )
    replacement: bool = False

    def __post_init__(self):
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"expected exactly one of steps={self.steps} and epochs={self.epochs}; set one of "
                "them."
            )
        if not callable(self.learning_rate):
            checks.non_negative("learning_rate", self.learning_rate)
        if self.optimizer is not None and not _is_zero(self.momentum):
            raise ValueError(
                f"momentum={self.momentum!r}: expected 0 with optimizer={self.optimizer!r}; pass "
                "the momentum to the optimizer instead."
            )

    @property
    def fixed_num_steps(self) -> bool:
        """True if all clients take equally many steps."""
        return self.steps is not None

    def num_examples(
        self, sizes: Int[Array, "..."], max_steps: Int[Array, "..."] | None = None
    ) -> Int[Array, "..."]:
        """Returns the examples that training on clients of some sizes processes.

        Examples:
            >>> sgd = SGD(0.1, batch_size=4, epochs=2)
            >>> sgd.num_examples(jnp.array([4, 10])).tolist()
            [8, 20]
            >>> sgd.num_examples(jnp.array([4, 10]), max_steps=jnp.int32(3)).tolist()
            [8, 10]
        """
        steps = self.num_steps(sizes, max_steps)
        if self.replacement:
            return steps * self.batch_size
        epochs, rest = jnp.divmod(steps, _ceil_div(sizes, self.batch_size))
        return epochs * sizes + rest * self.batch_size

    def num_steps(
        self, sizes: Int[Array, "..."], max_steps: Int[Array, "..."] | None = None
    ) -> Int[Array, "..."]:
        """Returns the steps of training on clients of some sizes."""
        per_epoch = _ceil_div(sizes, self.batch_size)
        steps = self.steps if self.epochs is None else self.epochs * per_epoch
        steps = jnp.broadcast_to(jnp.asarray(steps, jnp.int32), sizes.shape)
        return steps if max_steps is None else jnp.minimum(steps, max_steps)

    def rate(self, round: Int[Array, ""]) -> Number:
        """Returns the step size in an absolute round."""
        return self.learning_rate(round) if callable(self.learning_rate) else self.learning_rate

    def make_optimizer(self, round: Int[Array, ""]) -> optax.GradientTransformation:
        """Returns the optimizer of an absolute round."""
        rate = self.rate(round)
        if self.optimizer is not None:
            return self.optimizer(rate)
        return optax.sgd(rate, momentum=None if _is_zero(self.momentum) else self.momentum)

    def displacement(self, round: Int[Array, ""], steps: Int[Array, ""]) -> Float[Array, ""]:
        r"""Returns how far some steps move along a constant gradient of 1, without decay.

        Plain SGD moves :math:`\eta K` in :math:`K` steps; momentum and the proximal term change
        this distance. Divided by the step size it is the norm of the accumulation vector of FedNova
        (Wang et al., 2020, https://arxiv.org/abs/2007.07481).

        Raises:
            ValueError: With ``optimizer``, whose steps may not be proportional to gradients.

        Examples:
            >>> sgd = SGD(0.1, batch_size=10, steps=2, momentum=0.5)
            >>> round(float(sgd.displacement(jnp.int32(0), jnp.int32(2))), 6)  # 0.1 + 0.1 * 1.5
            0.25
        """
        if self.optimizer is not None:
            raise ValueError(
                f"optimizer={self.optimizer!r}: expected None, which is SGD; remove it."
            )
        optimizer = self.make_optimizer(round)

        def step(_, carry):
            position, state = carry
            gradient = _add_scaled(jnp.ones(()), self.prox, position)
            change, state = optimizer.update(gradient, state, position)
            return position + change, state

        start = jnp.zeros(())
        return -jax.lax.fori_loop(0, steps, step, (start, optimizer.init(start)))[0]

    def solve(
        self,
        key: Key[Array, ""],
        variables: Variables,
        client: Client,
        *,
        # Methods that change local SGD pass values, not functions of the client, so that each is
        # readable from top to bottom, and SGD has no field for any of them.
        start: Variables | None = None,
        anchor: PyTree | None = None,
        gradient_offset: PyTree | None = None,
        is_trained: PyTree | None = None,
        batch_loss: BatchLoss | None = None,
        batch_gradient: Callable[..., tuple[BatchGradient, PyTree]] | None = None,
        memory: PyTree = None,
    ) -> LocalResult:
        """Trains on the client's examples.

        The keywords are for solvers that build on SGD.

        Args:
            key: Key of minibatches and of the model.
            variables: The global model.
            client: The client.
            start: Variables to train from, and that the update is relative to; by default the
                global model.
            anchor: Parameters that the proximal term pulls to; by default the ones of the global
                model.
            gradient_offset: Added to every gradient, before decay, proximal term and momentum.
            is_trained: Variables of booleans, one for each array, which may be traced: others stay
                as they are.
            batch_loss: ``batch_loss(losses, mask, indices, outputs) -> scalar``, the loss of a
                minibatch from the losses of its examples ``[batch]``, the mask of those that are
                not padding, their indices and the outputs of the model; by default the mean.
            batch_gradient: ``batch_gradient(gradient_fn, variables, memory) -> (BatchGradient,
                memory)``, what a step follows in place of the gradient of its minibatch.
                ``gradient_fn(variables, key_order=None, batch_loss=...) -> BatchGradient`` is that
                gradient at any variables, or with a key that of a minibatch in the order of this
                key, or that of another loss.
            memory: What ``batch_gradient`` receives in the first step; the state of the result is
                that of the last step.
        """
        start = variables if start is None else start
        anchor = variables.params if anchor is None else anchor
        key_order, key_model = jax.random.split(key)
        optimizer = self.make_optimizer(client.round)
        num_positions = self.batch_size
        if not self.replacement:
            num_positions = min(num_positions, client.examples.order.shape[0])
        loss_weight = client.instructions.get("loss_weight")
        snapshot_step = client.instructions.get("snapshot_step")
        max_steps = client.instructions.get("max_steps")

        def loss_fn(params, state, batch, key, batch_loss):
            features = client.examples.features[batch.indices]
            mask = None if self.replacement else batch.mask
            outputs, state = apply_masked(
                client.model.apply, params, state, features, True, key, mask
            )
            losses = client.model.loss(outputs, batch.labels)
            loss = mean_over_labels(losses, batch.labels, batch.mask)
            trained_loss = loss
            if batch_loss is not None:
                losses = mean_per_example(losses, batch.labels)
                trained_loss = batch_loss(losses, batch.mask, batch.indices, outputs)
            weighted = trained_loss if loss_weight is None else loss_weight * trained_loss
            return weighted, (loss, state)

        def draw(step, key_order=key_order):
            return _minibatch(key_order, client, num_positions, self.replacement, step)

        def gradient_at(index, batch, variables, key_order=None, batch_loss=batch_loss):
            batch = batch if key_order is None else draw(index, key_order)
            (_, (loss, state)), gradient = jax.value_and_grad(loss_fn, has_aux=True)(
                *variables, batch, jax.random.fold_in(key_model, index), batch_loss
            )
            if gradient_offset is not None:
                gradient = jax.tree.map(jnp.add, gradient, gradient_offset)
            gradient = _add_scaled(gradient, self.weight_decay, variables.params)
            return BatchGradient(gradient, loss, state)

        def step(index, batch, carry):
            old, optimizer_state, total_loss, snapshot, memory = carry
            gradient_fn = partial(gradient_at, index, batch)
            if batch_gradient is None:
                found = gradient_fn(old)
            else:
                found, memory = batch_gradient(gradient_fn, old, memory)
            gradient = _add_scaled(found.gradient, self.prox, old.params, anchor)
            change, optimizer_state = optimizer.update(gradient, optimizer_state, old.params)
            new = Variables(optax.apply_updates(old.params, change), found.state)
            if is_trained is not None:
                new = _merge(is_trained, new, old)
            if snapshot is not None:
                snapshot = jax.tree.map(partial(jnp.where, index < snapshot_step), new, snapshot)
            return new, optimizer_state, total_loss + found.loss, snapshot, memory

        def take_steps(first, num_drawn, num_steps, carry):
            """Draws minibatches together and takes the first ``num_steps`` of them."""
            batches = jax.vmap(draw)(first + jnp.arange(num_drawn, dtype=jnp.int32))

            def take_step(i, carry):
                return step(first + i, jax.tree.map(lambda leaf: leaf[i], batches), carry)

            with jax.named_scope("local_steps"):
                return jax.lax.fori_loop(0, num_steps, take_step, carry)

        snapshot = None if snapshot_step is None else start
        carry = (start, optimizer.init(start.params), jnp.zeros(()), snapshot, memory)
        taken = self.num_steps(client.size, max_steps)
        if self.steps is not None:
            stop = self.steps if max_steps is None else taken
            trained, _, total_loss, snapshot, memory = take_steps(0, self.steps, stop, carry)
        else:
            # With a traced number of steps the loops become while loops: a small client stops early
            # if clients run sequentially, and is masked by vmap if they run in parallel.

            def take_block(number, carry):
                first = number * STEPS_PER_BLOCK
                num_steps = jnp.minimum(STEPS_PER_BLOCK, taken - first)
                return take_steps(first, STEPS_PER_BLOCK, num_steps, carry)

            num_blocks = _ceil_div(taken, STEPS_PER_BLOCK)
            with jax.named_scope("step_blocks"):
                trained, _, total_loss, snapshot, memory = jax.lax.fori_loop(
                    0, num_blocks, take_block, carry
                )
        last = draw(taken - 1)
        sends = {}
        if snapshot is not None:
            sends["snapshot"] = jax.tree.map(jnp.subtract, snapshot, start)
        return LocalResult(
            update=jax.tree.map(jnp.subtract, trained, start),
            loss=total_loss / taken.astype(jnp.float32),
            steps=taken,
            reports={"last_batch": jnp.where(last.mask, last.indices, -1)},
            state=client.state if memory is None else memory,
            sends=sends,
        )


class _Batch(NamedTuple):
    """Examples of a step, and the mask of positions that are not padding."""

    indices: Int[Array, " batch"]
    labels: Shaped[Array, "batch ..."]
    mask: Bool[Array, " batch"]


def _minibatch(
    key: Key[Array, ""], client: Client, batch_size: int, replacement: bool, step: Int[Array, ""]
) -> _Batch:
    if replacement:
        key_step = jax.random.fold_in(key, step)
        entries = jax.random.randint(key_step, (batch_size,), 0, client.size)
        mask = jnp.ones(batch_size, bool)
    else:
        epoch, batch = jnp.divmod(step, _ceil_div(client.size, batch_size))
        positions = batch * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        key_epoch = jax.random.fold_in(key, epoch)
        entries = permutation_at(key_epoch, positions % client.size, client.size)
        # The last minibatch of an epoch is smaller: its padded positions have no weight. Dropping
        # it would never train clients with fewer examples than a batch.
        mask = positions < client.size
    indices = client.examples.order[client.offset + entries]
    return _Batch(indices, client.examples.labels[indices], mask)


def _ceil_div(size: Int[Array, "..."], batch_size: int) -> Int[Array, "..."]:
    return (size + batch_size - 1) // batch_size


def _is_zero(number: Number) -> bool:
    """Returns whether a setting is a plain zero, whose term is not computed."""
    return isinstance(number, (int, float)) and number == 0


def _merge(is_trained: Variables, trained: Variables, other: Variables) -> Variables:
    """Returns the trained arrays, and the others where an array is not trained."""

    def merge(choose, new, old):
        if isinstance(choose, jax.Array):
            return jnp.where(choose, new, old)
        return new if choose else old

    return jax.tree.map(merge, is_trained, trained, other)


def _add_scaled(gradient, scale: Number, params, origin=None):
    """Adds ``scale * (params - origin)`` to the gradient."""
    if _is_zero(scale):
        return gradient
    if origin is not None:
        params = jax.tree.map(jnp.subtract, params, origin)
    return jax.tree.map(lambda slope, value: slope + scale * value, gradient, params)
