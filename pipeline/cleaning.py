"""Text from strangers made fit for one line, for a paragraph, or for a header."""

import re
from urllib.parse import urlsplit

#: What no mail shows: control characters, halves of surrogate pairs, non-characters, byte order
#: marks, and the marks that turn the direction of everything after them (a name that holds one
#: could rewrite the line it stands in). Line ends and tabs are not in here.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]"
)

ELLIPSIS = "…"


def clip(value: str, limit: int) -> str:
    """The value, or its beginning and an ellipsis: never more than `limit` characters."""
    if len(value) <= limit:
        return value
    return value[: limit - 1].rstrip() + ELLIPSIS


def clean_line(value: str, limit: int = 200) -> str:
    """One line of printable text: every run of white space, line ends of any alphabet included,
    becomes one blank.

    Parameters:
      value(str): Any text, of any length.
      limit(int): The most characters to give back.
    """
    # Text is bounded before it is looked at; blanks at the start may cost what comes later.
    bounded = _INVISIBLE.sub("", value[: 8 * limit + 64])
    return clip(" ".join(bounded.split()), limit)


def as_name(value: str | None, limit: int = 200) -> str | None:
    """A name as one line; None if there is none, or only the word that a null became."""
    line = clean_line(value, limit) if isinstance(value, str) else ""
    return None if line in ("", "None") else line


def clean_text(value: str) -> str:
    """Printable text of several lines; every kind of line end becomes `\\n`."""
    return _INVISIBLE.sub("", "\n".join(value.splitlines()))


def identifier(value: object) -> str | None:
    """The value as an id that a database may be asked for, or None when it can't be one.

    The string `"None"` is what a null became on its way here.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
        return str(value)
    if not isinstance(value, str) or len(value) > 255:
        return None
    value = value.strip()
    if value in ("", "None") or not value.isprintable():
        return None
    return value


def safe_link(value: str) -> str | None:
    """The value if it is a link that a mail may carry (http, https, mailto), else None."""
    value = value.strip()
    if not value or len(value) > 2000 or not value.isprintable() or set(value) & set(" <>\"'\\`"):
        return None
    try:
        parts = urlsplit(value)
    except ValueError:
        return None
    if parts.scheme in ("http", "https"):
        return value if parts.netloc else None
    return value if parts.scheme == "mailto" and "@" in parts.path else None


def describe(value: object, depth: int = 3) -> str:
    """Any JSON value in plain words, bounded in length and in depth."""
    match value:
        case None | "None":
            return "–"
        case bool():
            return "yes" if value else "no"
        case str():
            return clean_line(value)
        case int() | float():
            # A number of thousands of digits can't be printed (sys.set_int_max_str_digits).
            return str(value) if not isinstance(value, int) or abs(value) < 1 << 256 else "a number"
        case dict() | list() if depth == 0:
            return ELLIPSIS
        case dict():
            parts = [
                f"{describe(key, 0)}: {describe(part, depth - 1)}"
                for key, part in list(value.items())[:12]
            ]
            return _joined(parts, len(value), "; ")
        case list():
            return _joined([describe(part, depth - 1) for part in value[:12]], len(value), ", ")
        case _:
            return clean_line(str(value))


def _joined(parts: list[str], count: int, separator: str) -> str:
    if count > len(parts):
        parts.append(ELLIPSIS)
    return clip(separator.join(parts), 400)
