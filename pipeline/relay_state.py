"""What all senders know about the relay: whether it works, and until when it is left alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .database import Cursor, only_row, query
from .settings import Settings
from .smtp import Relay, Result

#: Mail that has waited for this long is not about to be taken by a sender that is at work.
PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class RelayState:
    """One relay, as the database knows it.

    Parameters:
      name: `host:port`.
    """

    name: str
    settings: Settings

    @classmethod
    def of(cls, settings: Settings) -> RelayState:
        """The relay that the settings name."""
        return cls(Relay.from_url(settings.smtp_url).name, settings)

    def enter(self, cursor: Cursor) -> str:
        """May a sender talk to it: `open`, `probe` (one mail, to see whether it works), `wait`."""
        # Whoever tries it has a lease's time before somebody else may.
        cursor.execute(query("relay_enter"), {"name": self.name, "hold": self.settings.lease})
        row = only_row(cursor)
        return str(row[0])

    def slot(self, cursor: Cursor) -> float:
        """Take the next moment at which a message may go to it.

        Returns:
          Seconds from now; 0 where no limit is set.
        """
        if self.settings.relay_rate is None:
            return 0.0
        # If it got lost with the server, a few messages would go too early: no need for the disk.
        cursor.execute("SET LOCAL synchronous_commit = off")
        interval = timedelta(seconds=1 / self.settings.relay_rate)
        cursor.execute(query("relay_slot"), {"name": self.name, "interval": interval})
        wait: timedelta = only_row(cursor)[0]
        return wait.total_seconds()

    def trouble(self, cursor: Cursor, result: Result, *, is_probe: bool) -> timedelta:
        """It failed: leave it alone.

        Returns:
          For how long.
        """
        cursor.execute(
            query("relay_trouble"),
            {
                "name": self.name,
                "pause": self.settings.relay_pause,
                "pause_cap": self.settings.relay_pause_cap,
                "reason": result.reason,
                "smtp_code": result.smtp_code,
                "is_probe": is_probe,
            },
        )
        row = only_row(cursor)
        pause: timedelta = row[0]
        return pause

    def stay_on_trial(self, cursor: Cursor) -> None:
        """It was to be tried and there was nothing to try it with: the next sender may."""
        cursor.execute(query("relay_stay_on_trial"), {"name": self.name})

    def well(self, cursor: Cursor) -> None:
        """It works."""
        cursor.execute(query("relay_well"), {"name": self.name})

    def useful_senders(self, cursor: Cursor) -> int:
        """How many senders have something to do now: by what is due, and by the relay's health."""
        settings = self.settings
        cursor.execute(query("relay_state"), {"name": self.name})
        row = cursor.fetchone()
        on_trial = row is not None and row[0]
        if row is not None and on_trial and not row[1]:
            return 0
        limit = 1 if on_trial else settings.senders * settings.chunk
        cursor.execute(query("delivery_waiting"), {"limit": limit, "patience": PATIENCE})
        due, busy = only_row(cursor)
        # Who tries the relay has said so: those that are busy are so with something else.
        return -(-int(due) // settings.chunk) + int(busy)
