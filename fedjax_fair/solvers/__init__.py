"""Local training of one client."""

from fedjax_fair.solvers.apfl import APFL
from fedjax_fair.solvers.cell_weighted import CellWeighted
from fedjax_fair.solvers.ditto import Ditto
from fedjax_fair.solvers.fedbabu import FedBABU
from fedjax_fair.solvers.fedbn import FedBN
from fedjax_fair.solvers.feddyn import FedDyn
from fedjax_fair.solvers.fednova import FedNova
from fedjax_fair.solvers.fedper import FedPer
from fedjax_fair.solvers.fedrep import FedRep
from fedjax_fair.solvers.fedsa_lora import FedSALoRA
from fedjax_fair.solvers.fine_tuned import FineTuned
from fedjax_fair.solvers.group_penalty import GroupPenalty
from fedjax_fair.solvers.hetlora import HetLoRA
from fedjax_fair.solvers.ifca import IFCA
from fedjax_fair.solvers.lg_fedavg import LGFedAvg
from fedjax_fair.solvers.local import Local
from fedjax_fair.solvers.mime_lite import MimeLite
from fedjax_fair.solvers.per_fedavg import PerFedAvg
from fedjax_fair.solvers.pfedfair import PFedFair
from fedjax_fair.solvers.pfedme import PFedMe
from fedjax_fair.solvers.propfair import PropFair
from fedjax_fair.solvers.rank_limited import RankLimited
from fedjax_fair.solvers.rolora import RoLoRA
from fedjax_fair.solvers.scaffold import Scaffold
from fedjax_fair.solvers.sgd import SGD

__all__ = [
    "APFL",
    "IFCA",
    "SGD",
    "CellWeighted",
    "Ditto",
    "FedBABU",
    "FedBN",
    "FedDyn",
    "FedNova",
    "FedPer",
    "FedRep",
    "FedSALoRA",
    "FineTuned",
    "GroupPenalty",
    "HetLoRA",
    "LGFedAvg",
    "Local",
    "MimeLite",
    "PFedFair",
    "PFedMe",
    "PerFedAvg",
    "PropFair",
    "RankLimited",
    "RoLoRA",
    "Scaffold",
]
