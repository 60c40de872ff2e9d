"""Comments and descriptions: each is told once, as it reads now."""

import pytest

from tests.support.digests import digest_of, headings, lines, mail_of, notification, row, told

MENTION = '<p>ping <mention-component entity_identifier="{}"></mention-component> please</p>'


def test_created_then_updated_shows_the_latest_text_once() -> None:
    """What it says now, not what it said."""
    rows = [
        row("comment", "None", "<p>one</p>", verb="created", new_identifier="c"),
        row(
            "comment", "<p>one</p>", "<p>two</p>", minute=1, new_identifier="c", old_identifier="c"
        ),
        row("comment", "<p>two</p>", "<p>three</p>", minute=2, old_identifier="c"),
    ]
    (line, text) = told(*rows)
    assert text == "    three"
    assert line.endswith("omment:")


def test_created_then_deleted_shows_nothing() -> None:
    """Known by its identifier."""
    rows = [
        row("comment", "None", "<p>one</p>", verb="created", new_identifier="c"),
        row("comment", "None", "None", minute=1, verb="deleted", old_identifier="c"),
    ]
    assert digest_of(*rows).is_empty


def test_a_deletion_without_an_identifier_is_known_by_its_text() -> None:
    """A real deletion row names the comment only by its stripped text."""
    rows = [
        row("comment", "None", "<p>first</p>", verb="created", new_identifier="c1"),
        row("comment", "<p>first</p>", "<p>first!</p>", minute=1, new_identifier="c1"),
        row("comment", "None", "<p>second</p>", minute=2, verb="created", new_identifier="c2"),
        row("comment", "None", "None", minute=3, verb="deleted", issue_comment="first"),
    ]
    assert told(*rows) == ["- Commented:", "    second"]


def test_a_deletion_without_a_word_is_the_author_s_latest() -> None:
    """Neither id nor text: the author's last comment that is still there."""
    rows = [
        row("comment", "None", "one", verb="created"),
        row("comment", "None", "two", minute=1, verb="created"),
        row("comment", "None", "theirs", minute=2, verb="created", by="bob"),
        row("comment", "None", "None", minute=3, verb="deleted"),
        row("comment", "None", "None", minute=4, verb="deleted"),
        row("comment", "None", "None", minute=5, verb="deleted"),
    ]
    mail = mail_of(digest_of(*rows))
    assert lines(mail) == ["- Commented:", "    theirs", "- Deleted a comment"]


def test_a_deletion_of_an_older_comment_hides_no_new_one() -> None:
    """Its text is another: the new comment stays."""
    rows = [
        row("comment", "None", "<p>new</p>", verb="created", new_identifier="c"),
        row("comment", "None", "None", minute=1, verb="deleted", issue_comment="from last week"),
        row("comment", "None", "None", minute=2, verb="deleted", old_identifier="older"),
    ]
    assert told(*rows) == ["- Commented:", "    new", "- Deleted a comment", "- Deleted a comment"]


def test_an_edit_of_an_older_comment_is_told_by_its_latest_text() -> None:
    """The comment itself was told before; only its edits are in this stack."""
    rows = [
        row("comment", "<p>1</p>", "<p>2</p>", new_identifier="c"),
        row("comment", "<p>2</p>", "<p>3</p>", minute=1, new_identifier="c"),
    ]
    assert told(*rows) == ["- Edited a comment:", "    3"]


def test_an_edit_that_was_undone_is_nothing() -> None:
    """It reads as it did before."""
    rows = [
        row("comment", "<p>1</p>", "<p>2</p>", new_identifier="c"),
        row("comment", "<p>2</p>", "<p>1</p>", minute=1, new_identifier="c"),
    ]
    assert digest_of(*rows).is_empty


def test_an_edit_then_a_deletion_is_a_deletion() -> None:
    """The comment was there before this stack, and is gone."""
    rows = [
        row("comment", "<p>1</p>", "<p>2</p>", new_identifier="c"),
        row("comment", "None", "None", minute=1, verb="deleted", old_identifier="c", by="bob"),
    ]
    mail = mail_of(digest_of(*rows))
    assert lines(mail) == ["- Deleted a comment"]
    assert headings(mail)[0].startswith("Bob Brown")


def test_the_same_words_twice_are_two_comments() -> None:
    """Somebody may say "+1" again an hour later."""
    rows = [row("comment", "None", "+1", verb="created", minute=minute) for minute in (0, 60)]
    assert told(*rows) == ["- Commented:", "    +1", "- Commented:", "    +1"]


@pytest.mark.parametrize("identifier", ["c", None])
def test_a_mention_row_that_repeats_a_comment_is_told_once(identifier: str | None) -> None:
    """The one who was mentioned gets the comment's row and a row for the mention."""
    text = MENTION.format("reader")
    rows = [
        row("mention", "None", text, verb="created", new_identifier=identifier),
        row("comment", "None", text, verb="created", new_identifier="c"),
    ]
    assert told(*rows) == ["- Mentioned you in a comment:", "    ping @Rita Reader please"]


def test_a_mention_row_alone_tells_the_comment() -> None:
    """Who doesn't follow the item gets the mention's row only."""
    rows = [
        row("mention", "None", MENTION.format("reader"), verb="created", new_identifier="c"),
        row("comment", "None", "None", verb="deleted", minute=1, issue_comment="ping  please"),
    ]
    assert told(rows[0]) == ["- Mentioned you in a comment:", "    ping @Rita Reader please"]
    assert digest_of(*rows).is_empty


def test_mentions_in_the_description_are_told_as_they_are_now() -> None:
    """Several edits of the description are one, with those newly named."""
    first, second = MENTION.format("bob"), MENTION.format("bob") + MENTION.format("gone")
    rows = [
        row("mention", "<p>hello</p>", first, minute=0),
        row("mention", first, second, minute=1),
        row("mention", first, second, minute=1),
    ]
    assert told(*rows) == [
        "- Mentioned Bob Brown and someone in the description:",
        "    ping @Bob Brown please",
        "    ping @someone please",
    ]


def test_a_mention_without_its_attribute_is_someone() -> None:
    """The attribute may be missing."""
    text = "<p>ping <mention-component></mention-component></p>"
    assert told(row("comment", "None", text, verb="created")) == [
        "- Commented:",
        "    ping @someone",
    ]


def test_a_description_that_was_emptied() -> None:
    """Nothing to quote."""
    assert told(row("description", "<p>x</p>", "<p></p>")) == ["- Cleared the description"]


def test_a_comment_that_comes_with_another_change() -> None:
    """The plain form may carry a word with any change."""
    data = {"field": "state", "old_value": "A", "new_value": "B", "comment": "at last"}
    assert sorted(told(notification(data))) == ["    at last", "- Commented:", "- State: A → B"]


def test_the_plain_form_of_a_comment() -> None:
    """`comment` may hold the text, with or without a field."""
    for data in (
        {"verb": "created", "field": "comment", "comment": "hi"},
        {"verb": "created", "field": "comment", "new_value": "hi"},
        {"verb": "created", "comment": "hi"},
        {"comment": "hi"},
    ):
        assert told(notification(data)) == ["- Commented:", "    hi"]


def test_a_thousand_equal_comments_are_quick() -> None:
    """Looking for repetitions takes time in proportion."""
    rows = [row("comment", "None", "+1", verb="created", minute=m) for m in range(4000)]
    rows += [row("comment", "None", "None", verb="deleted", minute=m + 4000) for m in range(3000)]
    assert digest_of(*rows).update_count == 1000
