"""The two actors: plain functions that join the parts, registered on whatever broker is given."""

from __future__ import annotations

import logging
import threading
from typing import Any

import dramatiq
from dramatiq import Broker, MessageProxy, Middleware, Worker
from dramatiq_pg import PostgresBroker

from .database import connect, query, transaction
from .doorbells import QUEUE, SEND, STACK, Doorbells
from .presence import Presence
from .sending import Sender
from .settings import Settings
from .stacking import Pass, run_pass

logger = logging.getLogger(__name__)

#: What our actors ask of the middleware that a broker has or may get. A sender looks after its
#: own time and its own stopping: an exception thrown into its thread could fall between the
#: server's 250 and the commit. Nothing is retried by Dramatiq: what is owed stands in the tables.
ACTOR_OPTIONS: dict[str, Any] = {
    "max_retries": 0,
    "retry_when": None,
    "time_limit": float("inf"),
    "notify_shutdown": False,
    "max_age": None,
    "store_results": False,
}


class Answering(Middleware):
    """Tells the actors which message they answer, and when their worker is being stopped."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_stopping = threading.Event()
        self._local = threading.local()
        self._presence: Presence | None = None

    @property
    def message_id(self) -> str | None:
        """The message that this thread is answering."""
        return getattr(self._local, "message_id", None)

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        self._local.message_id = str(message.message_id)

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: Any = None
    ) -> None:
        self._local.message_id = None

    def after_worker_boot(self, broker: Broker, worker: Worker) -> None:
        self.is_stopping.clear()
        _warn_of_small_pool(broker, worker)
        if worker.consumer_whitelist and QUEUE not in worker.consumer_whitelist:
            # It was started for other queues only and will never hear of us.
            return
        self._presence = Presence(self.url, "worker")
        self._presence.start()

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        self.is_stopping.set()

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        if self._presence is not None:
            self._presence.stop()
            self._presence = None


def _warn_of_small_pool(broker: Broker, worker: Worker) -> None:
    """dramatiq-pg takes its connections from one pool. When that is exhausted, messages that were
    run are not acknowledged, run again, and stay counted against their consumer until it stops.
    """
    has = getattr(getattr(broker, "pool", None), "maxconn", None)
    # Each consumer listens on one connection and claims on another; each thread acknowledges.
    wants = 2 * len(worker.consumers) + worker.worker_threads
    # A broker with a consumer of its own has a budget of its own.
    is_stock = getattr(type(broker), "consume", None) is PostgresBroker.consume
    if is_stock and has is not None and has < wants:
        logger.warning(
            "The broker's pool has %d connections, and this worker may want %d at once: 2 for each "
            "of its %d consumers (two a queue) and one for each of its %d threads. Without them "
            "messages run again, or are not run any more. Add ?maxconn=%d to the broker's URL, or "
            "have it run fewer queues or threads.",
            has,
            wants,
            len(worker.consumers),
            worker.worker_threads,
            wants,
        )


class Actors:
    """Our actors on one broker.

    Parameters:
      broker: Any broker on dramatiq-pg's table; other actors of its are left alone.
      url: The database.

    Raises:
      ValueError: When the broker has such actors already.
    """

    def __init__(self, broker: Broker, url: str, settings: Settings, doorbells: Doorbells) -> None:
        self.url = url
        self.settings = settings
        self.doorbells = doorbells
        if STACK in broker.get_declared_actors():
            raise ValueError("this broker has a pipeline's actors already: one is enough")
        self.answering = Answering(url)
        self.sender = Sender(
            url, settings, doorbells, should_stop=self.answering.is_stopping.is_set
        )
        broker.add_middleware(self.answering)
        for name, function in ((STACK, self.stack), (SEND, self.send)):
            actor = dramatiq.actor(function, broker=broker, actor_name=name, queue_name=QUEUE)
            # Not handed to the decorator, which refuses options of middleware that isn't there: a
            # shop may have none of it, or add it later.
            actor.options.update(ACTOR_OPTIONS)

    def stack(self) -> None:
        """Run the pass that is owed: of everything after a tick, else of what is urgent."""
        message_id = self.answering.message_id
        connection = connect(self.url, application_name="pipeline stacker")
        try:
            with transaction(connection) as cursor:
                self.doorbells.answer(cursor, message_id)
            try:
                done = self._run_owed_pass(connection, message_id)
            finally:
                if not connection.closed:
                    with transaction(connection) as cursor:
                        self.doorbells.over(cursor, message_id)
        finally:
            connection.close()
        if done.claimed_count:
            logger.info(
                "Stacked %d notifications: %d new deliveries, %d joined.",
                done.claimed_count,
                done.created_count,
                done.joined_count,
            )

    def _run_owed_pass(self, connection: Any, message_id: str | None) -> Pass:
        def show_life(_: Pass) -> None:
            with transaction(connection) as cursor:
                self.doorbells.answer(cursor, message_id)

        with transaction(connection) as cursor:
            cursor.execute(query("ticks_owed"), {"schedule": "stack"})
            row = cursor.fetchone()
        slot = row and row[0]
        done = run_pass(
            connection,
            self.settings,
            self.doorbells,
            urgent_only=slot is None,
            should_stop=self.answering.is_stopping.is_set,
            on_chunk=show_life,
        )
        if slot is not None and not self.answering.is_stopping.is_set():
            with transaction(connection) as cursor:
                cursor.execute(query("ticks_finish"), {"schedule": "stack", "slot": slot})
        return done

    def send(self) -> None:
        """Be a sender for a slice of time."""
        outcomes = self.sender.answer(self.answering.message_id)
        if outcomes:
            logger.info(
                "Sender done: %s.",
                ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())),
            )
