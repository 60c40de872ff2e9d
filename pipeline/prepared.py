"""The few statements that every mail takes, parsed and planned once a session.

To plan them takes the server about as long as to run them. Behind a pooler that gives each
transaction another session, such as pgbouncer, there is nothing to keep them in: they are sent as
they are.
"""

from __future__ import annotations

import re
from typing import Any

from .database import SESSION_LIMITS, Connection, Statement, only_row, together

#: A parameter, and the type that the statement casts it to.
_PARAMETER = re.compile(r"%\((\w+)\)s(::\w+(?:\[\])?)?")
_COMMENT = re.compile(r"--[^\n]*")


class Prepared:
    """Runs statements over one connection.

    Parameters:
      connection: In autocommit mode, outside a transaction.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._is_own: bool | None = None
        #: By text: the EXECUTE that runs it, with the parameters.
        self._known: dict[str, str] = {}

    def run(self, *statements: Statement) -> list[tuple[Any, ...]]:
        """Run statements as one transaction, in one round trip: see `database.together`.

        Returns:
          The rows of the last one, if it gives any.
        """
        if not self._has_own_session():
            return together(self.connection, *statements)
        return together(self.connection, *map(self._executed, statements), limited=True)

    def _executed(self, statement: Statement) -> Statement:
        text, parameters = statement
        if text not in self._known:
            self._known[text] = self._prepare(text)
        return self._known[text], parameters

    def _prepare(self, text: str) -> str:
        name = f"pipeline_{len(self._known)}"
        # An array is text to EXECUTE unless it is told otherwise.
        casts: dict[str, str] = {}

        def numbered(match: re.Match[str]) -> str:
            parameter, cast = match[1], match[2] or ""
            casts.setdefault(parameter, cast)
            return f"${list(casts).index(parameter) + 1}{cast}"

        numbered_text = _PARAMETER.sub(numbered, _COMMENT.sub("", text))
        with self.connection.cursor() as cursor:
            cursor.execute(f"PREPARE {name} AS {numbered_text}")
        places = ", ".join(f"%({parameter})s{cast}" for parameter, cast in casts.items())
        return f"EXECUTE {name} ({places});"

    def _has_own_session(self) -> bool:
        """Whether the process that this connection was made to is the one that answers.

        A pooler gives its clients process ids of its own making.
        """
        if self._is_own is None:
            with self.connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                (pid,) = only_row(cursor)
                if pid == self.connection.info.backend_pid:
                    cursor.execute(SESSION_LIMITS)
                    self._is_own = True
                else:
                    self._is_own = False
        return self._is_own
