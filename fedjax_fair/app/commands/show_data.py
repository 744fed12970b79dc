"""Command that describes and plots the partition of data over clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from fedjax_fair.app.commands.data import client_counts
from fedjax_fair.app.experiment_data import load_data
from fedjax_fair.app.settings.config import Config, DataConfig
from fedjax_fair.app.settings.presets import resolve
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.data import FederatedData, describe_bias
from fedjax_fair.report import bias_gaps, plots
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = ["DataShow"]

_MAX_ROWS = 100

Output = Annotated[str | None, tyro.conf.arg(aliases=["-o"], metavar="FILE", help_behavior_hint="")]


@dataclass(frozen=True)
class DataShow:
    """Describes a partition, and plots the examples of each client."""

    data: DataConfig = field(default_factory=DataConfig)

    output: Output = None
    """File of the plot, such as partition.png; of the partition `biased`, of gaps."""

    def __call__(self) -> None:
        if self.output is not None and not Path(self.output).suffix:
            raise ValueError(f"output={self.output!r}: expected a file such as partition.png.")
        # Defaults for another partition are not used by this one.
        config = drop_unused_settings(resolve(Config(data=self.data)), base=Config())
        federation, unseen = load_data(config)
        print(federation)
        if unseen is not None:
            print(f"\nUnseen clients\n{unseen}")
        if federation.sensitive_names is not None:
            print(f"\n{client_counts(federation)}")
            if federation.num_classes == 2 and federation.num_partitions is None:
                print(f"\n{_format_bias(federation)}")
        if self.output is not None:
            is_biased = federation.bias is not None and federation.sensitive_names is not None
            is_biased = is_biased and federation.num_partitions is None
            draw = (lambda data: bias_gaps(describe_bias(data))) if is_biased else plots.partition
            draw(federation).savefig(self.output, dpi=150)
            print(f"Plot: {escape_control_chars(self.output)}")


def _format_bias(federation: FederatedData) -> str:
    """Formats how labels depend on sensitive features at each client."""
    table = describe_bias(federation).round(3).replace(-0.0, 0.0)
    shown = table.head(_MAX_ROWS).astype(dict.fromkeys(("client", "feature", "value"), str))
    lines = shown.to_string(index=False, na_rep="-").splitlines()
    left = len(table) - len(shown)
    lines += [f"... ({left:,} more rows)"] if left else []
    return "\n".join(escape_control_chars(line) for line in lines)
