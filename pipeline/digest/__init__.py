"""What a stack of notifications comes to: its net effect, with nothing in or out but values.

activity      one row's `data` read, in either of its forms
grouping      what was told twice, and what belongs together
net_effect    what is left of all of it; `comments` and `tally` for what comes in pieces
items, wording    what is told, and in which words
richtext      comment HTML made safe; `tokens` and `plaintext` are parts of it
making        the digest itself
"""

from .making import Activity, Digest, Entity, Notification, make_digest, people_named, read

__all__ = ["Activity", "Digest", "Entity", "Notification", "make_digest", "people_named", "read"]
