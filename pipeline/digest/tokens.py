"""What a comment consists of once it is safe: a flat run of tokens."""

from dataclasses import dataclass
from typing import Literal

#: The names of tokens that stand in lines of their own (`h`: a heading of any level,
#: `div`: what stood between blocks).
BLOCKS = frozenset({"blockquote", "div", "h", "li", "ol", "p", "pre", "ul"})


@dataclass(frozen=True, slots=True)
class Token:
    """`open` and `close` carry a tag's `name`, and a link's address in `value`; `text` and
    `mention` carry their text in `value`; `break` and `rule` stand alone."""

    kind: Literal["open", "close", "text", "mention", "break", "rule"]
    value: str = ""
    name: str = ""
