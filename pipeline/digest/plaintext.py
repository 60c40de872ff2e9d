"""A comment's tokens as lines of plain text, with `- `, `1. ` and `> ` where they belong."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.cleaning import ELLIPSIS

from .tokens import BLOCKS, Token


def write(tokens: Iterable[Token], limit: int, *, clipped: bool) -> str:
    """Parameters:
      tokens(Iterable[Token]): A comment, its tags balanced.
      limit(int): The most characters to write; what comes later is left out.
      clipped(bool): Whether the tokens are only the beginning of the comment.

    Returns:
      str: Lines joined by `\\n`, ending in an ellipsis if something was left out.
    """
    writer = _Writer()
    for token in tokens:
        writer.take(token)
        if writer.length > limit:
            clipped = True
            break
    text = writer.finish()
    if not clipped and len(text) <= limit:
        return text
    return text[: max(0, limit - 1)].rstrip() + ELLIPSIS


@dataclass(slots=True)
class _Level:
    """A quotation or an entry of a list: what its first line starts with, and the others."""

    first: str
    others: str

    def next_prefix(self) -> str:
        prefix, self.first = self.first, self.others
        return prefix


class _Writer:
    def __init__(self) -> None:
        self.length = 0
        self._lines: list[str] = []
        self._line: list[str] = []
        self._levels: list[_Level] = []
        self._counts: list[int | None] = []
        self._preformatted = 0
        self._link = ""
        self._label: list[str] = []

    def take(self, token: Token) -> None:
        match token.kind:
            case "text" if self._preformatted:
                for number, line in enumerate(token.value.split("\n")):
                    if number:
                        self._break()
                    self._add(line)
            case "text" | "mention":
                self._add(token.value)
            case "break":
                self._break()
            case "rule":
                self._end_line()
                self._add("---")
                self._end_line()
            case "open":
                self._open(token)
            case "close":
                self._close(token.name)

    def finish(self) -> str:
        self._end_line()
        return "\n".join(self._lines).strip("\n")

    def _add(self, value: str) -> None:
        self.length += len(value)
        self._line.append(value)
        if self._link:
            self._label.append(value)

    def _break(self) -> None:
        """End the line, even an empty one, but never leave two empty lines after each other."""
        if not self._end_line() and self._lines and self._lines[-1].strip("> "):
            self._lines.append("".join(level.others for level in self._levels).rstrip())
        self.length += 1

    def _end_line(self) -> bool:
        line = "".join(self._line)
        self._line.clear()
        line = line.rstrip() if self._preformatted else line.strip()
        if not line:
            return False
        prefix = "".join(level.next_prefix() for level in self._levels)
        self._lines.append(prefix + line)
        self.length += len(prefix) + 1
        return True

    def _open(self, token: Token) -> None:
        if token.name in BLOCKS:
            self._end_line()
        match token.name:
            case "ul":
                self._counts.append(None)
            case "ol":
                self._counts.append(0)
            case "li":
                bullet = self._bullet()
                self._levels.append(_Level(bullet, " " * len(bullet)))
            case "blockquote":
                self._levels.append(_Level("> ", "> "))
            case "pre":
                self._preformatted += 1
            case "a":
                self._link, self._label = token.value, []

    def _close(self, name: str) -> None:
        if name == "a" and self._link:
            link, label = self._link, "".join(self._label).strip()
            self._link = ""
            if label not in (link, link.removeprefix("mailto:")):
                self._add(f" ({link})" if label else link)
        if name in BLOCKS:
            self._end_line()
        match name:
            case "ul" | "ol":
                self._counts.pop()
            case "li" | "blockquote":
                self._levels.pop()
            case "pre":
                self._preformatted -= 1

    def _bullet(self) -> str:
        count = self._counts[-1] if self._counts else None
        if count is None:
            return "- "
        self._counts[-1] = count + 1
        return f"{count + 1}. "
