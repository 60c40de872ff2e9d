"""The SQL files of this package, for one schema and prefix."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from dramatiq_pg.utils import quote_ident

from pipeline.outbox import QueueTable

#: dramatiq-pg's advisory lock of a message: bytes 13 to 20 of a SHA-256, minus 2^63.
LOCK_KEY = """
    (
        (
            'x' || encode(
                substring(
                    sha256(convert_to(
                        q.queue_name || coalesce(q.message ->> 'message_id', q.message_id::text),
                        'UTF8'
                    ))
                    FROM 13 FOR 8
                ),
                'hex'
            )
        )::bit(64) # x'8000000000000000'::bit(64)
    )::bigint
"""

#: The owner's token: when the message was claimed, in microseconds.
CLAIMED_AT = "(extract(epoch FROM q.mtime) * 1000000)::bigint"

#: When a delayed message is due, as jsonb, which compares without ever failing. None: at once.
ETA = "coalesce(q.message #> '{options,eta}', '0'::jsonb)"

_PARAMETER = re.compile(r"%\((\w+)\)s")


@cache
def _file(name: str) -> str:
    text = resources.files("pipeline.broker").joinpath("sql", f"{name}.sql").read_text("utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


class Queries:
    """SQL with the names of one queue's table filled in.

    Parameters:
      schema: The schema of the table and of the type of its states.
      prefix: What stands before `queue` and `state` in their names.
    """

    def __init__(self, schema: str, prefix: str) -> None:
        self.table = QueueTable(schema, f"{prefix}queue")
        self.state_type = f"{quote_ident(schema)}.{quote_ident(f'{prefix}state')}"

    def text(self, name: str, **identifiers: str) -> str:
        """The SQL of one file, with parameters as they stand there."""
        filled = _file(name)
        replacements = {
            "lock_key": LOCK_KEY,
            "token": CLAIMED_AT,
            "eta": ETA,
            "plain_eta": f"({ETA.replace('q.', '')})",
            "queue": str(self.table),
            "state": self.state_type,
            **identifiers,
        }
        for placeholder, value in replacements.items():
            filled = filled.replace(f"{{{placeholder}}}", value)
        return filled

    def client_text(self, name: str) -> str:
        """The same for `cursor.execute` with parameters: a per cent sign in a name is doubled."""
        pieces = _PARAMETER.split(self.text(name))
        return "".join(
            piece.replace("%", "%%") if index % 2 == 0 else f"%({piece})s"
            for index, piece in enumerate(pieces)
        )

    def prepared(self, name: str) -> tuple[str, list[str]]:
        """A PREPARE statement, and the names of its parameters in the order of EXECUTE's."""
        names: list[str] = []

        def number(match: re.Match[str]) -> str:
            parameter = match.group(1)
            if parameter not in names:
                names.append(parameter)
            return f"${names.index(parameter) + 1}"

        return f"PREPARE {name} AS {_PARAMETER.sub(number, self.text(name))}", names


def array(values: Iterable[object]) -> str:
    """A Postgres array as text, of which the statement says the type.

    psycopg2's own arrays are ARRAY[...] of a type that it guesses, which EXECUTE doesn't convert.
    """
    quoted = (str(value).replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"
