"""Models around a layer: embedding and readout, populations, generation, bundles on disk, and prediction."""

from evenflow.models.bundle import load, save
from evenflow.models.data_schema import DataColumn, DataSchema
from evenflow.models.flat_model import FlatModel
from evenflow.models.generation import generate, stream
from evenflow.models.population import Population
from evenflow.models.predictor import Predictor
from evenflow.models.pretrained_bundles import pretrained
from evenflow.models.sequence_model import SequenceModel

__all__ = [
    "DataColumn",
    "DataSchema",
    "FlatModel",
    "Population",
    "Predictor",
    "SequenceModel",
    "generate",
    "load",
    "pretrained",
    "save",
    "stream",
]
