"""What all senders know about the relay: whether it works, and until when it is left alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .database import Cursor, only_row, query
from .settings import Settings
from .smtp import Relay, Result


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
        limit = settings.senders * settings.chunk
        if row is not None and row[0]:
            if not row[1]:
                return 0
            limit = 1
        cursor.execute(query("delivery_waiting"), {"limit": limit})
        waiting = only_row(cursor)
        return -(-int(waiting[0]) // settings.chunk)
