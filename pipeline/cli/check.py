"""`pipeline check`: what would stop it from working."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from .output import STYLES, clean, json_option, print_json, stdout

if TYPE_CHECKING:
    from pipeline.check import Finding


@click.command(short_help="Look for what would stop it from working.")
@json_option
def check(as_json: bool) -> None:
    """Look for what would stop it from working, and say what to do about it.

    Settings, database and schema, rights, clock, old transactions that hold back vacuum, the
    sender's domain, and the relay: it connects, verifies the certificate and logs in, and sends no
    mail. Exit code 1 if anything fails; a warning changes nothing.
    """
    from pipeline.check import check_all

    findings = []
    for finding in check_all(os.environ):
        findings.append(finding)
        if not as_json:
            _print(finding)
    failed = [finding for finding in findings if finding.level == "fail"]
    if as_json:
        print_json({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    if failed:
        raise click.exceptions.Exit(1)


def _print(finding: Finding) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    text, advice = clean(finding.text), clean(finding.advice)
    if not console.is_terminal:
        click.echo(f"{finding.level:<4}  {finding.name:<11}  {text}")
        if advice:
            click.echo(f"{'':19}{advice}")
        return
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=4)
    line.add_column(width=11)
    line.add_column()
    line.add_row(Text(finding.level, STYLES[finding.level]), Text(finding.name, "bold"), Text(text))
    console.print(line)
    if advice:
        console.print(Padding(Text(advice), (0, 0, 0, 19)))
