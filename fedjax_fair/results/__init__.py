"""Results: recorded during a run by a ``History``, and returned as an ``xarray.Dataset``.

Dimensions:

* ``algorithm``: the methods (``method`` is a parameter of ``Dataset.sel``);
* ``seed``: the runs;
* ``round``: completed rounds at an evaluation, 0 before training;
* ``client``: all clients;
* ``planted_group``: ground-truth groups of clients, if known;
* ``class``: the classes of the data;
* ``training_round`` and ``slot``: every round, and the slots of its cohort.

Variables:

* over ``(seed, round, client)``: ``test_accuracy``, ``test_loss``, ``train_loss`` and
  ``participation``, and ``validation_accuracy`` and ``validation_loss`` if there are validation
  examples;
* over ``(seed, round, class)``: ``class_accuracy``;
* over ``(seed, round)``: every summary metric, named as in ``fedjax_fair.metrics.SUMMARIES``, with
  population and weighting as attributes; those of validation examples begin with ``validation_``;
* over ``(seed, training_round, slot)``: ``cohort_clients``, ``cohort_weights``, ``cohort_loss``,
  ``cohort_steps``, ``cohort_responded`` and ``cohort_nonfinite``;
* over ``(seed, training_round)``, some also over ``slot``: info of the selector and aggregator, as
  ``selection_<name>`` and ``aggregation_<name>``, and ``update_nonfinite``, whether the update was
  not finite and was skipped;
* over ``seed``: ``diverged``, the first such round, or -1;
* over ``(client, class)``, and over ``seed`` if every run has a partition: ``train_examples`` and
  ``test_examples``.
"""

from fedjax_fair.results.comparison import compare, default_metrics, differences, noise_floor
from fedjax_fair.results.datasets import class_based, combine, final_metrics, merge_runs
from fedjax_fair.results.files import open, save
from fedjax_fair.results.history import (
    PARTITION_VARIABLES,
    RECORDED,
    History,
    partition_dataset,
    to_dataset,
)
from fedjax_fair.results.tables import to_text

__all__ = [
    "PARTITION_VARIABLES",
    "RECORDED",
    "History",
    "class_based",
    "combine",
    "compare",
    "default_metrics",
    "differences",
    "final_metrics",
    "merge_runs",
    "noise_floor",
    "open",
    "partition_dataset",
    "save",
    "to_dataset",
    "to_text",
]
