"""What all figures share: which variable to draw, the look of a method, the look of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedjax_fair.text import printable

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

__all__ = ["COLORS", "by_method", "label", "styles", "tidy", "variable", "words"]

# Okabe and Ito's colors, which color-blind readers can distinguish; yellow is too pale for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":")


def variable(results: xr.Dataset, name: str, dims: tuple[str, ...]) -> xr.DataArray:
    """The variable, which must have these dimensions and may have ``algorithm`` besides."""
    fitting = [str(key) for key, v in results.items() if set(v.dims) - {"algorithm"} == set(dims)]
    if name not in fitting:
        raise ValueError(
            f"no {name!r} over {', '.join(dims)} in results: expected one of {sorted(fitting)}."
        )
    return results[name]


def by_method(results: xr.Dataset, name: str, dims: tuple[str, ...]) -> xr.DataArray:
    """The variable, with ``algorithm`` as a dimension even if there is but one."""
    values = variable(results, name, dims)
    if "algorithm" in values.dims:
        return values
    return values.expand_dims(
        "algorithm" if "algorithm" in values.coords else {"algorithm": ["run"]}
    )


def styles(values: xr.DataArray) -> list[dict[str, Any]]:
    """Color and dashes of each method; dashes distinguish those beyond the last color."""
    num_colors = len(COLORS)
    return [
        {"color": COLORS[i % num_colors], "linestyle": _DASHES[i // num_colors % len(_DASHES)]}
        for i in range(values.sizes["algorithm"])
    ]


def label(values: xr.DataArray) -> str:
    """Name and unit for an axis."""
    name = words(values.attrs.get("long_name", values.name))
    unit = words(values.attrs.get("units", "1"))
    return name if unit == "1" else f"{name} ({unit})"


def words(text: object) -> str:
    r"""A name that others chose, of which matplotlib reads nothing as a formula.

    Examples:
        >>> words("$x$")
        '\\$x\\$'
    """
    return printable(text).replace("$", r"\$")


def tidy(axes: Axes) -> None:
    """Leaves a light grid and two spines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
