"""The shop's own APScheduler: a job of the shop's, and the pipeline's beside it."""

import signal
from contextlib import closing
from types import FrameType

import psycopg2
from apscheduler.schedulers.blocking import BlockingScheduler
from shop import URL, pipeline


def count_open_tickets() -> None:
    """A job as any shop has one."""
    with closing(psycopg2.connect(URL)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM ticket WHERE state <> 'Done'")
        print("Open tickets:", cursor.fetchone(), flush=True)


def main() -> None:
    scheduler = BlockingScheduler()
    scheduler.add_job(count_open_tickets, "interval", minutes=1)
    schedule = pipeline.schedule(scheduler)

    def stop(signum: int, frame: FrameType | None) -> None:
        scheduler.shutdown(wait=False)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    scheduler.start()
    schedule.close()


if __name__ == "__main__":
    main()
