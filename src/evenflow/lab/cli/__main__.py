"""``python -m evenflow.lab.cli``, for torchrun."""

from evenflow.lab.cli import main

main()
