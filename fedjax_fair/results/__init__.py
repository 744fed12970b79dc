"""Results: recorded during a run as a ``History``, kept as one ``xarray.Dataset``.

Plots and notebooks read nothing but the Dataset.

Dimensions:

* ``algorithm``: the name of the method, where several are compared (``method`` would collide with a
  parameter of ``Dataset.sel``);
* ``seed``: the runs;
* ``round``: rounds done when the model was evaluated, 0 before training;
* ``client``: the clients of the federation;
* ``planted_group``: their groups, where they are known;
* ``class``: the classes of the data;
* ``training_round`` and ``slot``: every round, and the slots of its cohort.

Variables over ``(seed, round, client)`` are ``test_accuracy``, ``test_loss``, ``train_loss`` and
``participation``; ``class_accuracy`` is over ``(seed, round, class)``. Every summary metric is one
over ``(seed, round)``, named as in ``fedjax_fair.metrics.SUMMARIES``, whose attributes say
population and weighting. Where the federation has validation examples there are also
``validation_accuracy``, ``validation_loss`` and the summaries of them (``validation_sigma_acc``
and so on). Rounds themselves are over ``(seed, training_round, slot)``: ``cohort_clients``,
``cohort_weights``, ``cohort_loss``, ``cohort_steps``, ``cohort_responded`` and
``cohort_nonfinite``. ``update_nonfinite``, over ``(seed, training_round)``, says which updates of
the model were not finite and left it as it was; ``diverged``, over ``seed``, is the first such
round, or -1. Info of the selector is over ``(seed, training_round)``, as ``selection_<name>``, and
so is that of the aggregator, as ``aggregation_<name>``, some of it for every ``slot``.
``train_examples`` and ``test_examples`` are over ``(client, class)``, and over ``seed`` where every
run has a partition of its own.
"""

from fedjax_fair.results.comparison import compare, differences, noise_floor
from fedjax_fair.results.datasets import class_based, combine, final_metrics, merge_runs
from fedjax_fair.results.files import open, save
from fedjax_fair.results.history import (
    PARTITION_VARIABLES,
    RECORDED,
    History,
    partition_dataset,
    to_dataset,
)
from fedjax_fair.results.model_files import load_model
from fedjax_fair.results.tables import to_text

__all__ = [
    "PARTITION_VARIABLES",
    "RECORDED",
    "History",
    "class_based",
    "combine",
    "compare",
    "differences",
    "final_metrics",
    "load_model",
    "merge_runs",
    "noise_floor",
    "open",
    "partition_dataset",
    "save",
    "to_dataset",
    "to_text",
]
