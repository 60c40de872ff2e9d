"""Sets the clock of a Python process wrong: put on PYTHONPATH, it is imported before all else.

`PIPELINE_CHAOS_CLOCK` says by how many seconds. The monotonic clocks stay as they are, as with a
machine whose time was set wrong.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import time
from typing import Any

OFF = float(os.environ.get("PIPELINE_CHAOS_CLOCK") or 0)

if OFF:
    Right = dt.datetime
    right = {name: getattr(time, name) for name in ("time", "time_ns", "gmtime", "localtime")}

    class Like(type(Right)):  # type: ignore[misc]
        """What others made, psycopg2 for one, is a datetime still."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, Right)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, Right)

    class Wrong(Right, metaclass=Like):
        """A datetime that asks the wrong clock."""

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            """The wrong time."""
            return Right.now(tz) + dt.timedelta(seconds=OFF)

        @classmethod
        def utcnow(cls) -> Any:
            """The wrong time, without a zone."""
            return Right.now(dt.UTC).replace(tzinfo=None) + dt.timedelta(seconds=OFF)

    def parts(name: str, seconds: float | None = None) -> time.struct_time:
        """`gmtime` or `localtime`: of now, if no time is given."""
        found: time.struct_time = right[name](time.time() if seconds is None else seconds)
        return found

    time.time = lambda: right["time"]() + OFF
    time.time_ns = lambda: right["time_ns"]() + int(OFF * 1e9)
    # Partial objects, for they don't become methods of classes that have them as attributes.
    time.gmtime = functools.partial(parts, "gmtime")
    time.localtime = functools.partial(parts, "localtime")
    dt.datetime = Wrong  # type: ignore[misc]
