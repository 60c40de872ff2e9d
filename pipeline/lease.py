"""Keeping what senders have: their places and their deliveries, as long as they are alive.

The database's clock judges every lease. This side only decides when it can no longer be sure that
it has one, by a clock of its own that is read before the statement that extends the lease.
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import psycopg2

from .database import LOCK_TIMEOUT, boot_clock, connect, query, transaction

logger = logging.getLogger(__name__)

#: A sender's place is renewed so often that it is free soon after a death.
PLACE_LEASE = timedelta(seconds=10)

#: Leases are renewed this many times within their length, so that one lost renewal does no harm.
RENEWALS = 3


class Keeper:
    """Renews the places of senders and the leases of their deliveries, in a thread of its own.

    Parameters:
      url: The database.
      lease: Length of a delivery's lease.
    """

    def __init__(self, url: str, *, lease: timedelta) -> None:
        self.url = url
        self.lease = lease
        self.place_lease = min(lease, PLACE_LEASE)
        #: Seconds between two renewals.
        self.interval = self.place_lease.total_seconds() / RENEWALS
        self._held: dict[str, str] = {}
        #: By token: the slot, and until when the place is surely ours.
        self._places: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pipeline-keeper", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def hold(self, delivery_id: str, token: str) -> None:
        """Renew this delivery's lease from now on."""
        with self._lock:
            self._held[delivery_id] = token

    def drop(self, delivery_id: str, token: str) -> None:
        """Let this delivery go, unless it was claimed anew meanwhile."""
        with self._lock:
            if self._held.get(delivery_id) == token:
                del self._held[delivery_id]

    def keep(self, slot: int, token: str, *, taken_at: float) -> None:
        """Renew this place from now on; `taken_at` is `boot_clock` before it was taken."""
        with self._lock:
            self._places[token] = (slot, taken_at + self.place_lease.total_seconds())

    def leave(self, token: str) -> None:
        """Let this place go."""
        with self._lock:
            self._places.pop(token, None)

    def has(self, token: str) -> bool:
        """Whether the place is surely still ours."""
        with self._lock:
            place = self._places.get(token)
        return place is not None and boot_clock() < place[1]

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
            places = dict(self._places)
        if held:
            # First and by itself: it waits for no lock, whatever becomes of the places.
            with transaction(connection) as cursor:
                cursor.execute(
                    query("delivery_extend"),
                    {
                        "ids": list(held),
                        "tokens": list(held.values()),
                        "lease": self.lease,
                    },
                )
        before = boot_clock()
        lost = []
        with transaction(connection, lock_timeout=LOCK_TIMEOUT) as cursor:
            for token, (slot, _) in places.items():
                cursor.execute(
                    query("sender_extend"),
                    {"slot": slot, "token": token, "lease": self.place_lease},
                )
                if cursor.rowcount == 0:
                    lost.append(token)
        with self._lock:
            for token in places.keys() & self._places.keys():
                slot, _ = self._places[token]
                self._places[token] = (slot, before + self.place_lease.total_seconds())
            for token in lost:
                self._places.pop(token, None)
