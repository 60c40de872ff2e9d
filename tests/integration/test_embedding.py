"""A pipeline on a broker that a shop made, beside the shop's own actors, middleware and jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dramatiq.broker
import psycopg2
import pytest
import sqlalchemy
from apscheduler.executors.pool import ProcessPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from dramatiq import Broker, Middleware, Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import (
    AgeLimit,
    Callbacks,
    Pipelines,
    Prometheus,
    Retries,
    ShutdownNotifications,
    TimeLimit,
)
from dramatiq.results import Results
from dramatiq_pg import PostgresBackend, PostgresBroker, generate_init_sql
from dramatiq_pg import broker as dramatiq_pg_broker
from dramatiq_pg import results as dramatiq_pg_results

from pipeline import Pipeline, SettingError, Settings, enqueue, notify
from pipeline.broker import PostgresBroker as MendedBroker
from pipeline.process import make_broker
from tests.support.installation import QUICK, Installation
from tests.support.postgres import execute
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def settings(database_url: str, server: ScriptedServer) -> Settings:
    return replace(
        QUICK,
        database_url=database_url,
        smtp_url=server.url,
        stack_every=timedelta(seconds=1),
        recover_every=timedelta(milliseconds=500),
    )


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """dramatiq's global broker and dramatiq-pg's global SQL are the next test's too."""
    before = dramatiq.broker.global_broker
    yield
    dramatiq.broker.global_broker = before
    dramatiq_pg_broker.QUERIES.build_queries("dramatiq", "")
    dramatiq_pg_results.QUERIES.build_queries("dramatiq", "")


@contextmanager
def stock_broker(
    url: str,
    middleware: list[Middleware] | None = None,
    *,
    maxconn: int = 20,
    kind: type[PostgresBroker] = PostgresBroker,
    **options: Any,
) -> Iterator[PostgresBroker]:
    """dramatiq-pg's own, as a shop makes it; or the mended one."""
    dsn = {**psycopg2.extensions.parse_dsn(url), "minconn": 0, "maxconn": maxconn}
    options = {"results": False, **options}
    made = kind(url=dsn, middleware=middleware or [], **options)
    try:
        yield made
    finally:
        made.pool.closeall()


@contextmanager
def working(broker: Broker, **options: Any) -> Iterator[Worker]:
    worker = Worker(broker, worker_threads=2, **options)
    # As dramatiq's command line does; time limits begin to be watched.
    broker.emit_after("process_boot")
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


@contextmanager
def scheduling(pipeline: Pipeline) -> Iterator[None]:
    scheduler = BackgroundScheduler()
    schedule = pipeline.schedule(scheduler)
    scheduler.start()
    try:
        yield
    finally:
        scheduler.shutdown()
        schedule.close()


def strictest() -> list[Middleware]:
    """Defaults that would end, drop or repeat our actors if they applied to them."""
    return [
        AgeLimit(max_age=1),
        TimeLimit(time_limit=100, interval=20),
        ShutdownNotifications(notify_shutdown=True),
        Callbacks(),
        Pipelines(),
        Retries(retry_when=lambda retries, exception: True),
    ]


def lacking(*absent: type[Middleware]) -> Callable[[], list[Middleware]]:
    """Dramatiq's usual middleware without these."""

    def made() -> list[Middleware]:
        usual = (AgeLimit, TimeLimit, ShutdownNotifications, Callbacks, Pipelines, Retries)
        return [each() for each in usual if each not in absent]

    return made


@pytest.mark.parametrize(
    ("middleware", "options"),
    [
        (lacking(), {}),
        (lacking(Retries), {}),
        (lacking(TimeLimit), {}),
        (lacking(ShutdownNotifications, AgeLimit), {}),
        (list, {}),
        (lacking(), {"results": True}),
        (strictest, {"results": True}),
        (lacking(), {"results": True, "schema": "Shop's jobs", "prefix": "my_"}),
        (lacking(), {"kind": MendedBroker}),
        (lacking(), {"kind": MendedBroker, "wake": "poll", "schema": "jobs", "prefix": "my_"}),
    ],
    ids=[
        "usual",
        "no Retries",
        "no TimeLimit",
        "no ShutdownNotifications, no AgeLimit",
        "no middleware",
        "with results",
        "strictest",
        "schema and prefix",
        "mended",
        "mended, polling, schema and prefix",
    ],
)
def test_it_runs_beside_a_shops_actors_on_its_broker(
    settings: Settings,
    server: ScriptedServer,
    middleware: Callable[[], list[Middleware]],
    options: dict[str, Any],
) -> None:
    """Whatever middleware the shop has, its jobs and our mails are done, and nothing else is."""
    url = settings.url
    if "schema" in options:
        execute(url, generate_init_sql(options["schema"], options["prefix"]))
    execute(url, "INSERT INTO pipeline.recipient VALUES ('42', 'ann@shop.example', 'Ann')")
    # Longer than the strictest time limit.
    server.add(Rule("rcpt", delay=0.3))
    done: list[int] = []
    theirs = StubBroker(middleware=[])
    dramatiq.set_broker(theirs)
    with stock_broker(url, middleware(), **options) as broker:

        def remember(number: int) -> None:
            done.append(number)

        job = dramatiq.actor(remember, broker=broker, queue_name="shop")
        job.options["max_age"] = 60_000
        before = list(broker.middleware)
        pipeline = Pipeline(broker, settings)

        assert broker.get_declared_actors() == {"remember", "pipeline.stack", "pipeline.send"}
        assert broker.middleware[:-1] == before
        assert dramatiq.broker.global_broker is theirs
        assert theirs.get_declared_actors() == set()

        with working(broker), scheduling(pipeline):
            with closing(psycopg2.connect(url)) as connection, connection:
                cursor = connection.cursor()
                notify(cursor, receiver="42", entity=("issue", "1"), data={"field": "state"})
                enqueue(cursor, job.message(17), broker=broker)
            server.wait_for_accepted(1, timeout=20)
            wait_until(lambda: done == [17], timeout=20)
            wait_until(
                lambda: execute(url, "SELECT state FROM pipeline.delivery") == [("sent",)],
                message="the outcome is written",
            )
    (mail,) = server.accepted
    assert mail.recipients == ["ann@shop.example"]
    ours = f"FROM {pipeline.doorbells.table} WHERE queue_name LIKE 'pipeline%%'"
    assert execute(url, f"SELECT DISTINCT state::text, result {ours}") == [("done", None)]
    assert execute(url, f"SELECT count(*) {ours} AND queue_name <> 'pipeline'") == [(0,)]


def test_middleware_that_a_shop_adds_later_does_not_end_a_sender(
    settings: Settings, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A time limit that comes after `Pipeline` finds the actors prepared for it."""
    execute(settings.url, "INSERT INTO pipeline.recipient VALUES ('42', 'ann@shop.example')")
    server.add(Rule("rcpt", delay=0.5))
    with stock_broker(settings.url) as broker:
        pipeline = Pipeline(broker, settings)
        broker.add_middleware(TimeLimit(time_limit=50, interval=10))
        broker.add_middleware(
            Results(backend=PostgresBackend(pool=broker.pool), store_results=True)
        )
        with working(broker), scheduling(pipeline):
            with closing(psycopg2.connect(settings.url)) as connection, connection:
                notify(
                    connection.cursor(),
                    receiver="42",
                    entity=("issue", "1"),
                    data={},
                    urgent=True,
                    broker=broker,
                )
            server.wait_for_accepted(1, timeout=20)
    assert "Time limit exceeded" not in caplog.text
    assert execute(
        settings.url, "SELECT count(*) FROM dramatiq.queue WHERE result IS NOT NULL"
    ) == [(0,)]


def test_what_can_not_work_is_refused_and_leaves_the_broker_as_it_was(
    database_url: str, settings: Settings
) -> None:
    """A broker of another kind, and a database that nobody names."""
    stub = StubBroker(middleware=[])
    with pytest.raises(TypeError, match="dramatiq-pg broker is needed, got StubBroker"):
        Pipeline(stub, settings)
    assert (stub.get_declared_actors(), stub.middleware) == (set(), [])
    with stock_broker(database_url) as broker:
        pool, broker.pool = broker.pool, None
        with pytest.raises(SettingError, match="PIPELINE_DATABASE_URL is not set"):
            Pipeline(broker, replace(settings, database_url=None))
        broker.pool = pool
        assert (broker.get_declared_actors(), broker.middleware) == (set(), [])


def test_the_brokers_own_database_is_used_unless_another_is_named(settings: Settings) -> None:
    """A shop has told its broker where the database is, and need not say it again."""
    with stock_broker(settings.url) as broker:
        pipeline = Pipeline(broker, replace(settings, database_url=None))
        with closing(psycopg2.connect(pipeline.url)) as connection:
            assert connection.get_dsn_parameters()["dbname"] in settings.url
        assert pipeline.stack().claimed_count == 0


def test_a_second_one_on_the_same_broker_is_refused(settings: Settings) -> None:
    """Its actors are there already; the first one goes on as it was."""
    with stock_broker(settings.url) as broker:
        Pipeline(broker, settings)
        before = list(broker.middleware)
        with pytest.raises(ValueError, match="has a pipeline's actors already"):
            Pipeline(broker, settings)
        assert broker.middleware == before


def test_a_pool_that_is_too_small_is_told(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """dramatiq-pg runs messages again when its pool is exhausted: it is known at the start."""

    def told(maxconn: int) -> str:
        caplog.clear()
        with stock_broker(settings.url, maxconn=maxconn) as broker:
            Pipeline(broker, settings)
            with working(broker):
                pass
        return caplog.text

    # 2 consumers, the queue's and its delayed messages', and 2 threads.
    assert "pool" not in told(6)
    assert (
        "The broker's pool has 5 connections, and this worker may want 6 at once: 2 for each of "
        "its 2 consumers (two a queue) and one for each of its 2 threads." in told(5)
    )


def test_a_worker_of_other_queues_is_not_counted_as_ours(settings: Settings) -> None:
    """Status shows the workers that will send mail."""

    def seen(broker: Broker, **options: Any) -> int:
        with working(broker, **options):
            if options["queues"] == {"pipeline"}:
                wait_until(lambda: processes() == 1)
            return processes()

    def processes() -> int:
        counted = execute(settings.url, "SELECT count(*) FROM pipeline.process")[0][0]
        assert isinstance(counted, int)
        return counted

    with stock_broker(settings.url) as broker:
        broker.declare_queue("shop")
        Pipeline(broker, settings)
        assert seen(broker, queues={"pipeline"}) == 1
        assert seen(broker, queues={"shop"}) == 0


def test_a_schema_that_the_settings_do_not_name_is_used_and_told(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """What runs in the shop rings where the shop listens; commands need to be told of it."""
    execute(settings.url, generate_init_sql("jobs", "my_"))
    with stock_broker(settings.url, schema="jobs", prefix="my_") as broker:
        pipeline = Pipeline(broker, settings)
    assert (pipeline.settings.queue_schema, pipeline.settings.queue_prefix) == ("jobs", "my_")
    assert "set PIPELINE_QUEUE_SCHEMA=jobs and PIPELINE_QUEUE_PREFIX=my_." in caplog.text


def test_our_own_processes_have_no_prometheus(settings: Settings) -> None:
    """It would make folders and open a port on every address."""
    broker = make_broker(settings)
    try:
        assert not [each for each in broker.middleware if isinstance(each, Prometheus)]
    finally:
        broker.pool.closeall()


def ticks(url: str) -> int:
    return int(execute(url, "SELECT count(*) FROM pipeline.tick")[0][0])


def test_a_shops_scheduler_with_a_job_store_and_process_pool(settings: Settings) -> None:
    """Our jobs neither go into its database nor into its processes, and its own stay there."""
    scheduler = BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(engine=sqlalchemy.create_engine("sqlite://"))},
        executors={"default": ProcessPoolExecutor(max_workers=1)},
    )
    with stock_broker(settings.url) as broker:
        pipeline = Pipeline(broker, settings)
        schedule = pipeline.schedule(scheduler)
        scheduler.start(paused=True)
        scheduler.add_job(print, "interval", hours=1, id="theirs")
        assert [job.id for job in scheduler.get_jobs("default")] == ["theirs"]
        scheduler.resume()
        try:
            wait_until(lambda: ticks(settings.url) >= 1)
        finally:
            scheduler.shutdown()
            schedule.close()


def test_a_shops_scheduler_that_runs_in_an_event_loop(settings: Settings) -> None:
    """The jobs run in threads and hold the loop up by nothing; asking twice changes nothing."""

    async def run(pipeline: Pipeline) -> None:
        scheduler = AsyncIOScheduler()
        scheduler.start()
        pipeline.schedule(scheduler).close()
        schedule = pipeline.schedule(scheduler)
        assert len(scheduler.get_jobs()) == 3
        # In a thread: the loop is free, as a shop's is.
        await asyncio.to_thread(wait_until, lambda: ticks(settings.url) >= 1)
        scheduler.shutdown()
        schedule.close()

    with stock_broker(settings.url) as broker:
        asyncio.run(run(Pipeline(broker, settings)))
    assert ticks(settings.url) >= 1


def test_T01_many_schedulers_make_one_tick(settings: Settings) -> None:
    """A shop may have our jobs in each of its web processes."""
    with stock_broker(settings.url) as broker:
        schedule = Pipeline(broker, replace(settings, stack_every=timedelta(days=1)))
        schedulers = [BackgroundScheduler() for _ in range(4)]
        schedules = [schedule.schedule(scheduler) for scheduler in schedulers]
        for scheduler in schedulers:
            scheduler.start()
        wait_until(lambda: ticks(settings.url) >= 1)
        for scheduler, made in zip(schedulers, schedules, strict=True):
            scheduler.shutdown()
            made.close()
    assert ticks(settings.url) == 1


def test_stacking_by_hand_in_the_shops_own_thread(installation: Installation) -> None:
    """`Pipeline.stack` runs one pass, over a connection of its own or the caller's."""
    pipeline = Pipeline(installation.broker, installation.settings)
    installation.notify("ann")
    assert pipeline.stack().claimed_count == 1
    installation.notify("bob", urgent=True)
    installation.notify("cid")
    assert pipeline.stack(installation.connection, urgent_only=True).claimed_count == 1
    assert logging.getLogger("pipeline").level == logging.NOTSET
