"""The mails that an inbox keeps, with everything that it counts. Safe to use from any thread."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pipeline.inbox.reading import header, header_text

__all__ = ["Mailbox", "ReceivedMail"]


@dataclass(frozen=True)
class ReceivedMail:
    """One mail as it came: its `number` in the inbox, the envelope, and the content's bytes."""

    number: int
    received_at: float
    mail_from: str
    rcpt_to: tuple[str, ...]
    content: bytes = field(repr=False)

    @cached_property
    def message_id(self) -> str | None:
        """The `Message-ID` with its angle brackets."""
        return header(self.content, "Message-ID")

    @cached_property
    def subject(self) -> str:
        return header_text(self.content, "Subject")

    @cached_property
    def searched(self) -> str:
        """What a search looks through."""
        parts = (self.subject, header_text(self.content, "From"), header_text(self.content, "To"))
        return "\n".join((*parts, *self.rcpt_to, self.message_id or "")).casefold()


class Mailbox:
    """Keeps the newest mails and counts all of them.

    Parameters:
      keep_count: how many mails are kept.
      keep_bytes: how many bytes of content they may have together. The newest is kept in any case.
    """

    def __init__(self, *, keep_count: int = 5_000, keep_bytes: int = 256 * 1024 * 1024) -> None:
        self.keep_count = keep_count
        self.keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._mails: OrderedDict[int, ReceivedMail] = OrderedDict()
        self._kept_bytes = 0
        self._message_count = 0
        self._duplicates: dict[str, int] = {}
        #: Hashes of the Message-IDs seen: 8 bytes each, where the ids would be a hundred.
        self._seen: set[int] = set()
        # Not from zero: a page that is still open must notice another inbox.
        self._version = time.time_ns() // 1_000_000

    def add(self, mail_from: str, rcpt_to: Sequence[str], content: bytes) -> ReceivedMail:
        """Takes a mail; the oldest ones make room."""
        message_id = header(content, "Message-ID")
        with self._lock:
            self._message_count += 1
            self._version += 1
            mail = ReceivedMail(
                self._message_count, time.time(), mail_from, tuple(rcpt_to), content
            )
            self._mails[mail.number] = mail
            self._kept_bytes += len(content)
            while len(self._mails) > 1 and (
                len(self._mails) > self.keep_count or self._kept_bytes > self.keep_bytes
            ):
                _, oldest = self._mails.popitem(last=False)
                self._kept_bytes -= len(oldest.content)
            if message_id is not None:
                self._count_id(message_id)
        return mail

    def _count_id(self, message_id: str) -> None:
        digest = hashlib.blake2b(message_id.encode("utf-8", "replace"), digest_size=8).digest()
        fingerprint = int.from_bytes(digest, "big")
        if fingerprint in self._seen:
            self._duplicates[message_id] = self._duplicates.get(message_id, 1) + 1
        else:
            self._seen.add(fingerprint)

    def clear(self) -> None:
        """Forgets the mails that are kept. What was counted stays counted."""
        with self._lock:
            self._mails.clear()
            self._kept_bytes = 0
            self._version += 1

    def get(self, number: int) -> ReceivedMail | None:
        with self._lock:
            return self._mails.get(number)

    def messages(self) -> list[ReceivedMail]:
        """The mails that are kept, oldest first."""
        with self._lock:
            return list(self._mails.values())

    @property
    def message_count(self) -> int:
        """All mails that were ever taken."""
        return self._message_count

    @property
    def version(self) -> int:
        """Changes whenever a mail came or they were cleared."""
        return self._version

    def duplicate_ids(self) -> dict[str, int]:
        """Every `Message-ID` that came more than once, kept or not, and how often."""
        with self._lock:
            return dict(self._duplicates)

    def duplicate_id_count(self) -> int:
        return len(self._duplicates)

    def times_seen(self, message_id: str | None) -> int:
        """How often a `Message-ID` has come, for one of a mail in here."""
        return self._duplicates.get(message_id, 1) if message_id is not None else 1
