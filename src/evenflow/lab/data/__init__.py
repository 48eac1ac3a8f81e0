"""The real data sets: a catalogue, downloads, and readers that check every file."""

from __future__ import annotations

from .catalog import CATALOG
from .cifar_files import read_cifar
from .folder import data_folder
from .har_files import Windows, read_har
from .mnist_files import read_mnist
from .multilabel_files import Multilabel, read_multilabel
from .music_files import read_music
from .own_npz import read_npz
from .own_sequences import OwnSequences, padded
from .own_table import read_table
from .source import File, Source
from .treebank_files import Sentences, character_set, read_characters, read_words, vocabulary
from .ucr_files import UcrSeries, read_ucr

__all__ = [
    "CATALOG",
    "File",
    "Multilabel",
    "OwnSequences",
    "Sentences",
    "Source",
    "UcrSeries",
    "Windows",
    "character_set",
    "data_folder",
    "padded",
    "read_characters",
    "read_cifar",
    "read_har",
    "read_mnist",
    "read_multilabel",
    "read_music",
    "read_npz",
    "read_table",
    "read_ucr",
    "read_words",
    "vocabulary",
]
