"""Methods that choose the clients that train."""

from fedjax_fair.selectors import gradients
from fedjax_fair.selectors.agnostic import Agnostic
from fedjax_fair.selectors.by_size import BySize
from fedjax_fair.selectors.clustered import ClusteredBySimilarity, ClusteredBySize
from fedjax_fair.selectors.divfl import DivFL
from fedjax_fair.selectors.drfa import DRFA
from fedjax_fair.selectors.fedcor import FedCor
from fedjax_fair.selectors.oort import Oort
from fedjax_fair.selectors.power_of_choice import PowerOfChoice
from fedjax_fair.selectors.rotation import Rotation
from fedjax_fair.selectors.submodular import Submodular
from fedjax_fair.selectors.subtrunc import SubTrunc
from fedjax_fair.selectors.uniform import Full, RoundRobin, Uniform
from fedjax_fair.selectors.unionfl import UnionFL

__all__ = [
    "DRFA",
    "Agnostic",
    "BySize",
    "ClusteredBySimilarity",
    "ClusteredBySize",
    "DivFL",
    "FedCor",
    "Full",
    "Oort",
    "PowerOfChoice",
    "Rotation",
    "RoundRobin",
    "SubTrunc",
    "Submodular",
    "Uniform",
    "UnionFL",
    "gradients",
]
