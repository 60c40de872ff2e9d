"""Expected errors, told to the person at the terminal: what is wrong and what to do next."""

from __future__ import annotations

import click


class Refusal(click.ClickException):
    """Something is wrong: exit code 1."""

    exit_code = 1


class UsedWrongly(click.ClickException):
    """An argument, a setting, or a database that isn't prepared: exit code 2."""

    exit_code = 2


def explained(error: Exception) -> click.ClickException | None:
    """The error as it is told, or None when it is a fault of ours that deserves its traceback."""
    # By name, so that a command that needs no database doesn't load what it is told by.
    for kind in type(error).__mro__:
        teller = _TELLERS.get(f"{kind.__module__}.{kind.__qualname__}")
        if teller is not None:
            return teller(error)
    return error if isinstance(error, click.ClickException) else None


def _setting(error: Exception) -> click.ClickException:
    return UsedWrongly(str(error))


def _embedded(error: Exception) -> click.ClickException:
    return Refusal(f"The embedded Postgres: {error}")


def _database(error: Exception) -> click.ClickException:
    import psycopg2
    from psycopg2 import errors

    assert isinstance(error, psycopg2.Error)
    text = _first_line(error)
    if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName | errors.UndefinedColumn):
        return UsedWrongly(
            f"The database lacks something that this program needs ({text}). "
            "`pipeline init` makes it; `pipeline check` tells more."
        )
    if isinstance(error, errors.InsufficientPrivilege):
        return Refusal(
            f"The database does not allow it: {text}. Use a user that may, or have it granted."
        )
    if error.pgcode is None and "invalid dsn" in text:
        return UsedWrongly(f"PIPELINE_DATABASE_URL can't be used: {text}")
    if error.pgcode is None or error.pgcode[:2] in ("08", "28", "3D", "53", "57"):
        return Refusal(
            f"The database can't be used: {text}. PIPELINE_DATABASE_URL says which one it is; "
            "`pipeline check` tells more."
        )
    return Refusal(f"The database refused: {text} ({error.pgcode})")


def _first_line(error: Exception) -> str:
    from pipeline.replies import storable

    text = storable(str(error)).removesuffix(_LIBPQ_HINT)
    return text.removeprefix("connection to server at ").rstrip(". ")


#: What libpq asks after a refused connection, on a second line.
_LIBPQ_HINT = " Is the server running on that host and accepting TCP/IP connections?"

_TELLERS = {
    "pipeline.settings.SettingError": _setting,
    "pipeline.embedded.errors.EmbeddedPostgresError": _embedded,
    "psycopg2.Error": _database,
}
