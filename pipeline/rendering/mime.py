"""A mail as bytes: headers that stay intact, and two bodies that any server takes.

The standard library's generator encodes an `In-Reply-To` that is longer than its line, or, with a
long line, writes encoded words far beyond the 75 characters that RFC 2047 section 2 allows. Our
headers are few, so they are written here; `email.policy` reads them back in the tests.
"""

import binascii
import hashlib
from base64 import b64encode
from collections.abc import Iterable
from email.headerregistry import Address

from pipeline.addresses import Mailbox

#: Bytes of UTF-8 in one encoded word: with its frame it stays below 75 characters.
_WORD_BYTES = 42
#: RFC 5322 section 2.1.1.
_LINE_LIMIT = 998


def unstructured(text: str) -> str:
    """A header's text, as it is if it is plain ASCII and short, else as encoded words.

    Parameters:
      text(str): One line, cleaned.
    """
    # What looks like an encoded word would be read as one.
    if text.isascii() and "=?" not in text and len(text) < _LINE_LIMIT - 100:
        return text
    return "\r\n ".join(f"=?utf-8?b?{b64encode(word).decode()}?=" for word in _words(text))


def named_address(mailbox: Mailbox) -> str:
    """An address header's value: `"Doe, Jane" <jane@example.com>`."""
    if not mailbox.name:
        return mailbox.address
    if mailbox.name.isascii() and "=?" not in mailbox.name:
        return str(Address(mailbox.name, addr_spec=mailbox.address))
    return f"{unstructured(mailbox.name)} <{mailbox.address}>"


def message(headers: Iterable[tuple[str, str]], *, text: str, html: str) -> bytes:
    """The whole mail, `multipart/alternative` (RFC 2046 section 5.1.4), lines ended by CRLF.

    Parameters:
      headers(Iterable[tuple[str, str]]): Names and values, encoded and of one line (or folded).
      text(str), html(str): The bodies, lines ended by `\\n`.
    """
    lines = [f"{name}: {value}" for name, value in headers]
    seal = hashlib.sha256("\0".join([*lines, text, html]).encode()).hexdigest()[:24]
    # "=_" can't occur in a quoted-printable body. The same mail gets the same bytes.
    boundary = f"=_{seal}"
    lines += [
        "MIME-Version: 1.0",
        f'Content-Type: multipart/alternative; boundary="{boundary}"',
        "",
        *_part(boundary, "plain", text),
        *_part(boundary, "html", html),
        f"--{boundary}--",
        "",
    ]
    return "\r\n".join(lines).encode("ascii")


def _part(boundary: str, subtype: str, body: str) -> list[str]:
    content = f"{body.rstrip()}\n".replace("\n", "\r\n").encode()
    return [
        f"--{boundary}",
        f'Content-Type: text/{subtype}; charset="utf-8"',
        "Content-Transfer-Encoding: quoted-printable",
        "",
        # Lines of at most 76 characters (RFC 2045 section 6.7).
        binascii.b2a_qp(content, istext=True).decode("ascii"),
    ]


def _words(text: str) -> Iterable[bytes]:
    word = b""
    for character in text:
        encoded = character.encode()
        if len(word) + len(encoded) > _WORD_BYTES:
            yield word
            word = b""
        word += encoded
    yield word
