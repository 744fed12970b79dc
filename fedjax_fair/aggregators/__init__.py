"""Fair and robust aggregation of updates."""

from fedjax_fair.aggregators.aaggff import AAggFF
from fedjax_fair.aggregators.adafed import AdaFed
from fedjax_fair.aggregators.area import AREA
from fedjax_fair.aggregators.ca2fl import CA2FL
from fedjax_fair.aggregators.equitable import Equitable
from fedjax_fair.aggregators.fair_fate import FairFATE
from fedjax_fair.aggregators.fairfed import FairFed
from fedjax_fair.aggregators.fed_async import FedAsync
from fedjax_fair.aggregators.fed_buff import FedBuff
from fedjax_fair.aggregators.fed_stale_weight import FedStaleWeight
from fedjax_fair.aggregators.feddyn_server import FedDynMean
from fedjax_fair.aggregators.fedex_lora import FedEx
from fedjax_fair.aggregators.fedfa import FedFA
from fedjax_fair.aggregators.fedfb import FedFBMean
from fedjax_fair.aggregators.fedfv import FedFV
from fedjax_fair.aggregators.fedheal import FedHEAL
from fedjax_fair.aggregators.fedit import FedIT
from fedjax_fair.aggregators.fedlf import FedLF
from fedjax_fair.aggregators.fedmdfg import FedMDFG
from fedjax_fair.aggregators.fedmgda import FedMGDA
from fedjax_fair.aggregators.fedminmax import FedMinMaxMean
from fedjax_fair.aggregators.fednova_server import FedNovaMean
from fedjax_fair.aggregators.fedpw import FedPW
from fedjax_fair.aggregators.flexlora import FlexLoRA
from fedjax_fair.aggregators.fltrust import FLTrust
from fedjax_fair.aggregators.gifair import GIFAIR
from fedjax_fair.aggregators.hetlora_server import HetLoRAMean
from fedjax_fair.aggregators.ifca_server import IFCAMean
from fedjax_fair.aggregators.lora_fair import LoRAFair
from fedjax_fair.aggregators.loss_gap import LossGap
from fedjax_fair.aggregators.mean import Mean
from fedjax_fair.aggregators.mime_lite_server import MimeLiteMean
from fedjax_fair.aggregators.q_fedavg import QFedAvg
from fedjax_fair.aggregators.reweighing import ReweighingMean
from fedjax_fair.aggregators.robust import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    NormClipping,
    TrimmedMean,
)
from fedjax_fair.aggregators.scaffold_server import ScaffoldMean
from fedjax_fair.aggregators.shapfed import ShapFed
from fedjax_fair.aggregators.staleness_factors import Constant, Hinge, Polynomial
from fedjax_fair.aggregators.tilted import Tilted
from fedjax_fair.aggregators.with_server_optimizer import WithServerOptimizer

__all__ = [
    "AREA",
    "CA2FL",
    "GIFAIR",
    "AAggFF",
    "AdaFed",
    "CenteredClipping",
    "Constant",
    "Equitable",
    "FLTrust",
    "FairFATE",
    "FairFed",
    "FedAsync",
    "FedBuff",
    "FedDynMean",
    "FedEx",
    "FedFA",
    "FedFBMean",
    "FedFV",
    "FedHEAL",
    "FedIT",
    "FedLF",
    "FedMDFG",
    "FedMGDA",
    "FedMinMaxMean",
    "FedNovaMean",
    "FedPW",
    "FedStaleWeight",
    "FlexLoRA",
    "GeometricMedian",
    "HetLoRAMean",
    "Hinge",
    "IFCAMean",
    "Krum",
    "LoRAFair",
    "LossGap",
    "Mean",
    "Median",
    "MimeLiteMean",
    "NormClipping",
    "Polynomial",
    "QFedAvg",
    "ReweighingMean",
    "ScaffoldMean",
    "ShapFed",
    "Tilted",
    "TrimmedMean",
    "WithServerOptimizer",
]
