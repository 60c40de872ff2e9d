"""Comments as people wrote them, made safe: HTML in, a mail's HTML or plain text out.

`parse` reads a bounded beginning of the HTML through nh3 (a real HTML5 parser and sanitiser) and
keeps what a mail can show as a flat run of tokens. `RichText.html` and `RichText.text` write these
out again: every tag, attribute and character of the result is one that is written here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser

import nh3

from pipeline.cleaning import ELLIPSIS, as_name, clean_line, clean_text, identifier, safe_link

from . import plaintext
from .tokens import BLOCKS, Token

#: How much of a comment is looked at, in characters of its HTML. Bounds time and memory.
READ_LIMIT = 12_000
#: Tags nested deeper than this are left out; their text stays.
DEPTH_LIMIT = 12

#: Pictures that were pasted into a comment make it megabytes long, and a mail doesn't show them.
_EMBEDDED_FILE = re.compile(r"data:[^\"'<>\s]{100,}")
_SCAN_LIMIT = 8_000_000

#: What makes a text HTML: a tag that browsers know, or a character reference. Anything else with a
#: `<` in it is somebody's formula, and is shown as it stands.
_HTML = re.compile(
    r"</?(?:a|abbr|article|b|base|big|blockquote|body|br|button|center|code|del|details|div|dl|dt"
    r"|dd|em|embed|figure|font|form|frame|h[1-6]|head|hr|html|i|iframe|image-component|img|input"
    r"|ins|label|li|link|math|mention-component|meta|object|ol|option|p|pre|q|s|script|select"
    r"|small|source|span|strike|strong|style|sub|summary|sup|svg|table|tbody|td|textarea|th|thead"
    r"|title|tr|u|ul|video)(?=[\s/>])|&(?:[a-z]{2,8}|#\d{1,7}|#x[0-9a-f]{1,6});",
    re.IGNORECASE,
)
_MENTION = re.compile(
    r"<mention-component\b[^<>]{0,1000}?\bentity_identifier\s*=\s*[\"']?([^\"'\s<>]{1,255})",
    re.IGNORECASE,
)
#: Elements whose content goes with them.
_HIDDEN = {"script", "style", "title", "textarea", "noscript", "iframe", "object", "svg", "math"}

#: Tags that are read, by the name they are written under.
_WRITTEN_AS = {
    **{name: name for name in ("a", "b", "blockquote", "code", "em", "i", "li", "ol", "p", "pre")},
    **{name: name for name in ("s", "strong", "u", "ul")},
    **dict.fromkeys(("del", "strike"), "s"),
    **dict.fromkeys(("div", "tr", "dt", "dd"), "p"),
    **{f"h{level}": "h" for level in range(1, 7)},
}
_READ = {*_WRITTEN_AS, "br", "hr", "img", "td", "th", "image-component", "mention-component"}
_ATTRIBUTES = {"a": {"href"}, "img": {"alt"}, "mention-component": {"entity_identifier"}}

_STYLES = {
    "blockquote": "margin:0 0 8px;padding-left:10px;border-left:2px solid #c9ced6;",
    "div": "margin:0 0 8px;",
    "code": "font-family:Consolas,Menlo,monospace;font-size:13px;",
    "h": "margin:0 0 8px;font-weight:bold;",
    "li": "margin:0 0 4px;",
    "ol": "margin:0 0 8px;padding-left:22px;",
    "p": "margin:0 0 8px;",
    "pre": "margin:0 0 8px;font-family:Consolas,Menlo,monospace;font-size:13px;"
    "white-space:pre-wrap;",
    "ul": "margin:0 0 8px;padding-left:22px;",
}


@dataclass(frozen=True, slots=True)
class RichText:
    """A comment, safe to show. `mentioned` are the ids of the people that it names."""

    tokens: tuple[Token, ...]
    clipped: bool
    mentioned: tuple[str, ...]

    @property
    def is_blank(self) -> bool:
        return not any(token.kind in ("text", "mention") for token in self.tokens)

    def html(self, limit: int) -> str:
        """Well-formed HTML with its styles inline.

        Parameters:
          limit(int): About how many bytes of UTF-8 it may take; closing tags may come on top.
        """
        written: list[str] = []
        closing: list[str] = []
        clipped = self.clipped
        room = limit
        for token in self.tokens:
            piece = _html(token)
            room -= len(piece.encode())
            if room < 0:
                if token.kind == "text":
                    written.append(_beginning(token.value, room + len(piece.encode())))
                clipped = True
                break
            written.append(piece)
            if token.kind == "open":
                closing.append(token.name)
            elif token.kind == "close":
                closing.pop()
        if clipped:
            written.append(ELLIPSIS)
        written.extend(f"</{_tag(name)}>" for name in reversed(closing))
        return "".join(written)

    def text(self, limit: int) -> str:
        """Plain text of several lines, at most `limit` characters."""
        return plaintext.write(self.tokens, limit, clipped=self.clipped)


def parse(source: str, people: Mapping[str, str]) -> RichText:
    """Read a comment: HTML, or plain text if there is no tag in it.

    Parameters:
      source(str): What somebody wrote, of any length. Only its beginning is read.
      people(Mapping[str, str]): The names of people by their ids, for mentions.
    """
    beginning = _bounded(source)
    clipped = len(beginning) == READ_LIMIT
    if not _HTML.search(beginning):
        return RichText(tuple(_tidied(_lines(beginning))), clipped, ())
    reader = _Reader(people)
    reader.feed(
        nh3.clean(
            clean_text(beginning),
            tags=set(_READ),
            clean_content_tags=set(_HIDDEN),
            attributes={tag: set(names) for tag, names in _ATTRIBUTES.items()},
            url_schemes={"http", "https", "mailto"},
            link_rel=None,
        )
    )
    reader.close()
    return reader.result(clipped=clipped)


def has_mentions(source: str | None) -> bool:
    return source is not None and "<mention-component" in source[:READ_LIMIT]


def mentioned_ids(source: str | None) -> set[str]:
    """The ids of the people that a comment mentions, found fast; for looking them up."""
    if source is None or not has_mentions(source):
        return set()
    found = map(identifier, _MENTION.findall(_bounded(source)))
    return {person for person in found if person}


def plain(source: str, limit: int) -> str:
    """One line of plain text, out of a value that may be HTML."""
    beginning = _bounded(source)
    if not _HTML.search(beginning):
        return clean_line(source, limit)
    return clean_line(parse(beginning, {}).text(2 * limit), limit)


def _bounded(source: str) -> str:
    if len(source) > READ_LIMIT:
        source = _EMBEDDED_FILE.sub("data:", source[:_SCAN_LIMIT])
    return source[:READ_LIMIT]


def _lines(source: str) -> Iterator[Token]:
    for number, line in enumerate(clean_text(source).strip().split("\n")):
        if number:
            yield Token("break")
        if line.strip():
            yield Token("text", " ".join(line.split()))


class _Reader(HTMLParser):
    """Reads what nh3 gave back, which is well-formed, into tokens."""

    def __init__(self, people: Mapping[str, str]) -> None:
        super().__init__(convert_charrefs=True)
        self._people = people
        self._tokens: list[Token] = []
        self._mentioned: dict[str, None] = {}
        self._open: list[str] = []
        self._skipped = 0

    def result(self, *, clipped: bool) -> RichText:
        while self._open:
            self._tokens.append(Token("close", name=self._open.pop()))
        return RichText(tuple(_tidied(self._tokens)), clipped, tuple(self._mentioned))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        match tag:
            case "br":
                self._tokens.append(Token("break"))
            case "hr":
                self._tokens.append(Token("rule"))
            case "td" | "th":
                self.handle_data(" ")
            case "img" | "image-component":
                described = clean_line(values.get("alt") or "", 80)
                self.handle_data(f"[image: {described}]" if described else "[image]")
            case "mention-component":
                self._mention(identifier(values.get("entity_identifier")))
            case _ if tag in _WRITTEN_AS:
                self._enter(_WRITTEN_AS[tag], values.get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in _WRITTEN_AS:
            return
        if self._skipped:
            self._skipped -= 1
        elif self._open:
            self._tokens.append(Token("close", name=self._open.pop()))

    def handle_data(self, data: str) -> None:
        # Character references may have brought in what was cleaned away before.
        data = clean_text(data) if data.strip() else data
        if "pre" not in self._open:
            data = re.sub(r"\s+", " ", data)
        if data:
            self._tokens.append(Token("text", data))

    def _enter(self, name: str, href: str) -> None:
        # nh3 closes its tags in order, so counting tells which end belongs to a skipped start.
        if self._skipped or len(self._open) >= DEPTH_LIMIT:
            self._skipped += 1
            return
        self._open.append(name)
        link = safe_link(href) if name == "a" else None
        self._tokens.append(Token("open", link or "", name))

    def _mention(self, person: str | None) -> None:
        name = ""
        if person:
            self._mentioned.setdefault(person)
            name = as_name(self._people.get(person), 80) or ""
        self._tokens.append(Token("mention", f"@{name or 'someone'}"))


def _tidied(tokens: Iterable[Token]) -> Iterator[Token]:
    """Without the blanks that only separate one block from the next; what stands loose between
    blocks is made a block."""
    at_start = True
    depth = 0
    loose = False
    for token in tokens:
        if at_start and token.kind == "text" and not token.value.strip():
            continue
        is_block = token.name in BLOCKS
        if depth == 0 and loose == is_block:
            yield Token("close" if loose else "open", name="div")
            loose = not loose
        depth += {"open": 1, "close": -1}.get(token.kind, 0)
        at_start = is_block or token.kind in ("break", "rule")
        yield token
    if loose:
        yield Token("close", name="div")


def _beginning(value: str, room: int) -> str:
    """As much of the text, escaped, as fits into `room` bytes."""
    value = value[:room]
    fits, too_long = 0, len(value) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if len(escape(value[:middle]).encode()) <= room:
            fits = middle
        else:
            too_long = middle
    return escape(value[:fits])


def _tag(name: str) -> str:
    return "p" if name == "h" else name


def _html(token: Token) -> str:
    match token.kind:
        case "text":
            return escape(token.value)
        case "mention":
            return f"<strong>{escape(token.value)}</strong>"
        case "break":
            return "<br>"
        case "rule":
            return '<hr style="border:0;border-top:1px solid #c9ced6;">'
        case "close":
            return f"</{_tag(token.name)}>"
        case "open" if token.name == "a":
            if not token.value:
                return "<a>"
            return f'<a class="link" href="{escape(token.value)}" style="color:#1d5fd1;">'
        case "open":
            style = _STYLES.get(token.name)
            return f'<{_tag(token.name)} style="{style}">' if style else f"<{token.name}>"
