"""The relay: can it be reached and trusted, does it let us in, and who do we say we are?"""

from __future__ import annotations

import contextlib
import ipaddress
import time

from pipeline.settings import Settings
from pipeline.smtp import Relay
from pipeline.smtp.dialogue import run
from pipeline.smtp.handshake import HandshakeError, open_wire, tls_context
from pipeline.smtp.wire import WireError

from .settings import Finding

#: Names that mean nothing outside a network, or that are reserved (RFC 2606, RFC 6761, RFC 6762).
PRIVATE = (
    *("localhost", "localdomain", "local", "internal", "lan", "home", "home.arpa", "intranet"),
    *("invalid", "test", "example", "example.com", "example.net", "example.org"),
)

SECURED = {
    "plain": "not encrypted",
    "starttls": "encrypted by STARTTLS, certificate verified",
    "tls": "encrypted, certificate verified",
}


def check_relay(settings: Settings) -> Finding:
    """Connect, greet, secure and log in, and say goodbye without a mail."""
    relay = Relay.from_url(settings.smtp_url)
    started = time.monotonic()
    deadline = started + settings.connect_timeout.total_seconds()
    try:
        context = None if relay.security == "plain" else tls_context(relay)
        wire, _ = run(open_wire(relay, settings.domain, context, deadline))
    except HandshakeError as error:
        reply = f": {error.reply}" if error.reply else ""
        return Finding("relay", "fail", f"{error}{reply}", _advice(error))
    took = time.monotonic() - started
    try:
        with contextlib.suppress(WireError):
            run(wire.command("QUIT", time.monotonic() + 2))
    finally:
        wire.close()
    login = f", logged in as {relay.username}" if relay.username is not None else ""
    text = f"{relay.name} answers in {took:.2f} s, {SECURED[relay.security]}{login}"
    if relay.security != "plain" or is_here(relay.host):
        return Finding("relay", "ok", text)
    clear = "password and mails" if relay.username is not None else "mails"
    return Finding(
        "relay", "warn", f"{text}: {clear} go there for everybody to read",
        "Use smtp+starttls:// or smtps:// if the relay can.",
    )  # fmt: skip


def _advice(error: HandshakeError) -> str:
    text = str(error).lower()
    if error.reply is not None and 400 <= error.reply.code < 500:
        return "The relay says that this is only for now: try again later."
    if "certificate" in text:
        return (
            "Use the name that the certificate is for in PIPELINE_SMTP_URL; if a private authority "
            "signed it, add ?ca_file=/path/to/authority.pem."
        )
    if "logging in" in text or "login" in text:
        return "Check the user and the password in PIPELINE_SMTP_URL (percent-encoded)."
    if "tls" in text:
        return "smtp+starttls:// usually goes with port 587, smtps:// with 465: check both."
    if error.reply is not None:
        return "The relay's answer tells why; its operator can tell more."
    return "Check host and port in PIPELINE_SMTP_URL, and whether a firewall is in between."


def check_sender(settings: Settings) -> Finding:
    """The sender's domain, which is also that of the Message-IDs and of our greeting."""
    domain = settings.domain
    private = next(
        (name for name in PRIVATE if domain == name or domain.endswith(f".{name}")), None
    )
    if "." not in domain:
        trouble = "is not a full domain name"
    elif private is not None:
        trouble = f"is not one on the Internet (.{private})"
    elif domain.replace(".", "").isdigit() or domain.startswith("["):
        trouble = "is a number and not a name"
    else:
        return Finding("sender", "ok", f"{domain}")
    here = is_here(Relay.from_url(settings.smtp_url).host)
    return Finding(
        "sender", "warn" if here else "fail",
        f"{domain}, of PIPELINE_MAIL_FROM, {trouble}: servers refuse such mail or take it for spam",
        "Set PIPELINE_MAIL_FROM to an address in a domain of yours.",
    )  # fmt: skip


def is_here(host: str) -> bool:
    """Whether a host is this machine, by its name or address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
