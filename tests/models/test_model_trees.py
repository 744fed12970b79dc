"""Equality of models and metrics, which avoids recompilation."""

import pickle
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedjax_fair import metrics, models
from fedjax_fair.metrics import predictions
from fedjax_fair.roles import Model, Variables, is_correct, top_class


class Linear(nn.Module):
    width: int
    bias: bool = True

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width, use_bias=self.bias)(x)


class Widths(nn.Module):
    """A module with a list of widths, as in Flax's documentation."""

    widths: list
    scale: object = None

    @nn.compact
    def __call__(self, x):
        for width in [*self.widths, 3]:
            x = nn.Dense(width)(x)
        return x


class NNXNet(nnx.Module):
    def __init__(self, inputs, outputs=3, factor=1.0, *, rngs):
        self.head = nnx.Linear(inputs, outputs, rngs=rngs)
        self.factor = factor

    def features(self, x):
        return x

    def __call__(self, x):
        return self.head(x) * self.factor


def start(value=0.0):
    return Variables({"head": {"bias": np.zeros(3), "kernel": np.full((4, 3), value)}}, {})


# What makes a model, another one, and how the first prints.
MADE = {
    "logistic": (
        lambda: models.logistic(10),
        lambda: models.logistic(9),
        "LinenModel(module=Classifier(body=Body(), num_classes=10))",
    ),
    "mlp": (
        lambda: models.mlp(10, hidden=[5, 4]),
        lambda: models.mlp(10, hidden=[5]),
        "LinenModel(module=Classifier(body=Body(hidden=(5, 4)), num_classes=10))",
    ),
    "lenet": (
        lambda: models.lenet(10),
        lambda: models.lenet(9),
        "LinenModel(\n    module=Classifier(body=Body(hidden=(120, 84), convolutions=((6, True), "
        "(16, True)), min_side=32), num_classes=10),\n)",
    ),
    "cifar_cnn": (models.cifar_cnn, models.cifar100_cnn, None),
    "cifar100_cnn": (models.cifar100_cnn, models.cifar_cnn, None),
    "femnist_cnn": (
        models.femnist_cnn,
        lambda: models.femnist_cnn(10),
        "LinenModel(\n    module=Classifier(body=Body(hidden=(512,), convolutions=((32, True), "
        "(64, True)), dropout=0.2), num_classes=62),\n)",
    ),
    "resnet18": (
        lambda: models.resnet18(10, norm="batch"),
        lambda: models.resnet18(10),
        "LinenModel(module=Classifier(body=ResNet18(norm='batch'), num_classes=10))",
    ),
    "linen": (
        lambda: models.from_flax(Linear(3)),
        lambda: models.from_flax(Linear(3, bias=False)),
        "LinenModel(module=Linear(width=3))",
    ),
    "linen with a list": (
        lambda: models.from_flax(Widths([5, 4])),
        lambda: models.from_flax(Widths([5])),
        "LinenModel(module=ByContents(module=Widths(widths=[5, 4])))",
    ),
    "nnx": (
        lambda: models.from_flax(partial(NNXNet, 4, outputs=3)),
        lambda: models.from_flax(partial(NNXNet, 4, outputs=2)),
        "NNXModel(factory=partial(NNXNet, 4, outputs=3))",
    ),
    "regression": (
        lambda: models.as_regression(models.logistic(1)),
        lambda: models.as_regression(models.logistic(1), "absolute"),
        "LinenModel(\n    module=Classifier(body=Body(), num_classes=1),\n"
        "    loss=squared_errors,\n    accuracy=no_accuracy,\n    predict=as_targets,\n"
        "    probabilities=None,\n    task='regression',\n"
        "    loss_unit='(unit of the label)^2',\n)",
    ),
    "multi_label": (
        lambda: models.as_multi_label(models.logistic(3)),
        lambda: models.logistic(3),
        None,
    ),
    "bfloat16": (
        lambda: models.in_bfloat16(models.logistic(3)),
        lambda: models.in_bfloat16(models.logistic(4)),
        "Bfloat16(model=LinenModel(module=Classifier(body=Body(), num_classes=3)))",
    ),
    "pretrained": (
        lambda: models.pretrained(models.logistic(3), start()),
        lambda: models.pretrained(models.logistic(4), start()),
        "Pretrained(\n    model=LinenModel(module=Classifier(body=Body(), num_classes=3)),\n"
        "    variables=Variables(params={'head': {'bias': [0.0, 0.0, 0.0], "
        "'kernel': float64[4, 3]}}, state={}),\n)",
    ),
    "frozen": (
        lambda: models.freeze(models.logistic(3), start(), ["head/bias"]),
        lambda: models.freeze(models.logistic(3), start(), ["head"]),
        "Frozen(\n    model=LinenModel(module=Classifier(body=Body(), num_classes=3)),\n"
        "    trainable=('head/bias',),\n)",
    ),
    "lora": (
        lambda: models.lora(models.logistic(3), start(), rank=1),
        lambda: models.lora(models.logistic(3), start(), rank=2),
        "LoRA(\n    model=LinenModel(module=Classifier(body=Body(), num_classes=3)),\n"
        "    trainable=(),\n    targets=('head/kernel',),\n    rank=1,\n    alpha=1.0,\n)",
    ),
}


def written(text):
    """Returns the repr of a model without line breaks."""
    return "".join(text.split()).replace(",)", ")")


@pytest.mark.parametrize("name", MADE)
def test_models_of_equal_settings_are_equal(name):
    make, another, printed = MADE[name]
    model, again, other = make(), make(), another()
    assert model is not again
    assert model == again
    assert hash(model) == hash(again)
    assert jax.tree.structure(model) == jax.tree.structure(again)
    assert model != other
    assert jax.tree.structure(model) != jax.tree.structure(other)
    assert pickle.loads(pickle.dumps(model)) == model
    if printed is not None:
        assert written(repr(model)) == written(printed)


@pytest.mark.parametrize("name", MADE)
def test_equal_models_do_not_recompile(name):
    traced = []

    @jax.jit
    def count(model):
        traced.append(model)
        return jnp.zeros(())

    for _ in range(2):
        count(MADE[name][0]())
    assert len(traced) == 1


def test_other_pretrained_variables_do_not_recompile():
    first, second = (models.pretrained(models.logistic(3), start(value)) for value in (0.5, 2.0))
    assert first != second
    assert jax.tree.structure(first) == jax.tree.structure(second)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, second)
    x = jax.ShapeDtypeStruct((1, 4), jnp.float32)
    variables = jax.jit(jax.vmap(lambda model: model.init(jax.random.key(0), x)))(stacked)
    np.testing.assert_array_equal(variables.params["head"]["kernel"][:, 0, 0], [0.5, 2.0])


WRAPPERS = {
    "bfloat16": models.in_bfloat16,
    "frozen": lambda model: models.freeze(model, start(), ("head",)),
    "lora": lambda model: models.lora(model, start(), rank=1),
    "pretrained": lambda model: models.pretrained(model, start()),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_keep_functions_of_outputs(wrap):
    for inner in (models.logistic(3), models.as_multi_label(models.logistic(3))):
        wrapped = wrap(inner)
        for name in ("loss", "accuracy", "predict", "probabilities"):
            assert getattr(wrapped, name) is getattr(inner, name)
    # The other way round it is the same task.
    outside = models.as_multi_label(wrap(models.logistic(3)))
    assert outside.loss is models.as_multi_label(models.logistic(3)).loss


def test_defaults_equal_those_of_the_class():
    model = models.from_flax(nn.Dense(3))
    assert model.loss is Model.loss
    assert model.accuracy is is_correct
    assert model.predict is top_class
    assert models.as_regression(model).loss is not Model.loss


def test_modules_with_lists_and_arrays_train():
    x = np.ones((2, 4), np.float32)
    model = models.from_flax(Widths([5, 4]))

    @jax.jit
    def logits(model):
        return model.apply(*model.init(jax.random.key(0), x), x, train=False, key=None)[0]

    assert logits(model).shape == (2, 3)
    # Arrays are compared by identity.
    scaled = models.from_flax(Widths((5, 4), np.ones(2)))
    assert scaled == scaled.replace(loss=scaled.loss)
    assert scaled != models.from_flax(Widths((5, 4), np.ones(2)))
    assert scaled != models.from_flax(Widths((5, 4), np.ones(3)))


def test_new_models_inspect_their_factory_again():
    factor = 1.0

    def factory(rngs):
        return NNXNet(4, factor=factor, rngs=rngs)

    def logits():
        model, x = models.from_flax(factory), np.ones((2, 4), np.float32)
        variables = model.init(jax.random.key(0), x)
        return np.asarray(model.apply(*variables, x, train=False, key=None)[0])

    before = logits()
    factor = 2.0
    np.testing.assert_allclose(logits(), 2 * before, rtol=1e-6)


@jax.jit
def _logits_of_fresh(key, x):
    """Makes the model while tracing, as after unpickling."""
    model = models.from_flax(partial(NNXNet, 4))
    variables = model.init(key, x)
    return model.apply(*variables, x, train=True, key=key)[0]


def test_nnx_models_can_be_made_while_tracing():
    key, x = jax.random.key(0), np.ones((2, 4), np.float32)
    inside = _logits_of_fresh(key, x)
    model = models.from_flax(partial(NNXNet, 4))
    outside = jax.jit(lambda: model.apply(*model.init(key, x), x, train=True, key=key)[0])()
    np.testing.assert_allclose(inside, outside, rtol=1e-6)


METRICS = {
    "worst_class_recall": (partial(predictions.worst_class_recall, 4), (3,)),
    "macro_f1": (partial(predictions.macro_f1, 4), (3,)),
    "calibration_error": (partial(predictions.calibration_error, 5), (4,)),
    "auc": (partial(predictions.auc, 4), (3,)),
    "mean_squared_error": (predictions.mean_squared_error, None),
    "mean_absolute_error": (predictions.mean_absolute_error, None),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_equal_settings_are_equal(name):
    make, others = METRICS[name]
    metric, again = make(), make()
    assert metric == again
    assert hash(metric) == hash(again)
    assert jax.tree.structure(metric) == jax.tree.structure(again)
    assert pickle.loads(pickle.dumps(metric)) == metric
    if others is not None:
        assert metric != make.func(*others)
        assert jax.tree.structure(metric) != jax.tree.structure(make.func(*others))


def test_repr_of_metrics_contains_settings():
    assert repr(predictions.macro_f1(4).function).endswith("size=4)")


def test_summaries_can_be_pickled_and_differ():
    summaries = metrics.ALL_SUMMARIES
    assert pickle.loads(pickle.dumps(summaries)) == summaries
    assert len(set(summaries)) == len(summaries)
    validation = {metric.name: metric for metric in summaries}["validation_sigma_acc"]
    assert validation.function.names == ("validation_accuracy", "validation_sizes")
