"""The command ``evenflow``, also run by ``python -m evenflow``. It needs the packages of the extra ``lab``."""

import sys


def main() -> None:
    """Run the command line. If a package is not installed, exit with a line that says how to install it."""
    try:
        from evenflow.lab.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("evenflow"):
            raise
        sys.exit(f'evenflow: the command line needs {error.name}, which is not installed: pip install "evenflow[lab]"')
    run()


if __name__ == "__main__":
    main()
