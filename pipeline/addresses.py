"""Mail addresses, checked before a server sees them."""

import re
from dataclasses import dataclass

import idna

from .cleaning import clean_line

#: RFC 5322 section 3.2.3, dot-atom.
_LOCAL_PART = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
#: RFC 1123 section 2.1.
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NAMED = re.compile(r"\s*(?P<name>[^<>]*?)\s*<(?P<address>[^<>]*)>\s*")


class InvalidAddress(ValueError):
    """An address that no mail can be sent to, or from; the message names it."""


@dataclass(frozen=True, slots=True)
class Mailbox:
    """`address` is pure ASCII, its domain encoded; `name` may be anything printable or empty."""

    name: str
    address: str


def mailbox(value: str) -> Mailbox:
    """Read `name@example.com` or `Name <name@example.com>`.

    Raises:
      InvalidAddress: There is no usable address in it.
    """
    named = _NAMED.fullmatch(value) if len(value) <= 1000 else None
    if named is None:
        return Mailbox("", address(value))
    name = named["name"]
    if len(name) >= 2 and name[0] == name[-1] == '"':
        name = re.sub(r"\\(.)", r"\1", name[1:-1])
    return Mailbox(clean_line(name, 80), address(named["address"]))


def address(value: str) -> str:
    """A bare address (RFC 5321 section 4.1.2), its domain encoded by IDNA 2008.

    A local part beyond ASCII needs a server that speaks SMTPUTF8 (RFC 6531), and is refused.

    Raises:
      InvalidAddress: Anything that is not one.
    """
    if not value:
        raise InvalidAddress("the mail address is empty")
    if len(value) > 320:
        raise InvalidAddress(f"the mail address is too long: {_quoted(value)}")
    if any(character.isspace() or not character.isprintable() for character in value):
        raise InvalidAddress(f"a blank or control character in the mail address {_quoted(value)}")
    local, at, domain = value.rpartition("@")
    if not at:
        raise InvalidAddress(f"not a mail address, it has no @: {_quoted(value)}")
    if not local.isascii():
        raise InvalidAddress(f"letters beyond ASCII before the @ of {_quoted(value)}")
    if len(local) > 64 or not _LOCAL_PART.fullmatch(local):
        raise InvalidAddress(f"not a mail address, look before the @: {_quoted(value)}")
    encoded = f"{local}@{_domain(domain, value)}"
    if len(encoded) > 254:
        raise InvalidAddress(f"the mail address is too long: {_quoted(value)}")
    return encoded


def _domain(domain: str, value: str) -> str:
    if not domain.isascii():
        try:
            domain = idna.encode(domain, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError) as error:
            raise InvalidAddress(f"no domain after the @ of {_quoted(value)}: {error}") from None
    if len(domain) > 253 or not all(_LABEL.fullmatch(label) for label in domain.split(".")):
        raise InvalidAddress(f"no domain after the @ of {_quoted(value)}")
    return domain


def _quoted(value: str) -> str:
    """The value for a person to recognise, in ASCII, with nothing in it that a terminal obeys."""
    text = ascii(value)
    return text if len(text) <= 120 else f"{text[:119]}..."
