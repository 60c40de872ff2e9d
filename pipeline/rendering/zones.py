"""Times in a reader's zone, with the zone always shown."""

import re
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_OFFSET = re.compile(r"(?P<sign>[+-])(?P<hours>\d{2})(?::?(?P<minutes>\d{2}))?")


@lru_cache(maxsize=512)
def zone(name: str | None) -> tuple[tzinfo, str]:
    """The zone of an IANA name, and how to call it; UTC for anything that is not one."""
    if name and name.isprintable() and len(name) <= 100:
        try:
            return ZoneInfo(name), name
        except (LookupError, ValueError, OSError):
            pass
    return UTC, "UTC"


def format_time(moment: datetime, within: tzinfo) -> str:
    """`1 Dec 2026, 09:56 CET`; not by `strftime`, whose words depend on the process's locale.

    Parameters:
      moment(datetime): Aware.
      within(tzinfo): The reader's zone.
    """
    local = moment.astimezone(within)
    return (
        f"{local.day} {_MONTHS[local.month - 1]} {local.year}, "
        f"{local.hour:02}:{local.minute:02} {_abbreviation(local)}"
    )


def _abbreviation(local: datetime) -> str:
    """`CET`; zones without an abbreviation are called by their offset: `UTC+3`, `UTC+5:30`."""
    name = local.tzname() or "UTC"
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        return "UTC" if name == "-00" else name
    hours, minutes = int(offset["hours"]), offset["minutes"]
    if not hours and not minutes:
        return "UTC"
    return f"UTC{offset['sign']}{hours}{f':{minutes}' if minutes and minutes != '00' else ''}"
