"""Keeping what a sender has: its place and its deliveries, as long as it is alive.

The database's clock judges every lease. This side only decides when it can no longer be sure that
it has one, by a clock of its own that is read before the statement that extends the lease.
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import psycopg2

from .database import boot_clock, connect, query, transaction

logger = logging.getLogger(__name__)

#: A sender's place is renewed so often that it is free soon after a death.
PLACE_LEASE = timedelta(seconds=10)

#: Leases are renewed this many times within their length, so that one lost renewal does no harm.
RENEWALS = 3


class Keeper:
    """Renews a sender's place and the leases of its deliveries, in a thread of its own.

    Parameters:
      url: The database.
      slot, token: The place.
      lease: Length of a delivery's lease.
      taken_at: `boot_clock` before the place was taken.
    """

    def __init__(
        self, url: str, *, slot: int, token: str, lease: timedelta, taken_at: float
    ) -> None:
        self.url = url
        self.slot = slot
        self.token = token
        self.lease = lease
        self.place_lease = min(lease, PLACE_LEASE)
        #: Seconds between two renewals.
        self.interval = self.place_lease.total_seconds() / RENEWALS
        self._held: dict[str, str] = {}
        self._place_until = taken_at + self.place_lease.total_seconds()
        self._lost = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pipeline-keeper", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._stop.set()
        self._thread.join()

    def hold(self, delivery_id: str, token: str) -> None:
        """Renew this delivery's lease from now on."""
        with self._lock:
            self._held[delivery_id] = token

    def drop(self, delivery_id: str) -> None:
        """Let this delivery go."""
        with self._lock:
            self._held.pop(delivery_id, None)

    @property
    def has_place(self) -> bool:
        """Whether the place is surely still ours."""
        return not self._lost and boot_clock() < self._place_until

    def _loop(self) -> None:
        connection = None
        while not self._stop.wait(self.interval):
            try:
                if connection is None or connection.closed:
                    connection = connect(self.url, application_name="pipeline keeper")
                self._renew(connection)
            except psycopg2.Error as error:
                logger.warning("Leases could not be renewed, trying again: %s", error)
                if connection is not None:
                    connection.close()
        if connection is not None:
            connection.close()

    def _renew(self, connection: psycopg2.extensions.connection) -> None:
        with self._lock:
            held = dict(self._held)
        before = boot_clock()
        with transaction(connection) as cursor:
            cursor.execute(
                query("sender_extend"),
                {"slot": self.slot, "token": self.token, "lease": self.place_lease},
            )
            if cursor.rowcount == 0:
                self._lost = True
            if held:
                cursor.execute(
                    query("delivery_extend"),
                    {
                        "ids": list(held),
                        "tokens": list(held.values()),
                        "lease": self.lease,
                    },
                )
        self._place_until = before + self.place_lease.total_seconds()
