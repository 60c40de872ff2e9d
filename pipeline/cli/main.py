"""`pipeline`: the group that all commands hang on, and the one place that ends them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from .chaos import chaos
from .check import check
from .deliveries import deliveries
from .demo import demo
from .errors import explained
from .init import init
from .operations import cancel, release, retry
from .processes import scheduler, worker
from .show import show
from .stack import stack
from .status import status

#: The distribution whose version `--version` tells.
DISTRIBUTION = "dramatiq-email-pipeline"


def _print_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from importlib import metadata

    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        version = "of a checkout that is not installed"
    click.echo(f"{DISTRIBUTION} {version}")
    context.exit()


@click.group(
    name="pipeline",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Notification rows in Postgres become stacked emails.

    Settings come from PIPELINE_* environment variables, or from the TOML file that
    PIPELINE_SETTINGS_FILE names. PIPELINE_DATABASE_URL says which database; without it an embedded
    Postgres is used. What you asked for goes to stdout, everything else to stderr.

    Exit codes: 0 all is well; 1 something is wrong, or nothing matched; 2 used wrongly: an
    argument, a setting, or a database that `pipeline init` has not prepared.
    """


for command in (chaos, check, deliveries, demo, init, scheduler, stack, status, worker):
    cli.add_command(command)


for command in (show, retry, release, cancel):
    deliveries.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters:
      arguments: Those of the command line unless given.

    Returns:
      The exit code: 0, 1 or 2 as `pipeline --help` explains them, 130 after Ctrl-C.
    """
    try:
        done = cli.main(args=arguments, prog_name="pipeline", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain of it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:
        told = explained(error)
        if told is None:
            raise
        told.show()
        return told.exit_code
    return done if isinstance(done, int) else 0
