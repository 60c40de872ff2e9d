"""The bare loop that sending is compared with: it renders the same mails and hands them to smtplib.

    python -m benchmarks.bare_loop URL PORT COUNT THREADS

Reads COUNT deliveries first; then each thread renders and sends its share over one kept session,
without a database, a lease or a marker. Waits for a line on standard input, and prints how many
seconds it took.
"""

from __future__ import annotations

import smtplib
import sys
import threading
import time
from contextlib import closing

from pipeline import Settings
from pipeline.database import connect
from pipeline.digest import Notification, make_digest
from pipeline.reading import Closing, Stack, Subject, read_notifications, read_stack
from pipeline.rendering import render


def read(url: str, count: int) -> list[tuple[Stack, list[Notification], str]]:
    """Everything that the mails are made of: people and item, rows, and Message-IDs."""
    stacks = []
    with closing(connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT id::text, receiver_id, entity_name, entity_identifier, notification_count, "
            "message_id FROM pipeline.delivery LIMIT %s",
            (count,),
        )
        for *subject, message_id in cursor.fetchall():
            stack = read_stack(cursor, Subject(*subject))
            assert not isinstance(stack, Closing)
            rows = read_notifications(cursor, [subject[0]])[subject[0]]
            stacks.append((stack, rows, message_id))
    return stacks


def send(
    port: int, settings: Settings, stacks: list[tuple[Stack, list[Notification], str]]
) -> None:
    """One thread's share."""
    with smtplib.SMTP("127.0.0.1", port, local_hostname="bench.example") as server:
        for stack, rows, message_id in stacks:
            digest = make_digest(rows, entity=stack.entity, people=stack.people)
            mail = render(
                digest,
                stack.recipient,
                mail_from=settings.mail_from,
                message_id=message_id,
                date=stack.read_at,
            )
            server.sendmail(mail.envelope_from, [mail.envelope_to], mail.content)


def main() -> None:
    """Read, wait for the word, send, and tell."""
    url, port, count, threads = sys.argv[1], *map(int, sys.argv[2:5])
    settings = Settings(mail_from="Tracker <tracker@bench.example>")
    stacks = read(url, count)
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    at_work = [
        threading.Thread(target=send, args=(port, settings, stacks[index::threads]))
        for index in range(threads)
    ]
    for thread in at_work:
        thread.start()
    for thread in at_work:
        thread.join()
    print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
