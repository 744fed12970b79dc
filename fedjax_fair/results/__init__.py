"""Results: recorded during a run by a ``History``, and returned as an ``xarray.Dataset``.

Dimensions:

* ``algorithm``: the methods (``method`` is a parameter of ``Dataset.sel``);
* ``seed``: the runs;
* ``round``: completed rounds at an evaluation, 0 before training;
* ``client``: all clients, a coordinate if they have names (`data.from_arrays`); ids, as in
  ``cohort_clients``, are positions along it;
* ``unseen_client``: clients that are held out of training, if there are any;
* ``planted_group``: ground-truth groups of clients, if known;
* ``sensitive_group``: combinations of values of all sensitive features, if the data has any, over
  which ``fedjax_fair.results.sensitive_groups.feature_counts`` and ``gaps`` sum;
* ``class``: the classes of the data, a coordinate if they have names, as of a table; and ``label``
  and ``prediction`` of people with sensitive features;
* ``device_class``: classes of devices, with a schedule;
* ``training_round`` and ``slot``: every round, and the slots of its cohort.

Variables:

* over ``(seed, round, client)``: ``test_accuracy``, ``test_loss``, ``train_loss``,
  ``participation``, and ``validation_accuracy`` and ``validation_loss`` if there are such examples;
* over ``(seed, round, class)``: ``class_accuracy``;
* of a regression, several labels, text and metrics of the user, the quantities that the attribute
  ``quantities`` names, in the order of `task_metrics.quantities`: ``test_<name>`` over clients,
  ``<name>_mean_clients`` and other summaries, ``output_<name>`` over several targets;
* over ``(seed, round)``: every metric of ``fedjax_fair.metrics.SUMMARIES``, with population and
  weighting as attributes, also with the prefix ``validation_``;
* with sensitive features, metrics of ``fedjax_fair.metrics.SENSITIVE_GROUP_SUMMARIES`` over
  ``(seed, round)``; ``client_demographic_parity_difference`` and so on over ``client`` too; and
  ``sensitive_group_counts``, ``_examples``, ``_accuracy``, ``_loss`` and rates of groups,
  of more than two classes also over ``class``;
* over ``(seed, training_round, slot)``: ``cohort_clients``, ``cohort_weights``, ``cohort_loss``,
  ``cohort_steps``, ``cohort_responded`` and ``cohort_nonfinite``;
* over ``(seed, training_round)``, some also over ``slot``: info of the selector and aggregator, as
  ``selection_<name>`` and ``aggregation_<name>``, and ``update_nonfinite``;
* over ``seed``: ``diverged``, the first such round, or -1;
* with a schedule, ``virtual_time`` and ``client_seconds`` over ``(seed, round)``, ``update_time``
  over ``(seed, training_round)``, ``cohort_staleness``, ``cohort_dispatched`` and
  ``cohort_arrived`` over ``slot`` too, ``class_seconds`` and ``class_lost_seconds`` over
  ``(seed, round, device_class)``, ``device_class_of`` over ``client``, ``is_asynchronous`` over
  ``seed``, and the metrics of ``fedjax_fair.metrics.speed``;
* of runs with unseen clients, over ``(seed, unseen_client)``: ``unseen_accuracy``, ``unseen_loss``,
  ``adapted_accuracy`` and ``adapted_loss``, and over ``seed`` their means, such as
  ``unseen_accuracy_mean_clients``;
* over ``(client, class)``, also over ``seed`` if runs differ: ``train_examples``,
  ``test_examples``.
"""

from fedjax_fair.results import task_metrics
from fedjax_fair.results.client_values import client_summaries, loss_gaps, share_worse_off
from fedjax_fair.results.comparison import (
    compare,
    default_metrics,
    differences,
    noise_floor,
    to_text,
)
from fedjax_fair.results.datasets import (
    at_seconds,
    by_model,
    class_based,
    combine,
    final_metrics,
    merge_runs,
)
from fedjax_fair.results.files import open, save
from fedjax_fair.results.history import (
    PARTITION_VARIABLES,
    RECORDED,
    Devices,
    History,
    partition_dataset,
    to_dataset,
)

__all__ = [
    "PARTITION_VARIABLES",
    "RECORDED",
    "Devices",
    "History",
    "at_seconds",
    "by_model",
    "class_based",
    "client_summaries",
    "combine",
    "compare",
    "default_metrics",
    "differences",
    "final_metrics",
    "loss_gaps",
    "merge_runs",
    "noise_floor",
    "open",
    "partition_dataset",
    "save",
    "share_worse_off",
    "task_metrics",
    "to_dataset",
    "to_text",
]
