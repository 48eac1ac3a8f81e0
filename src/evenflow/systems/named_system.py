"""`create`: the layer of a system by its name, or by an object of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from evenflow.checks import unknown
from evenflow.layers.recurrent import Recurrent
from evenflow.runtime.import_path import COLON, announced, import_path, imported
from evenflow.system import System, own_system
from evenflow.systems.network_table import NETWORKS
from evenflow.systems.system_table import SYSTEMS

GROUP = "evenflow.systems"  # of entry points
POSITIONAL = ("num_layers", "bias", "batch_first", "dropout", "bidirectional")  # torch's order


def systems() -> Mapping[str, System]:
    """The table of named systems, read-only.

    >>> systems()["sgornn"].equation
    'h = α f(W x + b + U h) + β h, β <= 1 - 2α, U = R_1 Q_1 ... R_k Q_k'
    """
    return MappingProxyType(SYSTEMS)


def find_system(name: Any) -> System:
    """The system that a name, an import path or an object of the user's own stands for.

    Args:
        name: a row of `systems()`; a name that an installed package announces in its entry points `evenflow.systems`;
            "module:name"; or what `own_system` takes.

    >>> find_system("exprnn").document
    'Lezcano-Casado, Martínez-Rubio 2019'
    """
    if not isinstance(name, str):
        return own_system(name, import_path(name))
    if name in SYSTEMS:
        return SYSTEMS[name]
    others = announced(GROUP)
    path = others.get(name, name)
    if COLON not in path:
        raise ValueError(unknown("system", name, [*SYSTEMS, *NETWORKS, *others]))
    return own_system(imported("system", path), path)


def system_name(name: Any) -> str:
    """The text by which a config names a system, so that another process finds it: of one's own the import path.

    >>> system_name("sgornn")
    'sgornn'
    """
    if isinstance(name, str):
        return name if name in SYSTEMS or name in NETWORKS else announced(GROUP).get(name, name)
    if not hasattr(name, "__qualname__"):
        raise ValueError(
            "system must be a name, an import path, or a class or function with a name of its own, which a config can "
            f"hold, got {name!r}"
        )
    return import_path(name)


def create(name: Any, input_size: int, hidden_size: int, *positional: Any, **options: Any) -> Recurrent:
    """The layer of the system `name`, with the signature of `torch.nn.RNN`.

    Args:
        name: a row of `systems()`; or a system of your own: a cell, a class of layers, a function that makes a layer,
            or its import path, "my_package.cells:mgu".
        input_size, hidden_size: widths of the input and the state.
        positional: further arguments in torch's order, ``num_layers, bias, batch_first, dropout, bidirectional``.
        options: any option of the layer (``num_layers=2``, ``bidirectional=True``, ``activation="oplu"``,
            ``map="householder"``, and the options of that map, or the constants of a cell of your own); it overrides
            the system's setting.

    >>> layer = create("sgornn", 2, 128, num_layers=2)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape, h_n.shape
    (torch.Size([100, 8, 128]), torch.Size([2, 8, 128]))
    """
    if isinstance(name, str) and name in NETWORKS:
        network = NETWORKS[name].network.__name__
        raise ValueError(
            f"system {name!r} has no time and so is no recurrent layer: it is "
            f"evenflow.{network}({input_size}, output_size, width={hidden_size})"
        )
    system = find_system(name)
    if len(positional) > len(POSITIONAL):
        raise ValueError(
            f"create takes at most {', '.join(POSITIONAL)} by position, got {len(positional)} more arguments"
        )
    options = dict(zip(POSITIONAL, positional, strict=False)) | options
    settings = dict(system.options)
    if system.map is not None:
        settings["map"] = system.map
        if options.get("map", system.map) == system.map:
            settings |= system.map_options
    # A layer with `**options` checks the names of options itself.
    parameters = list(inspect.signature(system.layer).parameters.values())
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        allowed = [p.name for p in parameters[2:] if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        for option in options:
            if option not in allowed:
                known = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
                raise ValueError(f"system {name!r} has no option {option!r}; {known}")
    return system.layer(input_size, hidden_size, **settings | options)
