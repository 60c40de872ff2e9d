"""What dramatiq's consumer threads see: an iterator of messages, and ack, nack and requeue."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable
from typing import Any

from dramatiq.broker import Consumer, MessageProxy
from dramatiq.middleware import Middleware, SkipMessage

from pipeline.broker.hand import Held, Inbox
from pipeline.broker.keeper import Keeper
from pipeline.outbox import encode_message

logger = logging.getLogger(__name__)

#: Seconds that a closing consumer waits for what has been finished to be settled.
CLOSE_TIMEOUT = 10.0


class PostgresConsumer(Consumer):
    """Messages of one queue, from what the keeper has claimed for it.

    Parameters:
      keeper: The process's keeper.
      inbox: This queue's messages.
      timeout: Milliseconds to wait for a message before there is none.
    """

    def __init__(self, keeper: Keeper, inbox: Inbox, timeout: int) -> None:
        self._keeper = keeper
        self._inbox = inbox
        self._timeout = timeout / 1000

    def __next__(self) -> MessageProxy | None:
        """The next message, or None when none came in time. Delayed ones are never handed out."""
        if self._inbox.is_delay_queue:
            threading.Event().wait(self._timeout)
            return None
        try:
            held = self._inbox.messages.get(timeout=self._timeout)
        except queue.Empty:
            return None
        if held.is_lost:
            self._keeper.settle(held, "queued")
            return None
        return held.proxy

    def ack(self, message: MessageProxy) -> None:
        """Let the message become `done`: written with others, as soon as the session is free."""
        held = self._mine(message)
        if held is not None:
            changed = message.options != held.options
            self._keeper.settle(held, "done", self._text(message) if changed else None)

    def nack(self, message: MessageProxy) -> None:
        """Let the message become `rejected`, with what middleware has written into it."""
        held = self._mine(message)
        if held is not None:
            self._keeper.settle(held, "rejected", self._text(message))

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Put messages that weren't run back for others to take."""
        for message in messages:
            held = self._mine(message)
            if held is not None:
                self._keeper.settle(held, "queued")

    def close(self) -> None:
        """Stop consuming; everything that was finished is settled when this returns."""
        self._keeper.close_inbox(self._inbox, CLOSE_TIMEOUT)

    def _mine(self, message: MessageProxy) -> Held | None:
        held = self._keeper.get(message.message_id)
        if held is None or held.proxy is not message:
            return None
        return held

    def _text(self, message: MessageProxy) -> str | None:
        try:
            return encode_message(message, clean=True)
        except Exception:
            # What was done is done: better the old text than no ack.
            logger.warning("message %s can't be encoded", message.message_id, exc_info=True)
            return None


class StartGuard(Middleware):
    """Keeps a worker from starting a message that this process no longer owns.

    Parameters:
      broker: The broker, with its keeper once there is one.
    """

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def before_process_message(self, _: Any, message: MessageProxy) -> None:
        """Skip a message that was lost; note the start of one that may have killed a worker."""
        keeper: Keeper | None = self._broker.keeper
        held = None if keeper is None else keeper.get(message.message_id)
        if keeper is None or held is None or held.proxy is not message:
            return
        if not keeper.may_start(held):
            raise SkipMessage("its lock was lost: another worker has it, or will have")
        if held.is_suspect:
            self._broker.note_start(message.message_id)

    def before_worker_shutdown(self, *_: Any) -> None:
        """Let nothing wait for Postgres any longer."""
        if self._broker.keeper is not None:
            self._broker.keeper.stopping()
        self._broker.upkeep.stop()
