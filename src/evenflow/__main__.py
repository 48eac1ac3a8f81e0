"""``python -m evenflow``, where the command itself is not on the path."""

from evenflow.cli import main

main()
