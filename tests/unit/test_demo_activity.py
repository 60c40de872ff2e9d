"""What the demo makes up looks like the rows of the real tracker."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.demonstration.activity import Tracker
from pipeline.demonstration.phrases import stripped
from pipeline.demonstration.rows import Row

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "sample_rows.jsonl"


def made_up(seed: int = 1, count: int = 4000) -> list[Row]:
    tracker = Tracker(seed)
    rows: list[Row] = []
    while len(rows) < count:
        rows += tracker.happen()
    return rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return made_up()


def activities(rows: list[Row]) -> list[dict[str, Any]]:
    return [row.data["issue_activity"] for row in rows if row.data is not None]


def shapes(data: list[dict[str, Any]]) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The sets of keys that occur together."""
    return {(tuple(sorted(each["issue"])), tuple(sorted(each["issue_activity"]))) for each in data}


def test_the_same_seed_makes_the_same_things_happen() -> None:
    """But for the time, everything follows from the seed."""

    def timeless(rows: list[Row]) -> list[object]:
        told: list[object] = []
        for row in rows:
            data = json.loads(json.dumps(row.data))
            if data is not None:
                data["issue_activity"]["activity_time"] = None
            told.append((row.receiver_id, row.triggered_by_id, row.entity_identifier, data))
        return told

    assert timeless(made_up(7, 500)) == timeless(made_up(7, 500))
    assert timeless(made_up(7, 500)) != timeless(made_up(8, 500))


def test_rows_have_the_keys_of_real_ones(rows: list[Row]) -> None:
    """No row has a set of keys that the real tracker doesn't write, and every real set occurs."""
    real = [json.loads(line)["data"] for line in SAMPLE.read_text().splitlines()]

    assert shapes([row.data for row in rows if row.data is not None]) == shapes(real)


def test_every_kind_of_change_of_the_real_rows_occurs(rows: list[Row]) -> None:
    """Every pair of verb and field that the real rows have, but for the end of an item."""
    real = [json.loads(line)["data"]["issue_activity"] for line in SAMPLE.read_text().splitlines()]
    pairs = {(each["verb"], each["field"]) for each in real} - {("deleted", "issue")}

    assert pairs <= {(each["verb"], each["field"]) for each in activities(rows)}


def test_missing_values_are_the_text_None(rows: list[Row]) -> None:
    """Values are texts, never null; where there was nothing it says "None", or nothing."""
    values = [each[name] for each in activities(rows) for name in ("old_value", "new_value")]

    assert all(isinstance(value, str) for value in values)
    assert {"None", ""} <= set(values)
    assert {each["actor"] == "None" for each in activities(rows)} == {True, False}


def test_times_come_in_all_their_forms(rows: list[Row]) -> None:
    """With and without a fraction, with a space and an offset, and not at all."""
    forms = {
        None if text is None else re.sub(r"\d", "0", text)
        for text in (each["activity_time"] for each in activities(rows))
    }

    assert {
        None,
        "0000-00-00T00:00:00.000000Z",
        "0000-00-00T00:00:00Z",
        "0000-00-00 00:00:00.000000+00:00",
    } <= forms


def test_changes_are_undone_now_and_then(rows: list[Row]) -> None:
    """Some changes go back to where they came from at once."""
    told = [(each["field"], each["old_value"], each["new_value"]) for each in activities(rows)]
    seen = list(dict.fromkeys(told))

    assert any(
        (field, new, old) == following and old != new
        for (field, old, new), following in itertools.pairwise(seen)
    )


def test_people_are_mentioned_in_comments(rows: list[Row]) -> None:
    """Comments carry mention components; some of those who are mentioned are gone."""
    known = {person.id for person in Tracker(1).people}
    named = re.findall(
        r'entity_identifier="([^"]+)" entity_name="user_mention"', str(activities(rows))
    )

    assert known & set(named)
    assert set(named) - known
    assert any(row.is_urgent for row in rows)


def test_nobody_is_told_what_they_did_themselves(rows: list[Row]) -> None:
    """Whoever did it is not among those who are told."""
    assert all(row.receiver_id != row.triggered_by_id for row in rows)


def test_rows_without_data_occur(rows: list[Row]) -> None:
    """Now and then a row says nothing at all."""
    assert any(row.data is None for row in rows)


def test_comments_are_stripped_of_their_tags() -> None:
    """Beside the HTML the tracker keeps the bare text."""
    assert stripped('<p>ping <mention-component id="1"></mention-component> please</p>') == (
        "ping  please"
    )
    assert stripped("<p>no end <b") == "no end "
