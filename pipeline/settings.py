"""Settings: read from `PIPELINE_*` environment variables or a TOML file, checked at start."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .addresses import mailbox
from .smtp.relay import Relay

#: What a duration may end in, in seconds.
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: Each has a row of its own, and a connection to the relay.
MOST_SENDERS = 1000

#: Bytes of a part of a table's name, such that the whole is not cut.
LONGEST_IDENTIFIER = 40

#: Characters of a value that an error repeats.
SHOWN = 200


class SettingError(ValueError):
    """A setting has a value that can't be used. The text names both."""


def duration(text: str) -> timedelta:
    """A duration: a number of seconds, or a number with `ms`, `s`, `m`, `h` or `d`.

    Raises:
      ValueError: When it is neither, or not positive.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", text)
    if match is None:
        raise ValueError("not a duration: a number of seconds, or 500ms, 30s, 5m, 2h, 1d")
    try:
        value = timedelta(seconds=float(match[1]) * UNITS[match[2] or "s"])
    except OverflowError:
        raise ValueError("too long a duration") from None
    if value < timedelta(milliseconds=1):
        raise ValueError("must be at least 1ms")
    if value > timedelta(days=3650):
        raise ValueError("must be at most 3650d")
    return value


def count(text: str) -> int:
    """A whole number of at least 1.

    Raises:
      ValueError: When it isn't one.
    """
    if not re.fullmatch(r"\s*\d{1,9}\s*", text) or int(text) < 1:
        raise ValueError("not a whole number of at least 1")
    return int(text)


def at_most(most: int) -> Callable[[str], int]:
    """A reader for a whole number from 1 on, within reason."""

    def read(text: str) -> int:
        value = count(text)
        if value > most:
            raise ValueError(f"must be at most {most}")
        return value

    return read


def timeout(text: str) -> timedelta:
    """A duration that a socket can wait for.

    Raises:
      ValueError: When it isn't one.
    """
    value = duration(text)
    if value > timedelta(days=1):
        raise ValueError("must be at most 1d")
    return value


def identifier(text: str) -> str:
    """Part of a name in Postgres, which cuts longer ones.

    Raises:
      ValueError: When it is too long.
    """
    if len(text.encode()) > LONGEST_IDENTIFIER:
        raise ValueError(f"must be at most {LONGEST_IDENTIFIER} bytes")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """A reader for one of a few words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return text

    return read


def smtp_url(text: str) -> str:
    """A relay's URL: see `relay.Relay.from_url`.

    Raises:
      ValueError: When it isn't one. The text doesn't repeat the password.
    """
    Relay.from_url(text)
    return text


def mail_from(text: str) -> str:
    """An address, with or without a name: `Tracker <tracker@example.com>`.

    Raises:
      ValueError: When mail can't be sent from it.
    """
    mailbox(text)
    return text


def web_url(text: str) -> str:
    """An http or https URL, without a slash at its end, or nothing.

    Raises:
      ValueError: When it is something else.
    """
    if text and urlsplit(text).scheme not in ("http", "https"):
        raise ValueError("must begin with http:// or https://")
    if not text.isprintable() or " " in text:
        raise ValueError("must not have spaces or control characters")
    return text.rstrip("/")


def _setting(
    default: Any, read: Callable[[str], Any], about: str, *, may_be_shown: bool = True
) -> Any:
    return field(default=default, repr=may_be_shown, metadata={"read": read, "about": about})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set. The environment variable is `PIPELINE_` and the name in capitals.

    Raises:
      SettingError: When values don't go together.
    """

    database_url: str | None = _setting(
        None,
        str,
        "libpq URL of the database; unset: an embedded Postgres",
        may_be_shown=False,
    )
    smtp_url: str = _setting(
        "smtp://127.0.0.1:1025",
        smtp_url,
        "the relay: smtp://, smtps:// or smtp+starttls://user:password@host:port",
        may_be_shown=False,
    )
    mail_from: str = _setting(
        "Notifications <notifications@localhost.example>",
        mail_from,
        "the sender; its domain is also that of the Message-IDs",
    )
    base_url: str = _setting("", web_url, "where the application's pages are, for links in mails")

    stack_every: timedelta = _setting(
        timedelta(minutes=5), duration, "how often waiting notifications are stacked"
    )
    stack_limit: int = _setting(2000, count, "stacks claimed in one transaction at the most")
    row_limit: int = _setting(10_000, count, "notifications claimed in one transaction at the most")

    senders: int = _setting(
        4,
        at_most(MOST_SENDERS),
        "senders, and so connections to the relay, at once in the whole installation",
    )
    relay_rate: int | None = _setting(
        None, count, "messages a second to the relay, from the whole installation; unset: no limit"
    )
    slice: timedelta = _setting(
        timedelta(seconds=30), duration, "how long a sender works before it lets others have a turn"
    )
    chunk: int = _setting(25, count, "deliveries that a sender claims at once")
    lease: timedelta = _setting(
        timedelta(seconds=30),
        duration,
        "how long a sender may be silent before its deliveries are taken over",
    )
    session_limit: int = _setting(100, count, "mails over one SMTP connection")

    on_uncertain: str = _setting(
        "resend",
        one_of("resend", "hold"),
        "a delivery whose reply was lost: resend it, or hold it for an operator",
    )
    max_attempts: int = _setting(10, count, "attempts before a delivery fails")
    max_age: timedelta = _setting(
        timedelta(days=3), duration, "age after which a delivery fails instead of being tried again"
    )
    retry_base: timedelta = _setting(
        timedelta(seconds=10), duration, "wait after the first failed attempt; tripled each time"
    )
    retry_cap: timedelta = _setting(timedelta(hours=6), duration, "longest wait between attempts")
    relay_pause: timedelta = _setting(
        timedelta(seconds=1),
        duration,
        "how long a relay in trouble is left alone at first; doubled each time",
    )
    relay_pause_cap: timedelta = _setting(
        timedelta(seconds=30), duration, "longest time that a relay in trouble is left alone"
    )

    connect_timeout: timedelta = _setting(
        timedelta(seconds=10),
        timeout,
        "until a session is ready for mail: name lookup, connection, TLS, login",
    )
    command_timeout: timedelta = _setting(timedelta(seconds=30), timeout, "for MAIL and RCPT")
    data_timeout: timedelta = _setting(timedelta(seconds=60), timeout, "for handing over a mail")
    reply_timeout: timedelta = _setting(
        timedelta(minutes=5), timeout, "for the reply to the final dot"
    )

    items_shown: int = _setting(50, count, "changes shown in one mail; the rest is counted")
    recover_every: timedelta = _setting(
        timedelta(seconds=1), duration, "how often the scheduler looks for work that got stuck"
    )
    keep: timedelta = _setting(
        timedelta(days=30), duration, "how long finished deliveries and their rows are kept"
    )

    queue_schema: str = _setting("dramatiq", identifier, "schema of dramatiq-pg's table")
    queue_prefix: str = _setting("", identifier, "prefix of dramatiq-pg's table")

    def __post_init__(self) -> None:
        if self.lease < timedelta(milliseconds=500):
            raise SettingError(
                f"PIPELINE_LEASE must be at least 500ms to be renewed in time, got {self.lease}"
            )
        if self.retry_cap < self.retry_base:
            raise SettingError(
                f"PIPELINE_RETRY_CAP must not be below PIPELINE_RETRY_BASE ({self.retry_base}), "
                f"got {self.retry_cap}"
            )
        if self.relay_pause_cap < self.relay_pause:
            raise SettingError(
                f"PIPELINE_RELAY_PAUSE_CAP must not be below PIPELINE_RELAY_PAUSE "
                f"({self.relay_pause}), got {self.relay_pause_cap}"
            )
        if self.recover_every > timedelta(minutes=1):
            raise SettingError(
                f"PIPELINE_RECOVER_EVERY must be at most 1m, got {self.recover_every}"
            )
        if self.keep < timedelta(minutes=1):
            raise SettingError(f"PIPELINE_KEEP must be at least 1m, got {self.keep}")

    @property
    def url(self) -> str:
        """The database.

        Raises:
          SettingError: When none is named.
        """
        if self.database_url is None:
            raise SettingError("PIPELINE_DATABASE_URL is not set")
        return self.database_url

    @property
    def domain(self) -> str:
        """The sender's domain in ASCII: right-hand side of every Message-ID, and name in EHLO."""
        return mailbox(self.mail_from).address.rpartition("@")[2].lower()

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the environment, and the TOML file that `PIPELINE_SETTINGS_FILE` names, if any.

        The environment goes before the file. In the file the names are in lower case, without
        `PIPELINE_`.

        Raises:
          SettingError: Naming the first setting that can't be used, its value and why.
        """
        environ = os.environ if environ is None else environ
        given: dict[str, tuple[str, str]] = {}
        path = environ.get("PIPELINE_SETTINGS_FILE")
        if path:
            given.update(_from_file(Path(path)))
        known = {setting.name: setting for setting in fields(cls)}
        for variable, text in environ.items():
            name = variable.removeprefix("PIPELINE_").lower()
            if variable.startswith("PIPELINE_") and name in known and text != "":
                given[name] = (variable, text)
        values = {
            name: _read(known[name], source, text)
            for name, (source, text) in given.items()
            if name in known
        }
        return cls(**values)


def _from_file(path: Path) -> dict[str, tuple[str, str]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"PIPELINE_SETTINGS_FILE {str(path)!r} can't be read: {error}") from None
    known = {setting.name for setting in fields(Settings)}
    unknown = sorted(set(content) - known)
    if unknown:
        raise SettingError(f"{path} has a setting that does not exist: {unknown[0]!r}")
    for name, value in content.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise SettingError(f"{name} in {path} must be a text or a number, got {value!r}")
    return {name: (f"{name} in {path}", str(value)) for name, value in content.items()}


def _read(setting: Field[Any], source: str, text: str) -> Any:
    try:
        if "\0" in text or not _is_unicode(text):
            raise ValueError("has a character that is none")
        return setting.metadata["read"](text)
    except ValueError as error:
        shown = repr(_without_password(text))
        if len(shown) > SHOWN:
            shown = f"{shown[:SHOWN]}…"
        # What is wrong with an address names it.
        reason = _without_password(str(error))
        told = reason if shown in reason else f"{shown}: {reason}"
        raise SettingError(f"{source} {told}") from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_password(text: str) -> str:
    """The value as it may be shown: what stands where a password would is left out."""
    text = re.sub(r"(://[^/@:]*:).*@", r"\1***@", text)
    return re.sub(r"(://[^/@:]*:)(?!\d+(?:[/?#]|$)|\*\*\*@).+", r"\1***", text)
