"""The result of training: metrics, and models that predict."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from fedjax_fair import metrics
from fedjax_fair.base import Metric, Model, Variables
from fedjax_fair.client_evaluation import evaluate
from fedjax_fair.data.device_layout import on_device
from fedjax_fair.data.federated import FederatedData, validate
from fedjax_fair.results.history import RECORDED, metric_attributes
from fedjax_fair.training.compiled_functions import check_outputs
from fedjax_fair.training.executables import call
from fedjax_fair.training.functions import over_runs, reuse_if_installed
from fedjax_fair.training.split import Structure, split

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["FitResult"]

_CHUNK_SIZE = 500
"""Examples of a forward pass, which bounds the memory of activations."""


class FitResult(NamedTuple):
    """Metrics and trained models of all seeds.

    Attributes:
        dataset: The dataset that ``fit`` returns.
        variables: NumPy arrays ``[seeds, ...]``, in the order of ``dataset.seed``.
        model: The network.
        rounds: Rounds that each model was trained for, ``[seeds]``.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits", ff.data.iid(20))
        >>> method = ff.Round(
        ...     ff.models.logistic(10), ff.selectors.Uniform(5), ff.solvers.SGD(0.1, 10, steps=5),
        ...     ff.aggregators.Mean(),
        ... )
        >>> fitted = ff.train(method, data, rounds=10, seeds=(0, 1))
        >>> images = data.test.features[:100]
        >>> fitted.predict(images).shape, fitted.predict_proba(images).shape
        ((2, 100), (2, 100, 10))
        >>> dict(fitted.evaluate(data).test_accuracy.sizes)
        {'seed': 2, 'client': 20}
    """

    dataset: xr.Dataset
    variables: Variables
    model: Model
    rounds: Int[np.ndarray, " seeds"]

    def variables_for(self, seed: int) -> Variables:
        """Returns the variables of one seed, as NumPy arrays.

        Those of Flax are nested dicts, which Linen modules take as ``{"params": params, **state}``.

        Raises:
            ValueError: If there is no such seed.

        Examples:
            >>> import flax.linen as nn
            >>> import fedjax_fair as ff
            >>> data = ff.data.from_arrays(np.eye(8), np.arange(8) % 2, [range(4), range(4, 8)],
            ...                            test_fraction=0.25)
            >>> network = nn.Dense(2)
            >>> method = ff.Round(
            ...     ff.models.from_flax(network), ff.selectors.Full(),
            ...     ff.solvers.SGD(0.1, 2, steps=1), ff.aggregators.Mean(),
            ... )
            >>> params, state = ff.train(method, data, rounds=1).variables_for(seed=0)
            >>> network.apply({"params": params, **state}, data.test.features).shape
            (2, 2)
        """
        seeds = self.dataset["seed"].values.tolist()
        if seed not in seeds:
            raise ValueError(f"seed={seed!r}: expected one of {', '.join(map(str, seeds))}.")
        return jax.tree.map(lambda leaf: np.asarray(leaf[seeds.index(seed)]), self.variables)

    def outputs(self, features: Shaped[Any, "examples ..."]) -> np.ndarray:
        """Returns the raw model outputs, such as logits.

        Args:
            features: Inputs of the network, ``[examples, ...]``.

        Returns:
            An array ``[seeds, examples, outputs]``.

        Raises:
            ValueError: If the network does not accept the inputs.
        """
        features = jnp.asarray(features)
        if features.ndim == 0 or not features.size:
            raise ValueError(f"features of shape {features.shape}: expected one or more examples.")
        model = split([self.model])
        outputs = reuse_if_installed(_outputs, self.model)(model.structure)
        return np.asarray(call(outputs, self.variables, model.shared, features))

    def predict(self, features: Shaped[Any, "examples ..."]) -> np.ndarray:
        """Returns predicted labels, ``Model.predict`` of the outputs of ``features``.

        They are classes ``[seeds, examples]`` of a classifier, targets of a regression, or a
        Boolean for each of several labels.
        """
        return np.asarray(jax.vmap(self.model.predict)(self.outputs(features)))

    def predict_proba(self, features: Shaped[Any, "examples ..."]) -> np.ndarray:
        """Returns predicted probabilities of ``features``, ``[seeds, examples, classes]``.

        Raises:
            ValueError: If the model has no probabilities, as in regression.
        """
        if self.model.probabilities is None:
            raise ValueError("model: Model.probabilities is None; use predict.")
        return np.asarray(jax.vmap(self.model.probabilities)(self.outputs(features)))

    def evaluate(self, data: FederatedData) -> xr.Dataset:
        """Evaluates the models on the test examples of a federated dataset.

        Returns:
            Metrics of test examples of every seed, named as in the dataset of ``fit``. With
            partitions from ``data.stack``, each seed has one.

        Raises:
            ValueError: If the dataset is invalid, has another number of partitions than seeds, or
                has more classes than the network.
        """
        import xarray as xr

        validate(data)
        seeds = self.dataset["seed"].values
        if data.num_partitions not in (None, len(seeds)):
            raise ValueError(
                f"data with {data.num_partitions} partitions: expected {len(seeds)}, one per seed."
            )
        check_outputs(self.model, self.variables, data)
        summaries = [one for one in metrics.SUMMARIES if one.population in metrics.OF_TESTS]
        if data.groups is not None:
            summaries += metrics.GROUP_SUMMARIES
        model = split([self.model])
        evaluate_models = reuse_if_installed(_evaluate, self.model)(
            model.structure, tuple(summaries)
        )
        values, clients = jax.device_get(
            call(evaluate_models, self.variables, model.shared, on_device(data))
        )
        columns: dict[str, Any] = {}
        for name in ("test_accuracy", "test_loss", "class_accuracy"):
            dim, long_name, unit = RECORDED[name]
            attributes = {"long_name": long_name, "units": unit}
            columns[name] = (("seed", dim), getattr(clients, name), attributes)
        for metric in summaries:
            columns[metric.name] = ("seed", values[metric.name], metric_attributes(metric))
        return xr.Dataset(columns, {"seed": seeds}, {"data": data.name})


@lru_cache(maxsize=64)
def _evaluate(structure: Structure, summaries: tuple[Metric, ...]) -> Any:
    """Returns a jitted function that evaluates the models on test examples."""

    def evaluate_models(variables, shared, data):
        model = structure.fill(shared, ())

        def evaluate_model(variables, data):
            never = jnp.zeros(data.num_clients, jnp.int32)
            clients = evaluate(model, variables, data, never, never[:0], train_loss=False)
            return {metric.name: metric.function(clients) for metric in summaries}, clients

        return over_runs(evaluate_model)(variables, data)

    return jax.jit(evaluate_models)


@lru_cache(maxsize=64)
def _outputs(structure: Structure) -> Any:
    """Returns a jitted function of the models' outputs, in chunks of examples."""

    def outputs(
        variables: Variables, shared: Any, features: Shaped[Array, "examples ..."]
    ) -> Float[Array, "seeds examples ..."]:
        model = structure.fill(shared, ())
        total = features.shape[0]
        chunk = min(_CHUNK_SIZE, total)
        padded = jnp.pad(features, [(0, -total % chunk)] + [(0, 0)] * (features.ndim - 1))
        chunks = padded.reshape(-1, chunk, *features.shape[1:])

        def outputs_of_model(variables):
            outputs = jax.lax.map(
                lambda x: model.apply(*variables, x, train=False, key=None)[0], chunks
            )
            return outputs.reshape(-1, *outputs.shape[2:])[:total]

        return jax.lax.map(outputs_of_model, variables)

    return jax.jit(outputs)
