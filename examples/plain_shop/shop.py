"""A small shop: tickets, people who watch them, a job of its own, and mail through the pipeline.

dramatiq shop                        its workers: the shop's job and the pipeline's in one process
python shop.py move 1 Done --by 2    moves a ticket, as the shop's web pages would
"""

import argparse
import os
from contextlib import closing

import dramatiq
import psycopg2
from dramatiq.middleware import AgeLimit, Callbacks, Pipelines, Retries, TimeLimit
from dramatiq_pg import PostgresBroker
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import parse_dsn

from pipeline import Pipeline, enqueue, notify

URL = os.environ["PIPELINE_DATABASE_URL"]

broker = PostgresBroker(
    # 4 connections for each of the two queues, one for each of the 8 threads, and some to spare.
    url={**parse_dsn(URL), "minconn": 4, "maxconn": 24},
    results=False,
    # All but Prometheus, which opens a port and makes folders.
    middleware=[AgeLimit(), TimeLimit(), Callbacks(), Pipelines(), Retries()],
)
dramatiq.set_broker(broker)

# Two more actors on the shop's broker, in a queue of their own.
pipeline = Pipeline(broker)


@dramatiq.actor(queue_name="search")
def reindex(ticket_id: int) -> None:
    """Write down the words that a ticket is found by."""
    with closing(psycopg2.connect(URL)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO search_index (ticket_id, words)"
            " SELECT id, lower(subject || ' ' || state) FROM ticket WHERE id = %s"
            " ON CONFLICT (ticket_id) DO UPDATE SET words = excluded.words",
            (ticket_id,),
        )


def move(connection: Connection, ticket_id: int, state: str, *, by: int) -> None:
    """Move a ticket, tell who watches it, and have it indexed anew: in one transaction."""
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT state FROM ticket WHERE id = %s FOR UPDATE", (ticket_id,))
        row = cursor.fetchone()
        if row is None:
            raise SystemExit(f"There is no ticket {ticket_id}.")
        cursor.execute("UPDATE ticket SET state = %s WHERE id = %s", (state, ticket_id))
        cursor.execute("SELECT person_id FROM watcher WHERE ticket_id = %s", (ticket_id,))
        for (watcher,) in cursor.fetchall():
            if watcher != by:
                notify(
                    cursor,
                    receiver=str(watcher),
                    triggered_by=str(by),
                    entity=("ticket", str(ticket_id)),
                    data={
                        "verb": "updated",
                        "field": "state",
                        "old_value": row[0],
                        "new_value": state,
                    },
                )
        enqueue(cursor, reindex.message(ticket_id))


def main() -> None:
    parser = argparse.ArgumentParser(description="Moves tickets.")
    parser.add_argument("command", choices=["move"])
    parser.add_argument("ticket", type=int)
    parser.add_argument("state")
    parser.add_argument("--by", type=int, required=True)
    given = parser.parse_args()
    with closing(psycopg2.connect(URL)) as connection:
        move(connection, given.ticket, given.state, by=given.by)
    print(f"Ticket {given.ticket} is {given.state}.")


if __name__ == "__main__":
    main()
