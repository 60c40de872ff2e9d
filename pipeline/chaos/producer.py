"""An application that writes notifications until it is stopped.

Run by `python -m pipeline.chaos.producer`. Each notification has a token that its mail will tell.
What has been committed is written down, one line a transaction, in a file that a killed process
leaves whole.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from contextlib import closing
from pathlib import Path

import psycopg2

from pipeline.database import connect, query, transaction

#: Rows a transaction, at the most.
BATCH = 8

#: Seconds after which to look for the database again.
PAUSE = 0.2


def main() -> None:
    """Write, and go on after whatever happens to the database."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True, help="First part of the tokens: n1x2")
    parser.add_argument("--written", type=Path, required=True)
    parser.add_argument("--rate", type=float, required=True, help="Notifications a second.")
    parser.add_argument("--receivers", type=int, required=True)
    parser.add_argument("--items", type=int, required=True)
    arguments = parser.parse_args()
    url = os.environ["PIPELINE_DATABASE_URL"]
    draw = random.Random(arguments.name)
    number = 0
    with arguments.written.open("ab", buffering=0) as written:
        due = time.monotonic()
        while True:
            try:
                with closing(connect(url, application_name="pipeline producer")) as connection:
                    while True:
                        count = draw.randint(1, BATCH)
                        tokens = [f"{arguments.name}x{number + n}" for n in range(count)]
                        number += count
                        rows = {
                            "tokens": tokens,
                            "receivers": [
                                f"p{draw.randrange(arguments.receivers)}" for _ in tokens
                            ],
                            "items": [str(draw.randrange(arguments.items)) for _ in tokens],
                            "urgent": [draw.random() < 0.1 for _ in tokens],
                        }
                        with transaction(connection) as cursor:
                            cursor.execute(query("chaos_notify"), rows)
                        written.write((" ".join(tokens) + "\n").encode())
                        due = max(due + count / arguments.rate, time.monotonic() - 1)
                        time.sleep(max(due - time.monotonic(), 0))
            except psycopg2.Error:
                # Whether that was committed nobody knows; its tokens are not used again.
                time.sleep(PAUSE)


if __name__ == "__main__":
    main()
