"""A stack is told by its net effect."""

import random
from datetime import timedelta

import pytest

from pipeline.digest import Entity, make_digest, people_named
from tests.support.digests import (
    ENTITY,
    PEOPLE,
    digest_of,
    headings,
    lines,
    mail_of,
    notification,
    row,
    told,
)


def test_several_steps_are_told_as_one() -> None:
    """Todo → Doing → Done is Todo → Done."""
    rows = [row("state", "Todo", "Doing", minute=1), row("state", "Doing", "Done", minute=2)]
    assert told(*rows) == ["- State: Todo → Done"]


def test_the_order_of_rows_does_not_matter() -> None:
    """Rows are put in the order of their activities, however they were read."""
    names = ["Backlog", "Todo", "Doing", "Review", "Done"]
    rows = [
        row("state", names[step], names[step + 1], minute=step) for step in range(len(names) - 1)
    ]
    random.Random(7).shuffle(rows)
    assert told(*rows) == ["- State: Backlog → Done"]


def test_rows_of_one_moment_are_put_in_the_order_that_makes_a_chain() -> None:
    """With the same time on every row, the values themselves tell where it began and ended."""
    rows = [row("state", "Doing", "Done"), row("state", "Todo", "Doing")]
    assert told(*rows) == ["- State: Todo → Done"]


def test_there_and_back_is_nothing() -> None:
    """A → B → A leaves nothing to say."""
    digest = digest_of(row("state", "A", "B"), row("state", "B", "A", minute=1))
    assert digest.is_empty


def test_B01_only_what_is_still_different_is_told() -> None:
    """What went back is left out; the rest stays."""
    rows = [
        row("state", "A", "B"),
        row("priority", "low", "high", minute=1),
        row("state", "B", "A", minute=2),
    ]
    assert told(*rows) == ["- Priority: low → high"]


def test_B01_nothing_left_makes_an_empty_digest() -> None:
    """Labels, comments and dates that came and went, all at once: nothing."""
    digest = digest_of(
        row("labels", "", "bug", minute=0, new_identifier="l1"),
        row("comment", "None", "<p>hm</p>", minute=1, verb="created", new_identifier="c1"),
        row("target_date", "", "2026-07-01", minute=2),
        row("target_date", "2026-07-01", "", minute=3),
        row("comment", "None", "None", minute=4, verb="deleted", old_identifier="c1"),
        row("labels", "bug", "", minute=5, old_identifier="l1"),
        row("archived_at", "None", "archive", minute=6),
        row("archived_at", "archive", "restore", minute=7),
    )
    assert digest.is_empty
    assert digest.update_count == 0


def test_no_rows_make_an_empty_digest() -> None:
    """Nothing in, nothing to say."""
    assert make_digest([], entity=ENTITY, people={}).is_empty


def test_omitted_rows_alone_are_not_empty() -> None:
    """Rows that were not read are still something to tell."""
    digest = digest_of(omitted_count=3)
    assert not digest.is_empty
    assert "3 more" in mail_of(digest).text


@pytest.mark.parametrize(
    ("field", "old", "new", "expected"),
    [
        ("name", "Old", "New", "Name: Old → New"),
        ("priority", "none", "urgent", "Priority set to urgent"),
        ("priority", "urgent", "none", "Priority removed, was urgent"),
        ("state", "None", "Todo", "State set to Todo"),
        ("start_date", "", "2026-07-01", "Start date set to 2026-07-01"),
        ("target_date", "2026-07-01", "", "Target date removed, was 2026-07-01"),
        ("parent", "", "ROC-2", "Parent set to ROC-2"),
        ("parent", "ROC-2", "ROC-3", "Parent: ROC-2 → ROC-3"),
        ("estimate_points", "None", "5", "Estimate set to 5"),
        ("estimate_time", "5", "None", "Estimate removed, was 5"),
        ("labels", "", "bug", "Label added: bug"),
        ("labels", "bug", "", "Label removed: bug"),
        ("assignees", "", "Bob", "Assigned to Bob"),
        ("assignees", "Bob", "", "Unassigned Bob"),
        ("blocked_by", "", "ROC-2", "Now blocked by ROC-2"),
        ("blocking", "ROC-2", "", "No longer blocking ROC-2"),
        ("relates_to", "", "ROC-2", "Now related to ROC-2"),
        ("duplicate", "", "ROC-2", "Now a duplicate of ROC-2"),
        ("start_before", "", "ROC-2", "Now to start before ROC-2"),
        ("archived_at", "None", "archive", "Archived this issue"),
        ("archived_at", "None", "manual_archive", "Archived this issue"),
        ("archived_at", "archive", "restore", "Restored this issue"),
        ("archived_at", "None", "restore", "Restored this issue"),
        ("link", "None", "https://e.test/x", "Link added: https://e.test/x"),
        ("link", "https://e.test/x", "", "Link removed: https://e.test/x"),
        ("attachment", "None", "u/photo.png", "Attachment added: photo.png"),
        ("intake", "pending", "accepted", "Intake: pending → accepted"),
        ("customer_tier", "gold", "platinum", "Customer tier: gold → platinum"),
        ("customer_tier", "None", "None", "Customer tier updated"),
        ("mention", "medium", "high", "Update: medium → high"),
        (None, "a", "b", "Update: a → b"),
        (7, "a", "b", "Update: a → b"),
        ("flags", True, False, "Flags: yes → no"),
        ("size", {"w": 1}, {"w": 2, "h": None}, "Size: w: 1 → w: 2; h: –"),
    ],
)
def test_each_field_in_words(field: object, old: object, new: object, expected: str) -> None:
    """Every field that trackers write, and some that nobody knows."""
    assert told(row(field, old, new)) == [f"- {expected}"]


@pytest.mark.parametrize(
    ("field", "verb", "expected"),
    [
        ("issue", "deleted", "Deleted this issue"),
        ("issue", "created", "Created this issue"),
        ("None", "created", "Created this issue"),
        (None, "moved", "Moved this issue"),
        (None, "x-y", "Update: x-y"),
        ("comment", "deleted", "Deleted a comment"),
        ("attachment", "deleted", "Attachment removed"),
        ("customer_tier", "deleted", "Customer tier deleted"),
        (None, None, "Made a change without further details"),
    ],
)
def test_each_event_in_words(field: object, verb: object, expected: str) -> None:
    """Rows that carry the string None on both sides say what was done by their verb."""
    assert told(row(field, "None", "None", verb=verb)) == [f"- {expected}"]


def test_a_set_is_told_by_what_is_in_it_now() -> None:
    """Labels: what was added or removed in the end, in one line."""
    rows = [
        row("labels", "", "bug", new_identifier="1"),
        row("labels", "", "ui", minute=1, new_identifier="2"),
        row("labels", "old", "", minute=2, old_identifier="3"),
        row("labels", "ui", "", minute=3, old_identifier="2"),
        row("labels", "", "late", minute=4, new_identifier="4"),
    ]
    assert told(*rows) == ["- Labels added: bug, late; removed: old"]


def test_taken_off_and_put_on_again_is_nothing() -> None:
    """A removal that was undone leaves nothing to say."""
    rows = [row("assignees", "Bob", "", old_identifier="b"), row("assignees", "", "Bob", minute=1)]
    assert digest_of(*rows).is_empty


def test_two_people_of_one_name_are_two() -> None:
    """Names can be the same; the identifiers tell."""
    rows = [
        row("assignees", "", "Alex", new_identifier="a1"),
        row("assignees", "Alex", "", minute=1, old_identifier="a2"),
    ]
    assert told(*rows) == ["- Assigned to Alex; unassigned Alex"]


def test_a_relation_is_undone_by_its_name() -> None:
    """A relation's identifier stands on either side, whatever was done."""
    rows = [
        row("blocked_by", "", "ROC-2", old_identifier="x"),
        row("blocked_by", "ROC-2", "", minute=1, old_identifier="x"),
    ]
    assert digest_of(*rows).is_empty


def test_an_unknown_field_that_only_gains_values_is_a_set() -> None:
    """Two additions in a row: nothing of the first is lost."""
    rows = [row("watchers", "", "Ann"), row("watchers", "", "Ben", minute=1)]
    assert told(*rows) == ["- Watchers added: Ann, Ben"]


def test_a_link_that_was_changed_is_told_as_it_is_now() -> None:
    """Created, then changed: the address it has now, once."""
    rows = [
        row("link", "None", "https://e.test/1", verb="created"),
        row("link", "https://e.test/1", "https://e.test/2", minute=1),
    ]
    assert told(*rows) == ["- Link added: https://e.test/2"]


def test_an_attachment_removed_without_its_name_is_the_author_s_latest() -> None:
    """A deleted attachment's row names nothing at all."""
    rows = [
        row("attachment", "None", "u/a.png", verb="created", new_identifier="1"),
        row("attachment", "None", "u/b.png", minute=1, verb="created", new_identifier="2"),
        row("attachment", "None", "None", minute=2, verb="deleted"),
    ]
    assert told(*rows) == ["- Attachment added: a.png"]


def test_the_same_row_twice_is_told_once() -> None:
    """A row that is handed in twice says no more than once."""
    one = row("comment", "None", "<p>hi</p>", verb="created")
    assert told(one, one) == ["- Commented:", "    hi"]


def test_the_same_activity_twice_is_told_once() -> None:
    """Two rows with one activity's id are one."""
    rows = [row("comment", "None", "<p>hi</p>", verb="created", id="a1") for _ in range(2)]
    assert told(*rows) == ["- Commented:", "    hi"]


def test_two_fields_of_one_activity_id_are_both_told() -> None:
    """An id that a shop uses for more than one field hides nothing."""
    rows = [
        row("start_date", "", "2026-07-01", id="5"),
        row("target_date", "", "2026-07-01", id="5"),
    ]
    assert told(*rows) == ["- Start date set to 2026-07-01", "- Target date set to 2026-07-01"]


def test_a_mention_row_with_another_field_s_values_repeats_nothing() -> None:
    """One edit writes a mention row that carries the values of its priority."""
    rows = [
        row("mention", "medium", "high", id="a1"),
        row("priority", "medium", "high", id="a1"),
    ]
    assert told(*rows) == ["- Priority: medium → high"]


def test_updates_are_in_the_order_in_which_they_happened() -> None:
    """Oldest first, by the activity's time and not the row's."""
    late = row("state", "A", "B", activity_time="2026-12-01 09:30:00.5+00:00")
    early = row("priority", "low", "high", minute=40, activity_time="2026-12-01T09:10:00Z")
    untimed = row("name", "X", "Y", minute=20, activity_time=None)
    mail = mail_of(digest_of(late, early, untimed))
    assert lines(mail) == ["- Priority: low → high", "- Name: X → Y", "- State: A → B"]
    assert [heading.rpartition(", ")[2] for heading in headings(mail)] == [
        "10:10 CET",
        "10:20 CET",
        "10:30 CET",
    ]


def test_an_impossible_time_falls_back_to_the_row_s() -> None:
    """Times that are no times, or at the end of the calendar, are not shown."""
    impossible: tuple[object, ...] = (
        "soon",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        17,
        [],
        "",
    )
    for nonsense in impossible:
        mail = mail_of(digest_of(row("state", "A", "B", activity_time=nonsense)))
        assert headings(mail) == ["Alice Adams, 1 Dec 2026, 10:00 CET"]


def test_everybody_who_took_part_is_named() -> None:
    """A net change that two people made is not put on the last one alone."""
    rows = [row("state", "A", "B", by="alice"), row("state", "B", "C", minute=1, by="bob")]
    assert headings(mail_of(digest_of(*rows)))[0].startswith("Alice Adams and Bob Brown, ")


def test_the_reader_is_you() -> None:
    """The reader's own name is not read out to them."""
    rows = [
        row("assignees", "", "Rita", new_identifier="reader"),
        row("state", "A", "B", minute=1, by="reader"),
    ]
    mail = mail_of(digest_of(*rows))
    assert lines(mail)[0] == "- Assigned to you"
    assert headings(mail)[1].startswith("You, ")


@pytest.mark.parametrize("by", ["gone", None, "None", ""])
def test_C01_a_deleted_person_is_someone(by: str | None) -> None:
    """Who did it may be deleted by now; what they did is told all the same."""
    mail = mail_of(digest_of(row("state", "A", "B", by=by, actor="None")))
    assert headings(mail) == ["Someone, 1 Dec 2026, 10:00 CET"]
    assert lines(mail) == ["- State: A → B"]


def test_C01_a_deleted_entity_is_told_from_its_rows() -> None:
    """With no entity to look up, the rows' own words are used."""
    gone = Entity("issue", "17", None, None, None)
    issue = {"id": "i 1", "name": "Leak", "identifier": "ROC", "sequence_id": 7}
    data = {"issue": issue, "issue_activity": {"field": "state", "new_value": "Done"}}
    digest = digest_of(notification(data), entity=gone)
    assert (digest.entity.reference, digest.entity.title) == ("ROC-7", "Leak")
    assert mail_of(digest).subject == "ROC-7 Leak: State set to Done"


def test_C01_nothing_known_about_the_entity_still_makes_a_mail() -> None:
    """Neither a view nor a row says what it is: its name and id are used."""
    digest = digest_of(row("state", "A", "B"), entity=Entity("issue", "17", None, None, None))
    assert mail_of(digest).subject == "Issue 17: State A → B"


def test_the_actor_in_the_row_counts_if_the_column_is_empty() -> None:
    """`triggered_by_id` first, `actor` after it."""
    mail = mail_of(digest_of(row("state", "A", "B", by=None, actor="bob")))
    assert headings(mail)[0].startswith("Bob Brown, ")


def test_the_link_is_made_from_the_rows() -> None:
    """An entity without a url is found by its workspace, project and id, safely quoted."""
    issue = {"id": "i/1", "project_id": "p", "workspace_slug": "ac me"}
    data = {"issue": issue, "issue_activity": {"field": "state", "new_value": "Done"}}
    entity = Entity("issue", "17", None, None, None)
    digest = digest_of(
        notification(data),
        row("name", "a", "b", minute=1),
        entity=entity,
        base_url="https://t.example.test/",
    )
    assert digest.entity.url == "https://t.example.test/ac%20me/projects/p/issues/i%2F1"


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "//evil.test", "data:text/html,x", "https:"]
)
def test_H05_only_web_links_are_kept(url: str) -> None:
    """A link of another kind is no link."""
    entity = Entity("issue", "17", "ROC-1", "T", url)
    digest = digest_of(row("state", "A", "B"), entity=entity, base_url="javascript:alert(1)")
    assert digest.entity.url is None


def test_the_title_is_the_newest_name() -> None:
    """Rows carry the name from before a change of name."""
    issue = {"name": "Old name"}
    renamed = {"field": "name", "old_value": "Old name", "new_value": "New name"}
    rows = [
        notification({"issue": issue, "issue_activity": renamed}),
        notification(
            {"issue": issue, "issue_activity": {"field": "state", "new_value": "Done"}}, minute=1
        ),
    ]
    digest = digest_of(*rows, entity=Entity("issue", "17", None, None, None))
    assert digest.entity.title == "New name"


def test_people_named_are_all_that_a_digest_may_show() -> None:
    """Who did it, and who is mentioned, in either form."""
    mention = '<p><mention-component id="1" entity_identifier="carol"></mention-component></p>'
    rows = [
        row("comment", "None", mention, verb="created"),
        row("state", "A", "B", by=None, actor="bob"),
        notification({"comment": mention.replace("carol", "dave")}, by="erin"),
        notification(None, by=None),
        notification([1, {"x": "y"}], by="\x00bad"),
    ]
    assert people_named(rows) == {"alice", "bob", "carol", "dave", "erin"}


def test_B02_a_giant_stack_is_told_in_part() -> None:
    """Fifty items, then how many more; what was not read is counted with them."""
    rows = [row(f"field_{number}", "a", "b", minute=number) for number in range(80)]
    digest = digest_of(*rows, omitted_count=9_920)
    assert (len(digest.items), digest.more_count, digest.update_count) == (50, 9_950, 10_000)
    mail = mail_of(digest)
    assert "\nand 9,950 more\n" in mail.text
    assert mail.subject == "ROC-1 Engine leaks oil: 10000 updates"


def test_the_time_is_that_of_the_last_step() -> None:
    """A net change is as old as its latest step."""
    rows = [row("state", "A", "B", minute=0), row("state", "B", "C", minute=30)]
    (item,) = digest_of(*rows).items
    assert item.at == rows[1].created_at == rows[0].created_at + timedelta(minutes=30)
    assert PEOPLE["alice"] == item.actors[0].name
