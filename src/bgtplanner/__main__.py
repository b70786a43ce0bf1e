"""The command line, as a process of its own: ``bgtplanner``, or ``python -m bgtplanner``."""

import atexit
import gc
from typing import NoReturn

from bgtplanner import cli

# New objects after which Python looks for garbage. Importing and compiling make objects that stay,
# more than 200,000 of them: looking after every 700 takes a fifteenth of the time of a short run.
_SELDOM = 300_000


def main() -> NoReturn:
    """Run one command. The process ends with it, so that little garbage is worth looking for."""
    gc.set_threshold(_SELDOM)
    atexit.register(gc.freeze)  # else Python looks through all that is left once more
    cli.main()


if __name__ == "__main__":
    main()
