"""Data sets: where they lie, what is known of them, and readers that refuse what is damaged."""

from __future__ import annotations

from .catalog import CATALOG
from .folder import cache_folder, data_folder
from .har import Windows, read_har
from .mnist import read_mnist
from .multilabel import Multilabel, read_multilabel
from .music import read_music
from .source import File, Source
from .treebank import Sentences, character_set, read_characters, read_words, vocabulary
from .ucr import Series, read_ucr

__all__ = [
    "CATALOG",
    "File",
    "Multilabel",
    "Sentences",
    "Series",
    "Source",
    "Windows",
    "cache_folder",
    "character_set",
    "data_folder",
    "read_characters",
    "read_har",
    "read_mnist",
    "read_multilabel",
    "read_music",
    "read_ucr",
    "read_words",
    "vocabulary",
]
