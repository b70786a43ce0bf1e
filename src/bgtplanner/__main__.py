"""The command line, as a process of its own: ``bgtplanner``, or ``python -m bgtplanner``."""

from bgtplanner.cli import main

if __name__ == "__main__":
    main()
