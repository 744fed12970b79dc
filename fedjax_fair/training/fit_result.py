"""The result of training: metrics, and models that predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from fedjax_fair import metrics
from fedjax_fair.data.device_layout import on_device
from fedjax_fair.data.federated import FederatedData, validate
from fedjax_fair.data.tables.table_encoding import TableEncoding
from fedjax_fair.data.tables.table_files import is_table
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.results.history import (
    RECORDED,
    describe_quantity,
    metric_attributes,
    name_coordinates,
    name_quantities,
    units_of,
)
from fedjax_fair.roles import Model, Variables
from fedjax_fair.rounds.round_state import RoundState
from fedjax_fair.training.compiled_runs import check_outputs
from fedjax_fair.training.executable_cache import cache_by_shape, call
from fedjax_fair.training.jitted import make_evaluation, reuse_if_installed, summary_metrics
from fedjax_fair.training.stacked import StackedDef, stack_trees
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["FitResult"]

_CHUNK_SIZE = 500
"""Examples of a forward pass, which bounds the memory of activations."""


class FitResult(NamedTuple):
    """Metrics and trained models of all seeds.

    Attributes:
        dataset: Metrics of every client, which ``fedjax_fair.results`` describes.
        variables: NumPy arrays ``[seeds, ...]``, in the order of ``dataset.seed``.
        model: The network.
        rounds: Rounds that each model was trained for, ``[seeds]``.
        personalized: Function from the index of a seed and a client to the client's model; None
            without personalized models.
        encoding: Encoding of the columns of a table, with which models were trained, or None. It
            has the names of classes.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> fedavg = ff.Round(ff.models.logistic(10), ff.selectors.Uniform(10),
        ...                   ff.solvers.SGD(0.1, 10, epochs=1), ff.aggregators.Mean())
        >>> fitted = ff.fit(fedavg, data, rounds=20, seeds=(0, 1))
        >>> images = data.test.features[:100]
        >>> fitted.predict(images).shape, fitted.predict_proba(images).shape
        ((2, 100), (2, 100, 10))
        >>> dict(fitted.evaluate(data).test_accuracy.sizes)
        {'seed': 2, 'client': 50}
        >>> params, state = fitted.variables_for(seed=0)
    """

    dataset: xr.Dataset
    variables: Variables
    model: Model
    rounds: Int[np.ndarray, " seeds"]
    personalized: Callable[[int, int], Variables] | None = None
    encoding: TableEncoding | None = None

    def __repr__(self) -> str:
        """Returns three lines: sizes of the data, seeds and rounds, parameters of the model."""
        dataset, seeds = self.dataset, self.dataset["seed"].values.tolist()
        # With a partition per seed, the sizes are of the first one.
        train, test = (
            int(dataset[f"{split}_examples"].isel(seed=0, missing_dims="ignore").sum())
            for split in ("train", "test")
        )
        rounds = " to ".join(map(str, sorted({int(self.rounds.min()), int(self.rounds.max())})))
        counted = dataset["train_examples"].attrs.get("units", "examples")
        sizes = [int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(self.variables.params)]
        frozen = sum(leaf.size for leaf in jax.tree.leaves(self.model.frozen))
        also = f", and {frozen:,} frozen for all seeds" if frozen else ""
        shown = [*map(str, seeds[:6]), *(["..."] if len(seeds) > 6 else [])]
        return "\n".join(
            [
                f"data        {escape_control_chars(dataset.attrs['data'])}: "
                f"{dataset.sizes['client']:,} clients, {train:,} + {test:,} {counted}",
                f"runs        {len(seeds):,} seeds ({', '.join(shown)}), models of round {rounds}, "
                f"{dataset.sizes['round']:,} evaluations",
                f"parameters  {sum(sizes):,} in {len(sizes):,} arrays, for each seed{also}",
            ]
        )

    def variables_for(
        self, seed: int, client: int | str | None = None, *, merged: bool = False
    ) -> Variables:
        """Returns the variables of one seed, as NumPy arrays.

        A Flax module takes them as ``network.apply({"params": params, **state}, ...)``.

        Args:
            seed: The seed.
            client: Id or name of the client whose personalized model is returned; by default the
                global model.
            merged: Whether to return the variables of the whole network if a part of it is frozen
                or has adapters (`Model.merge`), instead of the trained part.

        Raises:
            ValueError: If there is no such seed or client, or the method has no such model.
        """
        seeds = self.dataset["seed"].values.tolist()
        if seed not in seeds:
            raise ValueError(f"seed={seed!r}: expected one of {', '.join(map(str, seeds))}.")
        index = seeds.index(seed)
        if client is not None:
            variables = self._personalized_model(index, client)
        else:
            variables = jax.tree.map(lambda leaf: np.asarray(leaf[index]), self.variables)
        return jax.tree.map(np.asarray, self.model.merge(variables)) if merged else variables

    def _personalized_model(self, index: int, client: int | str) -> Variables:
        if self.personalized is None:
            raise ValueError(
                f"client={client!r}: expected None; there are no personalized models; omit client."
            )
        total = self.dataset.sizes["client"]
        if isinstance(client, str):
            client = self._client_id(client)
        is_id = isinstance(client, int | np.integer) and not isinstance(client, bool)
        if not is_id or not 0 <= client < total:
            raise ValueError(
                f"client={client!r}: expected an integer from 0 to {total - 1}; choose an id of a "
                "client in the data."
            )
        return jax.tree.map(np.asarray, self.personalized(index, int(client)))

    def _client_id(self, name: str) -> int:
        """Returns the id of a client with a name."""
        if "client" not in self.dataset.coords:
            last = self.dataset.sizes["client"] - 1
            raise ValueError(
                f"client={name!r}: expected an integer from 0 to {last}; clients have no names; "
                "pass the id."
            )
        names = self.dataset["client"].values.tolist()
        if name not in names:
            raise ValueError(
                f"client={name!r}: expected an id or a name, one of "
                f"{', '.join(map(repr, names[:6]))}{', ...' * (len(names) > 6)}."
            )
        return names.index(name)

    def outputs(self, features: Any, client: int | str | None = None) -> np.ndarray:
        """Returns the raw model outputs, such as logits.

        Args:
            features: The examples; or a table with the columns of the training table, which are
                encoded as in training.
            client: Id or name of the client whose personalized models are used; by default the
                global models.

        Returns:
            An array ``[seeds, examples, outputs]``.

        Raises:
            ValueError: If the network does not accept the inputs, a table lacks a column or has a
                category that the training examples lack, or there is no such model.
        """
        if self.encoding is not None and is_table(features):
            features = self.encoding.encode(features)
        features = jnp.asarray(features)
        if features.ndim == 0 or not features.size:
            raise ValueError(
                f"features of shape {features.shape}: expected one or more examples; pass an array "
                "[examples, ...]."
            )
        model = stack_trees([self.model])
        outputs = reuse_if_installed(_outputs, self.model)(model.structure)
        variables = self.variables
        if client is not None:
            models = [self._personalized_model(i, client) for i in range(len(self.rounds))]
            variables = jax.tree.map(lambda *leaves: np.stack(leaves), *models)
        return np.asarray(call(outputs, variables, model.shared, features))

    def predict(self, features: Any, client: int | str | None = None) -> np.ndarray:
        """Returns predicted labels ``[seeds, examples, ...]``: classes, targets, or Booleans.

        ``features`` and ``client`` are as in `outputs`.
        """
        return np.asarray(jax.vmap(self.model.predict)(self.outputs(features, client)))

    def predict_proba(self, features: Any, client: int | str | None = None) -> np.ndarray:
        """Returns predicted probabilities, ``[seeds, examples, classes]``.

        ``features`` and ``client`` are as in `outputs`.

        Raises:
            ValueError: If the model has no probabilities, as in regression.
        """
        if self.model.probabilities is None:
            raise ValueError("model: Model.probabilities is None; use predict.")
        return np.asarray(jax.vmap(self.model.probabilities)(self.outputs(features, client)))

    def evaluate(self, data: FederatedData) -> xr.Dataset:
        """Evaluates the models on the test examples of a federated dataset.

        Returns:
            Their metrics, named as in ``dataset``. With partitions from ``data.stack``,
            each seed has one.

        Raises:
            ValueError: If the dataset is invalid, or does not fit the seeds or the network.
        """
        import xarray as xr

        validate(data)
        seeds = self.dataset["seed"].values
        if data.num_partitions not in (None, len(seeds)):
            raise ValueError(
                f"data with {data.num_partitions} partitions: expected {len(seeds)}, one per seed; "
                "pass the data of the run."
            )
        check_outputs(self.model, self.variables, data)
        model = stack_trees([self.model])
        never = np.zeros((len(seeds), data.num_clients), np.int32)
        state = RoundState.of_model(self.variables, never)
        evaluate = make_evaluation(model, train_loss=False)
        unnamed = on_device(data.without_names())
        values, clients = jax.device_get(
            call(evaluate, ((state, never[:, :0]), ()), model.shared, unnamed)
        )
        columns: dict[str, Any] = {}
        units = units_of(data, self.model)
        for name in ("test_accuracy", "test_loss", "class_accuracy"):
            if self.model.task == "regression" and name != "test_loss":
                continue
            dim, long_name, unit = RECORDED[name]
            unit = units["loss"] if unit == "nat" else unit
            attributes = {"long_name": long_name, "units": unit}
            columns[name] = (("seed", dim), getattr(clients, name), attributes)
        for metric in metrics.quantities.client_metrics(self.model.task, ()):
            name = f"test_{metric.name}"
            _, attributes = describe_quantity(metric, units)[name]
            columns[name] = (("seed", "client"), clients.custom[name], attributes)
        for metric in summary_metrics(self.model, data, ()):
            if metric.population in metrics.OF_TESTS:
                columns[metric.name] = (
                    "seed",
                    values[metric.name],
                    metric_attributes(metric, units),
                )
        coordinates = {"seed": seeds} | name_coordinates(data)
        found = metrics.quantities.quantities_of(
            self.model.task, (), sequences=are_sequences(data.test.labels)
        )
        attributes = {"data": data.name} | name_quantities(found)
        return xr.Dataset(columns, coordinates, attributes)


@cache_by_shape
def _outputs(structure: StackedDef) -> Any:
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
