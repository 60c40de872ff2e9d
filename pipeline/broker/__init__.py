"""dramatiq-pg's broker, mended: one import changes.

    from pipeline.broker import PostgresBroker

Same table, same states, same lock key, same constructor plus options of its own; stock and mended
processes may share a table. This package needs dramatiq, dramatiq-pg and psycopg2, and nothing of
the pipeline's but `pipeline.outbox`. `docs/broker.md` is the page for shops.

What holds it together:

- A message in hand is a row in state `consumed` whose advisory lock is held by the one session of
  this process that claims: from the claim's statement until the statement that settles it has
  committed. So whoever finds a `consumed` row whose lock is free knows that its worker is gone.
- Whatever settles a message runs on that session. If the session is gone, so is the right to
  settle: a new session takes back only messages that nobody has taken up since, told by the time of
  the claim in `mtime`, which every taker overwrites. That is the owner's token; it needs no column.
- That session is never in a pool and nothing else runs on it. There are never more locks than
  messages in hand.
- Delayed messages are rows that nobody holds until they are due.
"""

from pipeline.broker.broker import PostgresBroker
from pipeline.broker.results import PostgresBackend

__all__ = ["PostgresBackend", "PostgresBroker"]
