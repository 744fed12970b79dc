"""Which clients train."""

from fedjax_fair.selectors import gradients
from fedjax_fair.selectors.agnostic import agnostic
from fedjax_fair.selectors.by_size import by_size
from fedjax_fair.selectors.clustered import clustered_by_similarity, clustered_by_size
from fedjax_fair.selectors.divfl import divfl
from fedjax_fair.selectors.drfa import drfa
from fedjax_fair.selectors.fixed import full, round_robin
from fedjax_fair.selectors.power_of_choice import power_of_choice
from fedjax_fair.selectors.submodular import submodular
from fedjax_fair.selectors.subtrunc import subtrunc
from fedjax_fair.selectors.uniform import uniform
from fedjax_fair.selectors.unionfl import unionfl

__all__ = [
    "agnostic",
    "by_size",
    "clustered_by_similarity",
    "clustered_by_size",
    "divfl",
    "drfa",
    "full",
    "gradients",
    "power_of_choice",
    "round_robin",
    "submodular",
    "subtrunc",
    "uniform",
    "unionfl",
]
