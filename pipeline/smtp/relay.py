"""Where the mail goes: the relay's address, how it is secured, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

__all__ = ["Relay", "Security", "Timeouts"]

Security = Literal["plain", "starttls", "tls"]

#: Scheme of a relay's URL: how it is secured, and the port if none is given (RFC 8314, RFC 6409).
SCHEMES: dict[str, tuple[Security, int]] = {
    "smtp": ("plain", 25),
    "smtp+starttls": ("starttls", 587),
    "smtps": ("tls", 465),
}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each stage may take in all, in seconds, however slowly the bytes drip in.

    `connect` is for everything until the session is ready for MAIL: name lookup, TCP, TLS, banner,
    EHLO and login; `command` for each of RSET, MAIL, RCPT and DATA; `data` for the content;
    `reply` for the answer to the final dot. Hurry there makes duplicates: a server that accepted
    too late for us leaves the message uncertain (RFC 5321 section 4.5.3.2 would wait 10 minutes).
    """

    connect: float = 10.0
    command: float = 30.0
    data: float = 60.0
    reply: float = 300.0

    def __post_init__(self) -> None:
        for name in ("connect", "command", "data", "reply"):
            if not getattr(self, name) > 0:
                raise ValueError(f"timeout {name} must be positive, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Relay:
    """The SMTP server that takes our mail.

    `ca_file` is a PEM file of authorities to trust in place of the system's. A password is sent
    over a `plain` connection too: that is the choice of whoever wrote `smtp://user:password@…`.
    """

    host: str
    port: int
    security: Security = "plain"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Reads `smtp://`, `smtps://` or `smtp+starttls://[user:password@]host[:port][?ca_file=…]`.

        User and password are percent-decoded.

        Raises:
          ValueError: names the part that is wrong, and never shows what may be a password.
        """
        try:
            parts = urlsplit(url.strip())
        except ValueError:
            raise ValueError("relay URL: the host is not a valid name or [IPv6] address") from None
        if parts.scheme not in SCHEMES:
            raise ValueError(
                f"relay URL: the scheme must be one of {', '.join(SCHEMES)}"
                f"{f', got {parts.scheme!r}' if parts.scheme and '://' in url else ''}"
            )
        _refuse_leftovers(parts)
        security, usual_port = SCHEMES[parts.scheme]
        username, password = _login(parts)
        return cls(
            host=_host(parts),
            port=_port(parts, usual_port),
            security=security,
            username=username,
            password=password,
            ca_file=_ca_file(parts, security),
        )

    @property
    def name(self) -> str:
        """`host:port`, as it is shown and stored."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        scheme = next(name for name, (security, _) in SCHEMES.items() if security == self.security)
        login = f"{self.username}:***@" if self.username is not None else ""
        return f"{scheme}://{login}{self.name}"


def _refuse_leftovers(parts: SplitResult) -> None:
    if "@" in parts.path + parts.query + parts.fragment:
        # An unquoted "/", "?" or "#" in the password ends the host part too early.
        raise ValueError(
            "relay URL: the user or the password holds a character that must be percent-encoded "
            "(such as / ? # @)"
        )
    if parts.path not in ("", "/"):
        raise ValueError("relay URL: a path after the host and port means nothing here")
    if parts.fragment:
        raise ValueError("relay URL: a #fragment means nothing here")


def _host(parts: SplitResult) -> str:
    host = parts.hostname
    if not host:
        raise ValueError("relay URL: the host is missing")
    if any(each.isspace() or not each.isprintable() for each in host):
        raise ValueError("relay URL: the host holds white space or control characters")
    return unquote(host)


def _port(parts: SplitResult, usual: int) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        # Not shown: in user:password without a host it would be the password.
        raise ValueError("relay URL: the port is not a number between 1 and 65535")
    return usual if port is None else port


def _login(parts: SplitResult) -> tuple[str | None, str | None]:
    if parts.username is None:
        return None, None
    if not parts.username:
        raise ValueError("relay URL: the user is empty")
    if parts.password is None:
        raise ValueError("relay URL: a user without a password")
    username, password = unquote(parts.username), unquote(parts.password)
    if "\0" in username + password:
        raise ValueError("relay URL: the user or the password holds a NUL")
    return username, password


def _ca_file(parts: SplitResult, security: Security) -> str | None:
    try:
        options = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError("relay URL: what follows the ? is not name=value") from None
    for name in options:
        if name != "ca_file":
            raise ValueError(f"relay URL: unknown option {name!r} (there is only ca_file)")
    if not options:
        return None
    if security == "plain":
        raise ValueError("relay URL: ca_file goes with smtps:// or smtp+starttls:// only")
    path = options["ca_file"][-1]
    if not path:
        raise ValueError("relay URL: ca_file is empty")
    return path
