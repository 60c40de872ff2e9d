"""Writes docs/commands.md from the commands themselves: `python -m pipeline.cli.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from .main import cli

#: Columns of the page.
WIDTH = 88

HEADER = """\
<!-- Written by `python -m pipeline.cli.reference > docs/commands.md`; a test compares. -->
# Commands
"""


def reference() -> str:
    """The page: what `--help` says, of every command."""
    context = _context(cli, None, "pipeline")
    return "\n".join([HEADER, *_sections(cli, context, depth=1)])


def _sections(command: click.Command, context: click.Context, depth: int) -> Iterator[str]:
    if depth > 1:
        yield f"{'#' * min(depth, 4)} `{context.command_path}`\n"
    yield f"```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _sections(child, _context(child, context, name), depth + 1)


def _context(command: click.Command, above: click.Context | None, name: str) -> click.Context:
    settings = dict(cli.context_settings) | {"terminal_width": WIDTH, "max_content_width": WIDTH}
    return click.Context(command, above, info_name=name, **settings)


if __name__ == "__main__":
    sys.stdout.write(reference())
