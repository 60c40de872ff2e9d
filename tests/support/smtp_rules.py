"""What the scripted SMTP server is told to do, and what it accepted."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

Stage = Literal[
    "connect", "ehlo", "starttls", "auth", "mail", "rcpt", "data", "body", "dot", "reply",
    "rset", "noop", "quit",
]  # fmt: skip
Action = Literal["close", "reset", "silence"]


@dataclass(slots=True)
class Rule:
    """What happens at one stage. See the module's docstring for each field."""

    stage: Stage
    connection: int | None = None
    message: int | None = None
    recipient: str | None = None
    skip: int = 0
    times: int | None = None
    per: Literal["server", "connection", "recipient"] = "server"
    delay: float = 0.0
    hold: str | None = None
    reply: str | None = None
    raw: bytes | None = None
    drip: float = 0.0
    do: Action | None = None
    _seen: Counter[object] = field(default_factory=Counter, repr=False)

    def __post_init__(self) -> None:
        if self.stage not in get_args(Stage):
            raise ValueError(f"no such stage: {self.stage!r}")
        if self.do is not None and self.do not in get_args(Action):
            raise ValueError(f"no such action: {self.do!r}")
        if self.stage == "dot" and (self.reply or "").startswith("2"):
            raise ValueError("a 2xx after the dot belongs to the stage 'reply'")

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """One object of a script file; the keys are the field names."""
        known = {each.name for each in fields(cls)} - {"_seen"}
        if unknown := set(value) - known:
            raise ValueError(f"unknown rule fields: {', '.join(sorted(unknown))}")
        if isinstance(value.get("raw"), str):
            value = {**value, "raw": value["raw"].encode("latin-1")}
        return cls(**value)

    def takes(self, stage: Stage, connection: int, message: int, recipients: list[str]) -> bool:
        """Whether it applies now. Counts the match, so call it once per event."""
        if stage != self.stage:
            return False
        if self.connection not in (None, connection) or self.message not in (None, message):
            return False
        if self.recipient is not None and self.recipient not in recipients:
            return False
        key: object = None
        if self.per == "connection":
            key = connection
        elif self.per == "recipient":
            key = recipients[-1] if recipients else None
        self._seen[key] += 1
        turn = self._seen[key] - self.skip
        return turn > 0 and (self.times is None or turn <= self.times)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message for which the server took responsibility."""

    at: float
    connection: int
    sender: str
    recipients: list[str]
    message_id: str | None
    subject: str | None
    content: bytes

    def as_json(self, *, with_content: bool) -> str:
        line = {
            "at": self.at,
            "connection": self.connection,
            "from": self.sender,
            "to": self.recipients,
            "message_id": self.message_id,
            "subject": self.subject,
        }
        if with_content:
            line["content"] = self.content.decode("latin-1")
        return json.dumps(line)


def read_record(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The accepted messages that a `--record` file holds so far."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)
    except FileNotFoundError:
        return


def header(content: bytes, name: bytes) -> str | None:
    head = content.split(b"\r\n\r\n", 1)[0]
    match = re.search(rb"(?im)^" + name + rb":[ \t]*((?:[^\r\n]|\r\n[ \t])*)", head)
    return re.sub(r"\s+", " ", match[1].decode("utf-8", "replace")).strip() if match else None
