"""Who trains."""

from fedjax_fair.selectors.by_size import by_size
from fedjax_fair.selectors.uniform import uniform

__all__ = ["by_size", "uniform"]
