"""Models built on a layer: embedding, layer and readout in one; many models as one; generation of sequences."""

from evenflow.models.flat_model import FlatModel
from evenflow.models.generation import generate, stream
from evenflow.models.population import Population
from evenflow.models.sequence_model import SequenceModel

__all__ = ["FlatModel", "Population", "SequenceModel", "generate", "stream"]
