"""``python -m evenflow.cli``, for torchrun."""

from evenflow.cli import main

main()
