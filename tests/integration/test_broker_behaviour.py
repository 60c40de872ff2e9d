"""What a Dramatiq user may rely on, whatever the broker: here with a mended one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import psycopg2
import pytest
from dramatiq import Worker, group, pipeline
from dramatiq.common import current_millis
from dramatiq.errors import QueueJoinTimeout, RateLimitExceeded, Retry
from dramatiq.middleware import (
    CurrentMessage,
    GroupCallbacks,
    Middleware,
    SkipMessage,
    TimeLimitExceeded,
)
from dramatiq.rate_limits.backends import StubBackend
from dramatiq.results import ResultFailure, ResultMissing, ResultTimeout
from dramatiq_pg import generate_init_sql

from pipeline.broker import PostgresBroker
from pipeline.outbox import enqueue
from tests.support.broker import (
    actor,
    advisory_lock_count,
    mended_broker,
    messages,
    running_worker,
)
from tests.support.postgres import execute
from tests.support.waiting import stays_true, wait_until


@pytest.fixture
def url(empty_database_url: str) -> str:
    """The address of a database with dramatiq-pg's table."""
    execute(empty_database_url, generate_init_sql())
    return empty_database_url


@pytest.fixture
def broker(url: str) -> Iterator[PostgresBroker]:
    """A mended broker on it."""
    with mended_broker(url) as made:
        yield made


Ran = list[Any]


@pytest.fixture
def ran() -> Ran:
    """What the actors of a test note down."""
    return []


def state_of(url: str, message: Any) -> str:
    return str(messages(url)[message.message_id][1])


def settled(url: str) -> Callable[[], bool]:
    """Whether every message is final and no lock is held any more."""

    def check() -> bool:
        states = {m[1] for m in messages(url).values()}
        return not states & {"queued", "consumed"} and advisory_lock_count(url) == 0

    return check


def test_actors_run_with_their_arguments(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """Positional and keyword arguments arrive, and the row ends as done with its lock let go."""

    def note(*args: Any, **kwargs: Any) -> None:
        ran.append((args, kwargs))

    note_actor = actor(broker, note)
    with running_worker(broker):
        note_actor.send(1, "ü", None, key=[1.5, {"a": True}])
        wait_until(settled(url))
    assert ran == [((1, "ü", None), {"key": [1.5, {"a": True}]})]


def test_what_was_sent_before_the_worker_runs_oldest_first(
    url: str, broker: PostgresBroker, ran: Ran
) -> None:
    """One thread with a prefetch of one takes a backlog in the order it was sent."""
    note = actor(broker, ran.append, actor_name="note")
    for i in range(30):
        note.send(i)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dramatiq.worker.QUEUE_PREFETCH", 1)
        with running_worker(broker, threads=1):
            wait_until(settled(url), timeout=20)
    assert ran == list(range(30))


def test_messages_of_several_queues_run(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """Each declared queue is consumed, and only those that the worker was told of."""
    for name in ("a", "b", "c"):
        actor(broker, ran.append, actor_name=name, queue_name=name).send(name)
    with running_worker(broker, queues={"a", "b"}):
        wait_until(lambda: sorted(ran) == ["a", "b"])
    assert [m[0] for m in messages(url).values() if m[1] == "queued"] == ["c"]


def test_priorities_hold_within_the_prefetched(broker: PostgresBroker, ran: Ran) -> None:
    """Of the messages in hand, those with the lower number run first."""
    gate = threading.Event()
    wait = actor(broker, lambda: gate.wait(60) and None, actor_name="wait")
    low = actor(broker, lambda: ran.append("low"), actor_name="low", priority=100)
    high = actor(broker, lambda: ran.append("high"), actor_name="high", priority=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dramatiq.worker.QUEUE_PREFETCH", 4)
        wait.send()
        with running_worker(broker, threads=1) as worker:
            wait_until(lambda: worker.work_queue.unfinished_tasks == 1)
            wait_until(lambda: worker.work_queue.qsize() == 0)
            low.send()
            high.send()
            wait_until(lambda: worker.work_queue.qsize() == 2)
            gate.set()
            wait_until(lambda: len(ran) == 2)
    assert ran == ["high", "low"]


def test_no_more_messages_are_in_hand_than_prefetch_allows(
    url: str, broker: PostgresBroker
) -> None:
    """With a prefetch of 3 and every thread busy, 3 messages are claimed and 3 locks are held."""
    gate = threading.Event()

    def wait() -> None:
        gate.wait(20)

    wait_actor = actor(broker, wait)
    for _ in range(20):
        wait_actor.send()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dramatiq.worker.QUEUE_PREFETCH", 3)
        with running_worker(broker, threads=2):
            wait_until(lambda: advisory_lock_count(url) == 3)
            stays_true(lambda: advisory_lock_count(url) == 3, 0.3)
            states = [m[1] for m in messages(url).values()]
            assert (states.count("consumed"), advisory_lock_count(url)) == (3, 3)
            gate.set()
            wait_until(settled(url), timeout=20)


def test_a_failed_message_is_retried_and_counted(
    url: str, broker: PostgresBroker, ran: Ran
) -> None:
    """An actor that raises runs again after a backoff until it succeeds."""

    def fail() -> None:
        ran.append(1)
        if len(ran) < 4:
            raise RuntimeError("not yet")

    message = actor(broker, fail).send()
    with running_worker(broker):
        wait_until(lambda: len(ran) == 4)
        wait_until(settled(url))
    row = messages(url)[message.message_id]
    assert row[1] == "done"
    assert row[2]["options"]["retries"] == 3
    assert "not yet" in row[2]["options"]["traceback"]


def test_retries_run_out(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """After max_retries the message is rejected, with its traceback, and says so to an actor."""

    def fail() -> None:
        ran.append("try")
        raise RuntimeError("never")

    def exhausted(message: dict[str, Any], retries: dict[str, Any]) -> None:
        ran.append((message["actor_name"], retries))

    actor(broker, exhausted)
    message = actor(broker, fail, max_retries=2, on_retry_exhausted="exhausted").send()
    with running_worker(broker):
        wait_until(settled(url))
    assert ran == ["try"] * 3 + [("fail", {"retries": 2, "max_retries": 2})]
    assert state_of(url, message) == "rejected"
    assert "never" in messages(url)[message.message_id][2]["options"]["traceback"]


def test_an_expected_exception_is_not_retried(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """With `throws` the first failure is the last."""

    def fail() -> None:
        ran.append(1)
        raise ValueError

    message = actor(broker, fail, throws=ValueError).send()
    with running_worker(broker):
        wait_until(settled(url))
    assert ran == [1]
    assert state_of(url, message) == "rejected"


@pytest.mark.parametrize("delay", [0, 1, 150])
def test_a_retry_comes_after_the_delay_that_it_asks_for(
    url: str, broker: PostgresBroker, delay: int
) -> None:
    """`Retry(delay=…)` runs again at once with 0, not after a back-off, and never too soon."""
    times: list[float] = []

    def again() -> None:
        times.append(time.monotonic())
        if len(times) < 3:
            raise Retry("again", delay=delay)

    actor(broker, again).send()
    with running_worker(broker):
        wait_until(lambda: len(times) == 3, timeout=5)
        wait_until(settled(url))
    gaps = [b - a for a, b in pairwise(times)]
    assert all(delay / 1000 <= gap + 0.002 for gap in gaps), gaps


def test_a_nul_in_an_exceptions_text_is_stored_as_something_else(
    url: str, broker: PostgresBroker, ran: Ran
) -> None:
    """The retry is written at once, with a replacement character, and so is the rejection."""

    def fail() -> None:
        ran.append(1)
        raise RuntimeError("550 \x00 no")

    message = actor(broker, fail, max_retries=1).send()
    with running_worker(broker):
        wait_until(settled(url), timeout=5)
    row = messages(url)[message.message_id]
    assert (len(ran), row[1]) == (2, "rejected")
    assert "550 \ufffd no" in row[2]["options"]["traceback"]


def test_rate_limits_are_retried_quietly(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """RateLimitExceeded puts the message off like any exception."""

    def limited() -> None:
        ran.append(1)
        if len(ran) == 1:
            raise RateLimitExceeded("wait")

    actor(broker, limited).send()
    with running_worker(broker):
        wait_until(settled(url))
    assert len(ran) == 2


def test_an_old_message_is_dropped(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """A message beyond its max_age is rejected without being run."""
    note = actor(broker, ran.append, actor_name="note", max_age=1000)
    message = note.message(1)
    old = message.copy()
    object.__setattr__(old, "message_timestamp", current_millis() - 5000)
    broker.enqueue(old)
    with running_worker(broker):
        wait_until(settled(url))
    assert ran == []
    assert state_of(url, message) == "rejected"


def test_an_actor_that_takes_too_long_is_interrupted(
    url: str, broker: PostgresBroker, ran: Ran
) -> None:
    """TimeLimitExceeded is raised within the actor."""

    def endless() -> None:
        try:
            while True:
                time.sleep(0.01)
        except TimeLimitExceeded:
            ran.append("interrupted")
            raise

    message = actor(broker, endless, time_limit=200, max_retries=0).send()
    with running_worker(broker):
        wait_until(settled(url))
    assert ran == ["interrupted"]
    assert state_of(url, message) == "rejected"


def test_callbacks_are_called(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """on_success gets the result, on_failure what went wrong."""

    def good() -> int:
        return 7

    def bad() -> None:
        raise RuntimeError("no")

    def success(message: dict[str, Any], result: Any) -> None:
        ran.append(("success", message["actor_name"], result))

    def failure(message: dict[str, Any], error: dict[str, Any]) -> None:
        ran.append(("failure", message["actor_name"], error["type"]))

    actor(broker, success)
    actor(broker, failure)
    actor(broker, good, on_success="success").send()
    actor(broker, bad, max_retries=0, on_failure="failure").send()
    with running_worker(broker):
        wait_until(lambda: len(ran) == 2)
        wait_until(settled(url))
    assert sorted(ran) == [("failure", "bad", "RuntimeError"), ("success", "good", 7)]


def test_pipelines_pass_results_on(url: str, broker: PostgresBroker) -> None:
    """Each actor gets what the one before returned, a delay in the middle included."""
    add = actor(broker, lambda x, y: x + y, actor_name="add", store_results=True)
    with running_worker(broker):
        pipe = pipeline(
            [
                add.message(1, 2),
                add.message_with_options(args=(3,), delay=100),
                add.message(4),
            ],
            broker=broker,
        ).run()
        assert pipe.get_result(block=True, timeout=10_000) == 10
        assert list(pipe.get_results(block=True)) == [3, 6, 10]
        wait_until(settled(url))


def test_groups_run_in_parallel_and_call_back(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """A group's results can be waited for, and its callback runs once, after the last."""
    broker.add_middleware(GroupCallbacks(StubBackend()))
    double = actor(broker, lambda x: 2 * x, actor_name="double", store_results=True)
    finished = actor(broker, lambda: ran.append("finished"), actor_name="finished")
    together = group([double.message(i) for i in range(10)], broker=broker)
    together.add_completion_callback(finished.message())
    with running_worker(broker):
        together.run()
        assert list(together.get_results(block=True, timeout=10_000)) == [2 * i for i in range(10)]
        wait_until(lambda: ran == ["finished"])
        wait_until(settled(url))
    assert ran == ["finished"]


def test_results_can_be_asked_and_waited_for(url: str, broker: PostgresBroker) -> None:
    """A result is missing, then there; waiting for one that doesn't come times out as told."""
    gate = threading.Event()

    def slow() -> dict[str, Any]:
        gate.wait(60)
        return {"big": "ü" * 20_000}

    message = actor(broker, slow, store_results=True).send()
    backend = broker.get_results_backend()
    with running_worker(broker):
        with pytest.raises(ResultMissing):
            message.get_result(backend=backend)
        started = time.monotonic()
        with pytest.raises(ResultTimeout):
            message.get_result(backend=backend, block=True, timeout=300)
        assert time.monotonic() - started > 0.25
        gate.set()
        result = message.get_result(backend=backend, block=True, timeout=5000)
        wait_until(settled(url))
    assert result == {"big": "ü" * 20_000}
    assert message.get_result(backend=backend) == result


def test_a_failure_is_a_result_too(url: str, broker: PostgresBroker) -> None:
    """Waiting for an actor that fails for good raises ResultFailure, whatever the text holds."""

    def fail() -> None:
        raise RuntimeError("no \x00 good")

    message = actor(broker, fail, store_results=True, max_retries=0).send()
    with running_worker(broker), pytest.raises(ResultFailure, match="RuntimeError: no \ufffd good"):
        message.get_result(backend=broker.get_results_backend(), block=True, timeout=5000)


def test_waiting_for_results_holds_no_connection(url: str) -> None:
    """Ten threads wait on a broker with three connections while messages are sent and run."""
    with mended_broker(url, maxconn=3) as broker:
        gate = threading.Event()
        answers: list[Any] = []

        def answer(x: int) -> int:
            gate.wait(60)
            return x

        answer_actor = actor(broker, answer, store_results=True)
        sent = [answer_actor.send(i) for i in range(10)]

        def ask(message: Any) -> None:
            backend = broker.get_results_backend()
            answers.append(message.get_result(backend=backend, block=True, timeout=10_000))

        threads = [threading.Thread(target=ask, args=(message,)) for message in sent]
        for thread in threads:
            thread.start()
        with running_worker(broker):
            gate.set()
            for thread in threads:
                thread.join(60)
    assert sorted(answers) == list(range(10))


def test_delayed_messages_run_when_they_are_due(url: str, broker: PostgresBroker) -> None:
    """Near ones run in order and not too soon, though thousands of far ones wait."""
    ran: list[tuple[int, float]] = []

    def note(value: int) -> None:
        ran.append((value, time.monotonic()))

    note_actor = actor(broker, note)
    broker.prepare()
    far = [note_actor.message(-1) for _ in range(3000)]
    with closing(psycopg2.connect(url)) as shop, shop:
        enqueue(shop.cursor(), *far, delay=3_600_000, broker=broker)
    with running_worker(broker, threads=1):
        started = time.monotonic()
        for i in (3, 1, 2):
            note_actor.send_with_options(args=(i,), delay=300 * i)
        wait_until(lambda: len(ran) == 3, timeout=5)
        assert advisory_lock_count(url) <= 1
    assert [value for value, _ in ran] == [1, 2, 3]
    late = [at - started - 0.3 * value for value, at in ran]
    assert all(one >= -0.05 for one in late), late
    states = {(m[0], m[1]) for m in messages(url).values()}
    assert states == {("default.DQ", "queued"), ("default", "done")}


def test_skipped_messages_are_done(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """Middleware that raises SkipMessage keeps an actor from running, and the message is done."""

    class Skip(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            raise SkipMessage("not today")

        def after_skip_message(self, broker: Any, message: Any) -> None:
            ran.append("skipped")

    broker.add_middleware(Skip())
    message = actor(broker, lambda: ran.append("ran"), actor_name="skipped").send()
    with running_worker(broker):
        wait_until(settled(url))
    assert ran == ["skipped"]
    assert state_of(url, message) == "done"


def test_a_message_for_an_unknown_actor_is_rejected(url: str, broker: PostgresBroker) -> None:
    """It doesn't stand in the way of others."""
    note = actor(broker, lambda: None, actor_name="note")
    unknown = note.message().copy(actor_name="unknown")
    broker.enqueue(unknown)
    known = note.send()
    with running_worker(broker):
        wait_until(settled(url))
    assert (state_of(url, unknown), state_of(url, known)) == ("rejected", "done")


def test_a_row_that_is_no_message_is_rejected(url: str, broker: PostgresBroker) -> None:
    """Something else in the column `message` is put aside; the queue goes on."""
    odd = [
        ("default", "queued", '{"no": "message"}'),
        ("default", "queued", "[1]"),
        ("default", "queued", None),
        ("default.DQ", "queued", "[2]"),
        ("default.DQ", "queued", '{"options": {"eta": "soon"}}'),
        ("default", "consumed", '"three"'),
        ("default", "consumed", None),
        ("default", "consumed", '{"options": {"takeup": {"count": []}}}'),
        ("default", "consumed", '{"options": {"takeup": {"count": 1.5}}}'),
        ("default", "consumed", '{"options": {"takeup": {"count": -1e30}}}'),
        ("default", "consumed", '{"options": {"takeup": {"count": 1e300}}}'),
    ]
    for row in odd:
        execute(
            url,
            "INSERT INTO dramatiq.queue (message_id, queue_name, state, message)"
            " VALUES (gen_random_uuid(), %s, %s, %s)",
            row,
        )
    message = actor(broker, lambda: None, actor_name="note").send()
    with running_worker(broker):
        wait_until(settled(url))
    assert state_of(url, message) == "done"
    assert sorted(m[1] for m in messages(url).values()) == ["done"] + ["rejected"] * len(odd)


def test_a_paused_worker_takes_nothing_and_goes_on_when_resumed(
    url: str, broker: PostgresBroker, ran: Ran
) -> None:
    """While it is paused nothing runs and, once it has let go, nothing is held."""
    note = actor(broker, ran.append, actor_name="note")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.1)
        with running_worker(broker) as worker:
            note.send(1)
            wait_until(lambda: ran == [1])
            worker.pause()
            note.send(2)
            stays_true(lambda: ran == [1], 0.5)
            assert advisory_lock_count(url) == 0
            worker.resume()
            wait_until(lambda: ran == [1, 2])
            wait_until(settled(url))


def test_join_waits_for_everything_in_a_queue(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """join returns after the last message, delayed ones included, or gives up as told."""
    note = actor(broker, ran.append, actor_name="note")
    note.send(1)
    note.send_with_options(args=(2,), delay=300)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=100)
    with running_worker(broker) as worker:
        broker.join("default", timeout=10_000)
        worker.join()
    assert ran == [1, 2]


def test_flush_drops_what_waits(url: str, broker: PostgresBroker) -> None:
    """flush empties one queue with its delayed messages, flush_all every declared one."""
    here = actor(broker, lambda: None, actor_name="here")
    there = actor(broker, lambda: None, actor_name="there", queue_name="there")
    here.send()
    here.send_with_options(delay=10_000)
    there.send()
    broker.flush("default")
    assert [m[0] for m in messages(url).values()] == ["there"]
    broker.flush_all()
    assert messages(url) == {}


def test_stopping_finishes_what_runs_and_puts_back_the_rest(
    url: str, broker: PostgresBroker, ran: Ran
) -> None:
    """After a graceful stop what was running is done, what waited in memory is queued, unlocked."""

    workers: list[Worker] = []

    def slow(x: int) -> None:
        ran.append(x)
        wait_until(lambda: workers and not any(thread.running for thread in workers[0].workers))

    slow_actor = actor(broker, slow)
    for i in range(10):
        slow_actor.send(i)
    with running_worker(broker, threads=2) as worker:
        workers.append(worker)
        wait_until(lambda: len(ran) == 2)
    states = [m[1] for m in messages(url).values()]
    assert states.count("done") == len(ran)
    assert states.count("queued") == 10 - len(ran)
    assert advisory_lock_count(url) == 0


def test_a_worker_can_be_started_again(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """The same broker serves one worker after another in a process."""
    note = actor(broker, ran.append, actor_name="note")
    for i in range(3):
        note.send(i)
        with running_worker(broker):
            wait_until(settled(url))
    assert ran == [0, 1, 2]


def test_the_current_message_is_known(url: str, broker: PostgresBroker, ran: Ran) -> None:
    """Middleware that looks at the message in hand sees dramatiq's own kind."""

    def note() -> None:
        current = CurrentMessage.get_current_message()
        assert current is not None
        ran.append(current.message_id)

    message = actor(broker, note).send()
    with running_worker(broker):
        wait_until(lambda: ran == [message.message_id])


def test_a_message_sent_again_while_it_runs_runs_again(
    url: str, broker: PostgresBroker, ran: Ran
) -> None:
    """The second sending counts, after the first run has ended and never beside it."""
    running = 0

    def note(x: int) -> None:
        nonlocal running
        running += 1
        ran.append((x, running))
        stays_true(lambda: running == 1, 0.3)
        running -= 1

    note_actor = actor(broker, note)
    message = note_actor.message(1)
    with mended_broker(url) as web:
        web.enqueue(message)
        with running_worker(broker):
            wait_until(lambda: len(ran) == 1)
            web.enqueue(message.copy(args=(2,)))
            wait_until(lambda: len(ran) == 2, timeout=5)
            wait_until(settled(url))
    assert ran == [(1, 1), (2, 1)]


def test_polling_alone_is_enough(url: str, ran: Ran) -> None:
    """Without LISTEN and NOTIFY messages run within the polling interval."""
    with mended_broker(url, wake="poll", poll_interval=0.1, makes_indexes=False) as broker:
        note = actor(broker, ran.append, actor_name="note")
        with running_worker(broker):
            wait_until(lambda: advisory_lock_count(url) == 0)
            stays_true(lambda: advisory_lock_count(url) == 0, 0.5)
            note.send(1)
            wait_until(lambda: ran == [1], timeout=2)
            wait_until(settled(url))


def test_a_process_that_polls_knows_what_it_sends_itself(url: str) -> None:
    """What an actor sends on to its own process doesn't wait for the next poll."""
    with mended_broker(url, wake="poll", poll_interval=60) as broker:
        add = actor(broker, lambda x, y: x + y, actor_name="add", store_results=True)
        with running_worker(broker):
            pipe = pipeline([add.message(1, 2), add.message(3), add.message(4)], broker=broker)
            assert pipe.run().get_result(block=True, timeout=10_000) == 10
            delayed = add.send_with_options(args=(1, 1), delay=100)
            backend = broker.get_results_backend()
            assert delayed.get_result(backend=backend, block=True, timeout=10_000) == 2


def test_a_broker_with_too_few_connections_for_a_worker_says_so(url: str) -> None:
    """One connection would go to the locks, and none would be left to send with."""
    with (
        mended_broker(url, maxconn=1) as broker,
        pytest.raises(ValueError, match=r"at least 2 .* got 1"),
    ):
        broker.consume("default")
