"""Figure of the bias of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.report import drawing

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["bias_gaps"]


def bias_gaps(table: pd.DataFrame) -> Figure:
    """Plots the gap in base rates of each client, with the requested one.

    Lines are two standard deviations over random examples, so that a line across zero may be of a
    client without bias.

    Args:
        table: Result of `fedjax_fair.data.describe_bias`.

    Examples:
        >>> import pandas as pd
        >>> row = {"client": "a", "feature": "sex", "value": "M", "gap": 0.1, "gap_sd": 0.02}
        >>> bias_gaps(pd.DataFrame([row])).axes[0].get_title(loc="left")
        'sex'
    """
    from matplotlib.figure import Figure

    features = list(dict.fromkeys(table["feature"]))
    figure = Figure(figsize=(7.0, 0.6 + 2.2 * len(features)), layout="constrained")
    for axes, feature in zip(
        figure.subplots(len(features), 1, squeeze=False)[:, 0], features, strict=True
    ):
        own = table[table["feature"] == feature]
        clients, values = (list(dict.fromkeys(own[name])) for name in ("client", "value"))
        width = 0.7 / len(values)
        for number, value in enumerate(values):
            rows = own[own["value"] == value]
            at = np.array([clients.index(each) for each in rows["client"]])
            at = at + width * (number - (len(values) - 1) / 2)
            color = drawing.COLORS[number % len(drawing.COLORS)]
            gap, ends = 100 * rows["gap"], 200 * rows["gap_sd"]
            label = f"{drawing.escape_mathtext(value)} less other values"
            axes.plot(at, gap, "o", color=color, markersize=5, label=label)
            axes.vlines(at, gap - ends, gap + ends, color=color, linewidth=1.2)
            if "requested_gap" in rows:
                requested = 100 * rows["requested_gap"]
                label = "requested" if number == 0 else None
                ends = at - width / 2, at + width / 2
                axes.hlines(requested, *ends, color="0.2", linewidth=1.5, label=label)
        axes.axhline(0, color="0.5", linewidth=1)
        drawing.style_axes(axes)
        axes.grid(False, axis="x")
        axes.set_xticks(range(len(clients)), [drawing.escape_mathtext(each) for each in clients])
        axes.set_title(drawing.escape_mathtext(feature), loc="left")
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.supxlabel("Client", size=10)
    figure.supylabel("Gap in base rates (points)", size=10)
    return figure
