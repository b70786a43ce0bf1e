"""``python -m bgtplanner`` is the command line."""

from bgtplanner.cli import main

if __name__ == "__main__":
    main()
