"""``python -m tablepuppet`` is the command ``tablepuppet``."""

from tablepuppet.cli import main

if __name__ == "__main__":  # not where doctests import every module
    main()
