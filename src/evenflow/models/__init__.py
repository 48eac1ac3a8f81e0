"""Models around a layer: embedding and readout, several models trained as one, and generation of sequences."""

from evenflow.models.flat_model import FlatModel
from evenflow.models.generation import generate, stream
from evenflow.models.population import Population
from evenflow.models.sequence_model import SequenceModel

__all__ = ["FlatModel", "Population", "SequenceModel", "generate", "stream"]
