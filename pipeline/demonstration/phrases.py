"""What the demo's people say: HTML, as their tracker's editor writes it."""

from __future__ import annotations

import random

from .people import Person, make_id

_SAYINGS = (
    "<p>Looks fixed on my machine. Can somebody check on theirs?</p>",
    "<p>Happens with <strong>every</strong> voucher that has a <code>%</code> in its name.</p>",
    "<p>Steps:</p><ol><li>open the page</li><li>press <em>Save</em> twice</li><li>wait</li></ol>",
    '<p>See <a href="https://status.example.com/incidents/42">the incident</a>.</p>',
    "<p>1 &lt; 2 &amp;&amp; 3 &gt; 2, and still it says no. Grüße &amp; 谢谢 🎉</p>",
    "<p>I'd rather not do this before the release.</p><p>After it, gladly.</p>",
    "<blockquote>It worked yesterday.</blockquote><p>It did not, I have the log.</p>",
    "<pre><code>Traceback (most recent call last):\n  KeyError: 'voucher'</code></pre>",
    '<p><img src="https://files.example.com/screenshot.png" alt="screenshot"> as you see</p>',
    "<p></p>",
)
_ASKS = ("please have a look", "is this yours?", "thanks!", "what do you think?", "FYI")


def saying(chance: random.Random) -> str:
    """A comment."""
    return chance.choice(_SAYINGS)


def mention(chance: random.Random, person_id: str) -> str:
    """A comment that mentions somebody, who may be gone."""
    return (
        f'<p>ping <mention-component id="{make_id(chance)}" entity_identifier="{person_id}" '
        f'entity_name="user_mention"></mention-component> {chance.choice(_ASKS)}</p>'
    )


def edited(html: str) -> str:
    """The comment after its author had second thoughts."""
    return html.removesuffix("</p>") + " <em>(edited)</em></p>"


def stripped(html: str) -> str:
    """The comment without its tags, as the tracker keeps it beside the HTML."""
    text = html
    while "<" in text:
        before, _, rest = text.partition("<")
        text = before + rest.partition(">")[2]
    return text


def mentioned(chance: random.Random, people: list[Person]) -> tuple[str, Person | None]:
    """Whom to mention: the id that is written, and the person unless they are gone."""
    if chance.random() < 0.1:
        return make_id(chance), None
    person = chance.choice(people)
    return person.id, person
