"""Nothing that JSON can hold makes a mail that fails, leaks or lies."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.digest import Entity, Notification, make_digest, people_named
from pipeline.rendering import InvalidAddress, Recipient, render
from tests.support.digests import MORNING, Page, parsed

FIELDS = [
    *("state", "labels", "comment", "mention", "name", "priority", "archived_at", "attachment"),
    *("link", "issue", "intake", "description", "target_date", "blocked_by", "None", "x_y"),
]
NASTY = [
    *("None", "", "\r\nBcc: x@y", "a\u2028b", "<script>x</script>", "<p>hi</p>", "x\x00", "\ud800"),
    *("<a href=javascript:x>y</a>", "<mention-component entity_identifier=a></mention-component>"),
    *(
        "{{ 7919 * 7907 }}",
        "{% raw %}",
        "&#8238;",
        "=?utf-8?q?x?=",
        "0001-01-01",
        "https://e.test/<x>",
    ),
]
ALLOWED_TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "div",
        "table",
        "tr",
        "td",
        "p",
        "h1",
        "span",
    ),
    *("a", "b", "blockquote", "br", "code", "em", "hr", "i", "li", "ol", "pre", "s", "strong"),
    *("u", "ul"),
}
ALLOWED_ATTRIBUTES = {
    *("href", "style", "class", "charset", "name", "content", "lang", "role", "width", "border"),
    *("cellpadding", "cellspacing", "align", "bgcolor"),
}


texts = st.sampled_from(NASTY) | st.text(max_size=30).filter(lambda text: "None" not in text)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
activities = st.fixed_dictionaries(
    {},
    optional={
        "verb": st.sampled_from(["created", "updated", "deleted", "None", None]) | values,
        "field": st.sampled_from(FIELDS) | values,
        "old_value": values,
        "new_value": values,
        "comment": values,
        "issue_comment": values,
        "old_identifier": st.sampled_from(["1", "2", None]) | values,
        "new_identifier": st.sampled_from(["1", "2", None]) | values,
        "actor": values,
        "at": values,
        "activity_time": st.datetimes().map(str) | values,
        "id": st.sampled_from(["a", "b", None]) | values,
    },
)
issues = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("id", "name", "identifier", "sequence_id", "project_id"), values),
)
data = (
    values
    | activities
    | st.fixed_dictionaries({"issue": issues | values, "issue_activity": activities | values})
)
notifications = st.builds(
    Notification,
    id=st.uuids().map(str),
    data=data,
    triggered_by_id=st.sampled_from(["a", "b", "None", None]) | texts,
    created_at=st.datetimes(timezones=st.just(UTC)),
    oversized=st.booleans(),
)
optional_texts = st.none() | texts
entities = st.builds(Entity, texts, texts, optional_texts, optional_texts, optional_texts)
recipients = st.builds(
    Recipient,
    id=st.sampled_from(["a", "r"]),
    email=st.just("r@example.com") | texts,
    display_name=optional_texts,
    locale=optional_texts,
    time_zone=optional_texts | st.sampled_from(["Europe/Paris", "Asia/Kathmandu"]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(notifications, max_size=6),
    entities,
    recipients,
    st.dictionaries(st.sampled_from(["a", "b"]), texts),
)
def test_D13_H04_H05_any_json_makes_a_sound_mail(
    rows: list[Notification], entity: Entity, recipient: Recipient, people: dict[str, str]
) -> None:
    """It raises nothing but InvalidAddress; no None, no header, no markup of anybody's own."""
    people_named(rows)
    digest = make_digest(rows, entity=entity, people=people, base_url="https://t.example.test")
    try:
        mail = render(
            digest, recipient, mail_from="T <t@e.test>", message_id="<a@e.test>", date=MORNING
        )
    except InvalidAddress:
        assert recipient.email != "r@example.com"
        return
    page = Page(mail.html)
    assert "None" not in mail.subject + mail.text + page.text
    for tag, attributes in page.tags:
        assert tag in ALLOWED_TAGS
        assert attributes.keys() <= ALLOWED_ATTRIBUTES
    assert all(link.startswith(("https://", "http://", "mailto:")) for link in page.links)
    assert len(parsed(mail).keys()) == 11
    assert re.search(rb"(?<!\r)\n|\r(?!\n)", mail.content) is None
    assert str(7919 * 7907) not in page.text


def nested(depth: int, kind: str) -> object:
    value: object = "end"
    for _ in range(depth):
        value = [value] if kind == "list" else {"new_value": value, "field": value}
    return value


def deep() -> Iterator[object]:
    for depth in (10, 900, 100_000):
        for kind in ("list", "dict"):
            yield nested(depth, kind)
            yield {"issue_activity": nested(depth, kind)}
            yield {"field": "state", "new_value": nested(depth, kind)}
            yield {"issue": nested(depth, kind), "foo": nested(depth, kind)}


def test_D13_any_depth_is_told() -> None:
    """Nesting far beyond what Python's own recursion allows."""
    reader = Recipient("r", "r@example.com", None, None, None)
    for value in deep():
        row = Notification("1", value, None, datetime(2026, 1, 1, tzinfo=UTC))
        people_named([row])
        digest = make_digest([row], entity=Entity("issue", "1", None, None, None), people={})
        mail = render(digest, reader, mail_from="t@e.test", message_id="a@b", date=MORNING)
        assert digest.update_count == 1
        assert len(mail.text) < 2_000
