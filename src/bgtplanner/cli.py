"""The command line. The help of every command has an example; every command takes ``--json``.

Exit codes: 0 success, 1 failure while running, 2 a request that cannot be carried out, and 3 from
`audit` alone: nothing was refuted, but the attack could not have refuted anything.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

import bgtplanner
from bgtplanner.about import commit
from bgtplanner.commands import audit, data, deploy, docs, ledger, recommend, serving, train
from bgtplanner.commands.options import say
from bgtplanner.errors import BGTPlannerError, InterruptedRunError
from bgtplanner.text import visible

# What click raises, by way of typer: newer ones bring their own click and do not install it.
_Refused: Any = next(of for of in typer.BadParameter.__mro__ if of.__name__ == "ClickException")

app = typer.Typer(
    name="bgtplanner",
    help="Recommend from ratings that stay private, under a budget that cannot be overspent.\n\n"
    "Example: `bgtplanner run` trains on made-up ratings; `bgtplanner docs` has all pages.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of use: a run and what it gives, studies, privacy; groups come last in any case.
for one in (
    *(train.train, train.run, train.resume, recommend.recommend, recommend.predict, serving.serve),
    *(recommend.export, recommend.report, train.compare, train.sweep, ledger.budget, audit.audit),
    docs.docs,
):
    app.command()(one)
app.add_typer(recommend.model_app, name="model")
app.add_typer(data.data_app, name="data")
app.add_typer(ledger.ledger_app, name="ledger")
app.add_typer(deploy.deploy_app, name="deploy")


def _version(wanted: bool) -> None:
    if wanted:
        say(f"bgtplanner {bgtplanner.__version__}")
        say(f"commit: {commit() or 'not recorded: a checkout'}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help=(
    "Print the version, and the commit that it was built from."
))]  # fmt: skip


@app.callback()
def _main(version: _Version = False) -> None:
    del version


def main() -> NoReturn:
    """Turn our errors into one line and an exit code, never a traceback."""
    for stream in (sys.stdout, sys.stderr):  # print "?" for what cannot be encoded
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    code, said = 1, None
    try:
        code = app(prog_name="bgtplanner", standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except _Refused as error:
        vars(error)["message"] = visible(error.message, keep="\n")  # it quotes what was typed
        error.show()
        code = error.exit_code
    except InterruptedRunError as error:
        said = str(error)
    except BGTPlannerError as error:
        code, said = error.exit_code, f"error: {error}"
    except (KeyboardInterrupt, typer.Abort):
        code, said = 1, "interrupted"
    except OSError as error:  # our files raise errors of their own: most likely the output failed
        said = None if isinstance(error, BrokenPipeError) else f"error: the output: {error}"
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # Python would try again at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        said = "error: out of memory; try fewer clients, items or dimensions"
    if said is not None:
        say(said, err=True)
    sys.exit(code if isinstance(code, int) else 0)
