"""Networks for text, against NumPy in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.models import text
from fedjax_fair.numerics.labels import mean_over_labels

CHARACTERS = 7
LSTM = ff.models.char_lstm(CHARACTERS, embedding_width=3, width=5)
TRANSFORMER = ff.models.char_transformer(CHARACTERS, width=8, heads=2)
MODELS = pytest.mark.parametrize("model", [LSTM, TRANSFORMER], ids=["lstm", "transformer"])


def tokens_of(seed, batch=4, length=6):
    """Tokens with padding at the end of every window but the first."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(CHARACTERS, size=(batch, length)).astype(np.int32)
    counts = np.concatenate([[length], rng.integers(1, length, batch - 1)])
    tokens[np.arange(length) >= counts[:, None]] = CHARACTERS
    return tokens


def start(model, seed=0):
    """Variables that differ from their initial values, which have zeros and ones."""
    variables = model.init(jax.random.key(seed), tokens_of(0))
    leaves, tree = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [
        leaf + 0.3 * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, noisy)


def logits_of(model, variables, tokens):
    return model.apply(*variables, tokens, train=False, key=None)[0]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def embed(table, tokens):
    return np.concatenate([table, np.zeros_like(table[:1])])[tokens]


def numpy_lstm(params, tokens):
    """Returns outputs and the activations before the last layer, one window and step at a time."""
    hidden = []
    for window in tokens:
        sequence = list(embed(params["embedding"], window))
        for layer in range(2):
            kernel, bias = (params[f"recurrent_{layer}"][name] for name in ("kernel", "bias"))
            width = len(bias) // 4
            output = cell = np.zeros(width)
            for step, x in enumerate(sequence):
                i, j, f, o = np.split(np.concatenate([x, output]) @ kernel + bias, 4)
                cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j)
                output = sigmoid(o) * np.tanh(cell)
                sequence[step] = output
        hidden.append(sequence)
    hidden = np.array(hidden)
    return hidden @ params["head"]["kernel"] + params["head"]["bias"], hidden


def numpy_transformer(params, tokens, heads=2):
    def dense(layer, x):
        return x @ layer["kernel"] + layer["bias"]

    def norm(layer, x):
        centered = x - x.mean()
        return centered / np.sqrt((centered**2).mean() + 1e-6) * layer["scale"] + layer["bias"]

    def gelu(x):
        return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2

    width = params["embedding"].shape[1]
    outputs, hidden = [], []
    for window in tokens:
        x = embed(params["embedding"], window)
        for position in range(len(window)):
            for pair in range(width // 2):
                angle = position / 10_000 ** (2 * pair / width)
                x[position, pair] += math.sin(angle)
                x[position, width // 2 + pair] += math.cos(angle)
        for layer in range(2):
            block = params[f"blocks_{layer}"]
            rows = [dense(block["projections"], norm(block["attention_norm"], row)) for row in x]
            new = []
            for place, row in enumerate(rows):
                query = np.split(row[:width], heads)
                mixed = []
                for head in range(heads):
                    keys = [np.split(r[width : 2 * width], heads)[head] for r in rows[: place + 1]]
                    values = [np.split(r[2 * width :], heads)[head] for r in rows[: place + 1]]
                    scores = np.array([query[head] @ k for k in keys]) / math.sqrt(width // heads)
                    weights = np.exp(scores) / np.exp(scores).sum()
                    mixed.append(weights @ np.array(values))
                attended = x[place] + dense(block["mix"], np.concatenate(mixed))
                widened = gelu(dense(block["widen"], norm(block["dense_norm"], attended)))
                new.append(attended + dense(block["narrow"], widened))
            x = np.array(new)
        hidden.append([norm(params["norm"], row) for row in x])
        outputs.append([dense(params["head"], row) for row in hidden[-1]])
    return np.array(outputs), np.array(hidden)


@pytest.mark.parametrize(
    ("model", "reference"), [(LSTM, numpy_lstm), (TRANSFORMER, numpy_transformer)]
)
def test_outputs_and_features_equal_those_of_numpy(model, reference):
    variables, tokens = start(model), tokens_of(1)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables.params)
    expected, hidden = reference(params, tokens)
    np.testing.assert_allclose(logits_of(model, variables, tokens), expected, rtol=1e-4, atol=1e-5)
    means = [row[t < CHARACTERS].mean(axis=0) for row, t in zip(hidden, tokens, strict=True)]
    features = model.features(*variables, tokens)
    np.testing.assert_allclose(features, means, rtol=1e-4, atol=1e-5)
    empty = model.features(*variables, np.full((1, 3), CHARACTERS, np.int32))
    np.testing.assert_array_equal(empty, 0)


def test_the_gradient_of_the_recurrence_equals_that_of_the_scan():
    rng = np.random.default_rng(2)
    gates, kernel = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((9, 4, 20), (5, 20))
    )
    slopes = jnp.asarray(rng.normal(size=(9, 4, 5)), jnp.float32)

    def total(recur):
        return lambda gates, kernel: jnp.sum(slopes * recur(gates, kernel))

    fast = jax.grad(total(text._recur), (0, 1))(gates, kernel)
    plain = jax.grad(total(lambda *x: text._scan_forward(*x)[0]), (0, 1))(gates, kernel)
    for one, other in zip(fast, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@MODELS
def test_later_characters_change_no_earlier_output(model):
    variables, tokens = start(model), tokens_of(3, batch=1, length=8)
    before = logits_of(model, variables, tokens)
    for place in range(8):
        for token in (0, 1, CHARACTERS):
            changed = tokens.copy()
            changed[0, place] = token
            after = logits_of(model, variables, changed)
            np.testing.assert_array_equal(before[:, :place], after[:, :place])
            if token != tokens[0, place]:
                assert np.abs(before[:, place] - after[:, place]).max() > 1e-4


@MODELS
def test_padding_changes_no_bit_of_losses_gradients_and_training(model):
    data = ff.data.from_text(
        {"a": ["abcabca", "abc"], "b": ["gfedcba" * 3, "ga"], "c": "fedabcf" * 4}, length=6
    )
    rng = np.random.default_rng(4)

    def replaced(part):
        """The same windows with random tokens, also unknown ones, instead of padding."""
        others = rng.integers(CHARACTERS + 3, size=part.features.shape).astype(np.int32)
        return part._replace(features=np.where(part.labels < 0, others, part.features))

    other = data.map_parts(replaced)
    assert not np.array_equal(data.train.features, other.train.features)

    @jax.jit
    def loss_and_gradient(params, part):
        def loss(params):
            outputs, _ = model.apply(params, {}, part.features, train=True, key=None)
            losses = model.loss(outputs, part.labels)
            return mean_over_labels(losses, part.labels, jnp.ones(len(part.labels), bool))

        return jax.value_and_grad(loss)(params)

    variables = start(model)
    jax.tree.map(
        np.testing.assert_array_equal,
        loss_and_gradient(variables.params, data.train),
        loss_and_gradient(variables.params, other.train),
    )
    method = ff.Round(
        model, ff.selectors.Uniform(2), ff.solvers.SGD(0.5, 2, steps=2), ff.aggregators.Mean()
    )
    perplexity = ff.metrics.predictions.perplexity()
    one, two = (ff.fit(method, each, rounds=2, metrics=[perplexity]) for each in (data, other))
    jax.tree.map(np.testing.assert_array_equal, one.variables, two.variables)
    for name in one.dataset.data_vars:
        np.testing.assert_array_equal(one.dataset[name], two.dataset[name], err_msg=str(name))
    run = one.dataset.isel(seed=0)
    np.testing.assert_allclose(run.test_perplexity, np.exp(run.test_loss), rtol=1e-5)
    np.testing.assert_allclose(
        run.perplexity_pooled, np.exp(run.test_loss_mean_examples), rtol=1e-5
    )


@MODELS
def test_longer_windows_of_padding_change_outputs_by_rounding(model):
    variables, tokens = start(model), tokens_of(5)
    padded = np.pad(tokens, ((0, 0), (0, 5)), constant_values=CHARACTERS)
    plain, longer = (logits_of(model, variables, each) for each in (tokens, padded))
    np.testing.assert_allclose(plain, longer[:, :6], rtol=1e-4, atol=1e-5)
    plain, longer = (model.features(*variables, each) for each in (tokens, padded))
    np.testing.assert_allclose(plain, longer, rtol=1e-4, atol=1e-5)


@MODELS
def test_tokens_outside_the_vocabulary_are_equal(model):
    variables, tokens = start(model), tokens_of(6)
    unknown = np.where(tokens == CHARACTERS, -1, tokens)
    np.testing.assert_array_equal(
        logits_of(model, variables, tokens), logits_of(model, variables, unknown)
    )


def test_initial_weights_have_the_variances_of_their_definitions():
    """Standard deviations of thousands of weights, and bounds of uniform ones."""
    tokens = np.zeros((1, 4), np.int32)
    lstm = ff.models.char_lstm(90, 40, 64).init(jax.random.key(0), tokens).params
    fans = {"recurrent_0": (40 + 64, 256), "recurrent_1": (64 + 64, 256), "head": (64, 90)}
    kernels = [(lstm[name]["kernel"], fan) for name, fan in fans.items()]
    for kernel, fan in [*kernels, (lstm["embedding"], (90, 40))]:
        bound = math.sqrt(6 / sum(fan))
        assert kernel.shape == fan
        assert 0.98 * bound < np.abs(kernel).max() <= bound
        np.testing.assert_allclose(np.std(kernel), bound / math.sqrt(3), rtol=0.04)
    for name in fans:
        np.testing.assert_array_equal(lstm[name]["bias"], 0)
    params = ff.models.char_transformer(90, 64).init(jax.random.key(0), tokens).params
    np.testing.assert_allclose(np.std(params["embedding"]), 1, rtol=0.04)
    for name in ("projections", "mix", "widen", "narrow"):
        kernel = params["blocks_1"][name]["kernel"]
        np.testing.assert_allclose(np.std(kernel), 1 / math.sqrt(len(kernel)), rtol=0.05)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if "bias" in str(path[-1]):
            np.testing.assert_array_equal(leaf, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ff.models.char_lstm(0), "num_classes=0"),
        (lambda: ff.models.char_lstm(5, layers=0), "layers=0"),
        (lambda: ff.models.char_lstm(5, width=True), "width=True"),
        (lambda: ff.models.char_lstm(5, embedding_width=-1), "embedding_width=-1"),
        (lambda: ff.models.char_transformer(5, heads=0), "heads=0"),
        (lambda: ff.models.char_transformer(5, width=12), "width=12"),
    ],
)
def test_bad_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@MODELS
def test_networks_learn_a_periodic_text(model):
    data = ff.data.from_text(dict.fromkeys("xyz", "abcdefg" * 30), length=7)
    method = ff.Round(
        model,
        ff.selectors.Full(),
        ff.solvers.SGD(0.5, 8, epochs=5),
        ff.aggregators.Mean(),
    )
    run = ff.fit(method, data, rounds=20).dataset
    assert run.accuracy_mean_examples[0, -1] > 0.9
