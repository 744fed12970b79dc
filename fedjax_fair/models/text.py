"""Networks that predict the next character: a stacked LSTM and a small transformer.

Inputs are tokens ``[batch, length]``, integers. The embedding of a token outside ``[0,
num_classes)``, such as padding or an unknown character, is 0. Outputs are logits ``[batch, length,
num_classes]`` of the character after each token. No output depends on later tokens.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedjax_fair.models.wrap import from_flax
from fedjax_fair.roles import Model
from fedjax_fair.utils import checks

__all__ = ["char_lstm", "char_transformer"]

Sequences = Float[Array, "time batch width"]
Gates = Float[Array, "time batch gates"]


def char_lstm(
    num_classes: int, embedding_width: int = 8, width: int = 256, layers: int = 2
) -> Model:
    """The Shakespeare network of LEAF and FedJAX: an embedding, LSTM layers and a dense layer.

    Weights are initialized as in LEAF (Glorot, uniform; biases 0, plus 1 in the forget gate).
    ``Model.features`` returns the mean of the last layer over tokens that are characters.

    Args:
        num_classes: Number of different characters.
        embedding_width: Length of the vector of a character.
        width: Units of each recurrent layer.
        layers: Number of recurrent layers.

    References:
        Caldas et al., LEAF: A Benchmark for Federated Settings, 2018,
        https://arxiv.org/abs/1812.01097

    Examples:
        >>> model, tokens = char_lstm(80), jnp.zeros((2, 5), jnp.int32)
        >>> variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
        >>> sum(leaf.size for leaf in jax.tree.leaves(variables.params))
        817872
        >>> jax.eval_shape(model.features, *variables, tokens).shape
        (2, 256)
    """
    checks.positive_int("num_classes", num_classes)
    checks.positive_int("embedding_width", embedding_width)
    checks.positive_int("width", width)
    checks.positive_int("layers", layers)
    return from_flax(_CharacterLSTM(num_classes, embedding_width, width, layers))


def char_transformer(num_classes: int, width: int = 128, layers: int = 2, heads: int = 4) -> Model:
    """A decoder-only transformer, with normalization before each block and sines as positions.

    Each layer adds multi-head attention and a dense block of ``4 * width`` units with GELU. A
    normalization and a dense layer follow. ``Model.features`` returns the mean of the normalized
    activations over tokens that are characters.

    Args:
        num_classes: Number of different characters.
        width: Width of activations, a multiple of ``2 * heads``.
        layers: Number of layers.
        heads: Attention heads.

    References:
        Vaswani et al., Attention Is All You Need, 2017, https://arxiv.org/abs/1706.03762;
        Xiong et al., On Layer Normalization in the Transformer Architecture, 2020,
        https://arxiv.org/abs/2002.04745 (where normalization goes).

    Examples:
        >>> model, tokens = char_transformer(80), jnp.zeros((2, 5), jnp.int32)
        >>> variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
        >>> sum(leaf.size for leaf in jax.tree.leaves(variables.params))
        417360
    """
    checks.positive_int("num_classes", num_classes)
    checks.positive_int("width", width)
    checks.positive_int("layers", layers)
    checks.positive_int("heads", heads)
    if width % (2 * heads):
        raise ValueError(
            f"{width=}: expected a multiple of {2 * heads} ({heads=}); choose another width or "
            "number of heads."
        )
    return from_flax(_CharacterTransformer(num_classes, width, layers, heads))


class _CharacterLSTM(nn.Module):
    num_classes: int
    embedding_width: int
    width: int
    layers: int

    def setup(self):
        shape = (self.num_classes, self.embedding_width)
        self.embedding = self.param("embedding", nn.initializers.glorot_uniform(), shape)
        self.recurrent = [_LSTM(self.width) for _ in range(self.layers)]
        self.head = nn.Dense(self.num_classes, kernel_init=nn.initializers.glorot_uniform())

    def _activations(self, tokens):
        # Time comes first, so that the scans of all layers slice without a copy.
        x = _embed(self.embedding, tokens).swapaxes(0, 1)
        for layer in self.recurrent:
            x = layer(x)
        return x.swapaxes(0, 1)

    def features(self, x):
        return _mean_of_characters(self._activations(x), x, self.num_classes)

    def __call__(self, x):
        return self.head(self._activations(x))


class _LSTM(nn.Module):
    """A recurrent layer on ``[time, batch, inputs]``, with one kernel for inputs and state."""

    width: int

    @nn.compact
    def __call__(self, x: Float[Array, "time batch inputs"]) -> Sequences:
        inputs, gates = x.shape[-1], 4 * self.width
        init = nn.initializers.glorot_uniform()
        kernel = self.param("kernel", init, (inputs + self.width, gates))
        bias = self.param("bias", nn.initializers.zeros, (gates,))
        return _recur(x @ kernel[:inputs] + bias[None, None], kernel[inputs:])


@jax.custom_vjp
def _recur(gates: Gates, kernel: Float[Array, "width gates"]) -> Sequences:
    """Runs LSTM cells over time, from the part of their gates that depends on inputs."""
    return _scan_forward(gates, kernel)[0]


def _scan_forward(gates, kernel):
    """Returns outputs, cells and activated gates of every step."""

    def step(carry, of_inputs):
        output, cell = carry
        i, j, f, o = jnp.split(of_inputs + output @ kernel, 4, axis=-1)
        i, j, f, o = nn.sigmoid(i), jnp.tanh(j), nn.sigmoid(f + 1), nn.sigmoid(o)
        cell = f * cell + i * j
        output = o * jnp.tanh(cell)
        return (output, cell), (output, cell, jnp.concatenate([i, j, f, o], axis=-1))

    zeros = jnp.zeros((gates.shape[1], kernel.shape[0]), gates.dtype)
    return jax.lax.scan(step, (zeros, zeros), gates)[1]


def _recur_forward(gates, kernel):
    outputs, cells, activated = _scan_forward(gates, kernel)
    return outputs, (outputs, cells, activated, kernel)


# The gradient of the kernel is one product over all steps. The derivative of the scan would add to
# it in every step.
def _recur_backward(residuals, slopes):
    outputs, cells, activated, kernel = residuals

    def before(values):
        return jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])

    def step(carry, values):
        of_output, of_cell = carry
        slope, activated, cell, cell_before = values
        i, j, f, o = jnp.split(activated, 4, axis=-1)
        of_output, squashed = of_output + slope, jnp.tanh(cell)
        of_cell = of_cell + of_output * o * (1 - squashed**2)
        of_gates = jnp.concatenate(
            [
                of_cell * j * i * (1 - i),
                of_cell * i * (1 - j**2),
                of_cell * cell_before * f * (1 - f),
                of_output * squashed * o * (1 - o),
            ],
            axis=-1,
        )
        return (of_gates @ kernel.T, of_cell * f), of_gates

    start = (jnp.zeros_like(outputs[0]), jnp.zeros_like(cells[0]))
    steps = (slopes, activated, cells, before(cells))
    _, of_gates = jax.lax.scan(step, start, steps, reverse=True)
    return of_gates, jnp.einsum("tbh,tbg->hg", before(outputs), of_gates)


_recur.defvjp(_recur_forward, _recur_backward)


class _CharacterTransformer(nn.Module):
    num_classes: int
    width: int
    layers: int
    heads: int

    def setup(self):
        shape = (self.num_classes, self.width)
        self.embedding = self.param("embedding", nn.initializers.normal(1.0), shape)
        self.blocks = [_Block(self.heads) for _ in range(self.layers)]
        self.norm = nn.LayerNorm()
        self.head = nn.Dense(self.num_classes)

    def _activations(self, tokens):
        x = _embed(self.embedding, tokens)
        x = x + _positions(tokens.shape[1], self.width)[None].astype(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def features(self, x):
        return _mean_of_characters(self._activations(x), x, self.num_classes)

    def __call__(self, x):
        return self.head(self._activations(x))


class _Block(nn.Module):
    """Causal attention and a dense block, each added to its input."""

    heads: int

    @nn.compact
    def __call__(self, x: Float[Array, "batch time width"]) -> Float[Array, "batch time width"]:
        width = x.shape[-1]
        projected = nn.Dense(3 * width, name="projections")(nn.LayerNorm(name="attention_norm")(x))
        by_head = (*x.shape[:2], self.heads, width // self.heads)
        query, key, value = (part.reshape(by_head) for part in jnp.split(projected, 3, axis=-1))
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + nn.Dense(width, name="mix")(mixed.reshape(x.shape))
        hidden = nn.Dense(4 * width, name="widen")(nn.LayerNorm(name="dense_norm")(x))
        return x + nn.Dense(width, name="narrow")(nn.gelu(hidden))


def _positions(length: int, width: int) -> Float[np.ndarray, "time width"]:
    """Returns sines and cosines of positions, of wavelengths from 2 pi to 10,000 * 2 pi."""
    rates = 10_000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _embed(
    table: Float[Array, "characters width"], tokens: Any
) -> Float[Array, "batch time width"]:
    """Looks tokens up in a table, and returns 0 for tokens that it lacks."""
    if not jnp.issubdtype(tokens.dtype, jnp.integer) or tokens.ndim != 2:
        raise ValueError(
            f"x of {tokens.dtype} and shape {tokens.shape}: expected tokens, integers [batch, "
            "length], such as of data.from_text."
        )
    rows = jnp.where(tokens < 0, table.shape[0], tokens)  # A negative index counts from the end.
    return table.at[rows].get(mode="fill", fill_value=0)


def _mean_of_characters(
    activations: Float[Array, "batch time width"], tokens: Int[Array, "batch time"], number: int
) -> Float[Array, "batch width"]:
    """Averages over tokens that are characters, and returns 0 without any."""
    is_character = ((tokens >= 0) & (tokens < number)).astype(activations.dtype)
    total = jnp.einsum("btw,bt->bw", activations, is_character)
    return total / jnp.maximum(is_character.sum(axis=1, keepdims=True), 1)
