"""Writes what happens in the made-up tracker into the tables, as an application would."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from pipeline.database import query, transaction

from .activity import Tracker
from .installation import TRACKER_URL
from .items import Item
from .rows import Row

#: Rows in one statement at the most.
PAGE = 1000


class Writer:
    """An application: each call of `write` is one transaction of its.

    Parameters:
      connection: In autocommit mode.
    """

    def __init__(self, connection: Connection, tracker: Tracker) -> None:
        self.connection = connection
        self._items = {item.id: item for item in tracker.items}
        with transaction(connection) as cursor:
            execute_values(
                cursor,
                query("demo_recipients"),
                [
                    (
                        person.id, person.email, person.display_name, person.locale,
                        person.time_zone, person.is_active,
                    )
                    for person in tracker.people
                ],
            )  # fmt: skip
            self._show(cursor, tracker.items)

    def write(self, rows: Sequence[Row]) -> list[str]:
        """Write notifications, and how the items are shown that they are about.

        Returns:
          The notifications' ids.
        """
        if not rows:
            return []
        with transaction(self.connection) as cursor:
            written = execute_values(
                cursor,
                query("demo_notifications"),
                [
                    (
                        row.receiver_id, row.triggered_by_id, "issue", row.entity_identifier,
                        json.dumps(row.data), row.is_urgent,
                    )
                    for row in rows
                ],
                page_size=PAGE,
                fetch=True,
            )  # fmt: skip
            self._show(
                cursor,
                [self._items[identifier] for identifier in {row.entity_identifier for row in rows}],
            )
        return [id_ for (id_,) in written]

    def _show(self, cursor: Cursor, items: Iterable[Item]) -> None:
        # One project has rows in `entity`; of the others the notifications tell enough.
        known = [
            ("issue", item.id, item.reference, item.name, TRACKER_URL + item.path)
            for item in items
            if item.project.identifier == "WEB"
        ]
        if known:
            execute_values(cursor, query("demo_entities"), known)
