"""Selections of several selectors at the same models and gradients.

Cohorts of separate runs differ also because models differ after the first different cohort. Here
one run is the reference, and in each of its rounds every selector selects from the same state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fedjax_fair.data import FederatedData
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.results import partition_dataset
from fedjax_fair.roles import Context, Selector, checked_calls
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.submodular import facility_location_from_distances
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Number

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["counterfactual"]

_LONG_NAMES = {
    "clients": "ids",
    "overlap": "share of the cohort that the baseline also selects",
    "representation": "reduction of the mean distance of a client's gradient to the cohort's",
    "bonus": "truncated sum of log(1 + loss) over the cohort",
    "classes": "classes with training examples in the cohort",
    "loss": "mean training loss of the selected clients",
}


class _Alternatives(Selector):
    """The reference selector, with the cohorts of other selectors as info.

    All selectors have the same random key and observe the cohorts of the reference.
    """

    reference: Selector
    others: tuple[Selector, ...]
    baseline: int
    has_class: Bool[Array, "clients classes"]
    b: Number

    def init(self, context):
        return tuple(checked_calls.init(selector, context) for selector in self._all)

    def select(self, key, state, context):
        context = _with_shared_measurements(context)
        states, cohorts = [], []
        for selector, old in zip(self._all, state, strict=True):
            cohort, new, info = checked_calls.select(selector, key, old, context)
            states.append(new)
            cohorts.append(cohort)
            if len(cohorts) == 1:
                reference_info = info
            elif cohort.clients.shape != cohorts[0].clients.shape:
                raise ValueError(
                    f"selectors: {selector} selects {cohort.clients.size} clients; expected "
                    f"{cohorts[0].clients.size}, as {self.reference}; give all selectors the same "
                    "cohort_size."
                )
        clients = jnp.stack([cohort.clients for cohort in cohorts[1:]])
        measured = self._measure(context, clients)
        info = {
            _info_name(name, i): values[i]
            for name, values in measured.items()
            for i in range(len(self.others))
        }
        return cohorts[0], tuple(states), reference_info | info

    def observe(self, state, cohort, results, context):
        context = _with_shared_measurements(context)
        return tuple(
            checked_calls.observe(selector, old, cohort, results, context)
            for selector, old in zip(self._all, state, strict=True)
        )

    @property
    def _all(self) -> tuple[Selector, ...]:
        return (self.reference, *self.others)

    def _measure(self, context: Context, clients: Int[Array, "methods cohort"]) -> dict[str, Array]:
        measured = context.gradients(context.variables)
        finite = jnp.isfinite(measured.loss)
        losses = jnp.where(finite, measured.loss, 0.0)
        distances = pairwise_distances(measured.gradient)
        distances = jnp.where(finite[:, None] & finite[None, :], distances, 0.0)
        representation = facility_location_from_distances(distances)
        num_clients = context.num_clients

        def of_cohort(ids):
            mask = jnp.zeros(num_clients, bool).at[ids].set(True)
            by_baseline = jnp.zeros(num_clients, bool).at[clients[self.baseline]].set(True)
            return {
                "clients": ids,
                "overlap": jnp.sum(mask & by_baseline) / jnp.sum(mask),
                "representation": representation.value(mask) / num_clients,
                "bonus": jnp.minimum(self.b, jnp.sum(jnp.log1p(losses), where=mask)),
                "classes": jnp.sum(jnp.any(self.has_class & mask[:, None], axis=0)),
                "loss": jnp.mean(losses, where=mask),
            }

        return jax.lax.map(of_cohort, clients)


def _info_name(name: str, selector: int) -> str:
    return f"counterfactual_{selector}_{name}"


def _with_shared_measurements(context: Context) -> Context:
    """Returns a context that computes losses and gradients of all clients once per model."""

    def once(measure):
        known: dict[tuple, tuple[Any, Any]] = {}

        def of_clients(variables, clients=None, **settings):
            if clients is not None:
                return measure(variables, clients, **settings)
            key = (id(variables), *settings.items())
            if key not in known:
                # The variables are stored as well: an id is unique only as long as they exist.
                known[key] = variables, measure(variables, None, **settings)
            return known[key][1]

        return of_clients

    return context._replace(gradients=once(context.gradients), losses=once(context.losses))


@partial(jax.jit, static_argnames="num_rounds")
def _run(round: Round, seed, data, num_rounds):
    state = round.init(jax.random.key(seed), data)
    return run(round, state, data, num_rounds)[1].selector


def counterfactual(
    round: Round,
    selectors: Mapping[str, Selector],
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    baseline: str | None = None,
    b: float = 1.1,
) -> xr.Dataset:
    """Compares the cohorts of selectors at the same models, losses and gradients.

    The reference run trains with ``round``. In each of its rounds, every selector selects a cohort
    with the same random key; these cohorts do not train. Selectors with state observe the cohorts
    and results of the reference, so that each selection is the one that the selector would make if
    it took over in this round.

    Args:
        round: The reference, usually with random selection.
        selectors: Selectors by name, all with the cohort size of the reference.
        data: The federated dataset; with a partition per run, each seed has the one of its
            position.
        rounds: Number of rounds, >= 1.
        seeds: Seeds of the reference run.
        baseline: The selector that ``overlap`` refers to; by default the first.
        b: Limit of the truncated bonus, >= 0, as of ``SubTrunc``.

    Returns:
        Over ``algorithm``, ``seed`` and ``training_round``: ``overlap``, the share of the cohort
        that the baseline also selects (``overlap_by_chance`` in ``attrs``); ``representation``, the
        objective of ``DivFL``; ``bonus``, ``min(b, sum of log(1 + loss))`` over the cohort;
        ``classes``, the number of classes with training examples in the cohort; ``loss``, the mean
        training loss of the selected clients, in nats; and ``clients``, their ids, also over
        ``slot``. All are at the model before the round.

    Raises:
        ValueError: If an argument is invalid, or cohort sizes differ.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits", ff.data.classes_per_client(num_clients=10, classes=2))
        >>> fedavg = ff.Round(ff.models.logistic(10), ff.selectors.Uniform(3),
        ...                   ff.solvers.SGD(0.1, 10, epochs=1), ff.aggregators.Mean())
        >>> selectors = {"divfl": ff.selectors.DivFL(3), "random": ff.selectors.Uniform(3)}
        >>> comparison = ff.analysis.counterfactual(fedavg, selectors, data, rounds=2)
        >>> comparison.overlap.sel(algorithm="divfl").values.tolist()
        [[1.0, 1.0]]
        >>> bool((comparison.representation.sel(algorithm="divfl") > 0).all())
        True
    """
    checks.instance("round", round, Round, "Round(model, selector, solver, aggregator)")
    checks.positive_int("rounds", rounds)
    checks.seeds("seeds", seeds)
    checks.non_negative("b", b)
    if not selectors:
        raise ValueError("selectors={}: expected one or more; pass a dict of selectors by name.")
    for name, selector in selectors.items():
        checks.instance(f"selectors[{name!r}]", selector, Selector, "selectors.DivFL(10)")
    names = [*selectors]
    baseline = names[0] if baseline is None else baseline
    checks.one_of("baseline", baseline, tuple(names))
    if data.num_partitions not in (None, len(seeds)):
        raise ValueError(
            f"seeds={tuple(seeds)}: expected {data.num_partitions}, one for each partition; pass "
            "that many seeds."
        )

    runs = []
    for i, seed in enumerate(seeds):
        partition = data.partition(i)
        examples = partition_dataset(partition)["train_examples"].transpose("client", "class")
        alternatives = _Alternatives(
            round.selector,
            tuple(selectors.values()),
            names.index(baseline),
            jnp.asarray(examples.values > 0),
            b,
        )
        runs.append(_run(round.replace(selector=alternatives), seed, partition, rounds))
    return _dataset(runs, names, seeds, baseline, data)


def _dataset(
    runs: Sequence[Mapping[str, Array]],
    names: Sequence[str],
    seeds: Sequence[int],
    baseline: str,
    data: FederatedData,
) -> xr.Dataset:
    """Combines the runs of all seeds into a dataset."""
    import xarray as xr

    variables = {}
    for name, long_name in _LONG_NAMES.items():
        infos = [[info[_info_name(name, i)] for info in runs] for i in range(len(names))]
        values = np.stack([np.stack(of_method) for of_method in infos])
        dims = ("algorithm", "seed", "training_round", "slot")[: values.ndim]
        variables[name] = xr.Variable(dims, values, {"long_name": long_name})
    rounds = variables["overlap"].sizes["training_round"]
    coordinates = {"algorithm": list(names), "seed": list(seeds), "training_round": range(rounds)}
    cohort_size = variables["clients"].shape[-1]
    attributes = {
        "data": data.name,
        "baseline": baseline,
        "overlap_by_chance": cohort_size / data.num_clients,
    }
    return xr.Dataset(variables, coordinates, attributes)
