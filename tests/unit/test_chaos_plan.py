"""What a chaos run will do is known from its seed."""

from __future__ import annotations

from pipeline.chaos.plan import OURS_ALONE, Kind, Mood, counted, make_plan


def test_a_seed_repeats_its_plan_and_another_one_does_not() -> None:
    """The same arguments give the same events at the same times."""
    assert make_plan(7, 120) == make_plan(7, 120)
    assert make_plan(7, 120) != make_plan(8, 120)


def test_ten_minutes_have_enough_of_everything() -> None:
    """Hundreds of kills, ten restarts and more, every mood; in order, and within the time."""
    plan = make_plan(1, 600)
    counts = counted(plan)

    assert set(counts) == {kind.value for kind in Kind}
    assert counts["kill"] >= 200
    assert counts["restart the database"] >= 10
    assert {event.mood for event in plan if event.kind is Kind.MOOD} == set(Mood) - {Mood.WELL}
    assert [event.at for event in plan] == sorted(event.at for event in plan)
    assert all(0 <= event.at < 600 and 0 <= event.share < 1 for event in plan)


def test_what_may_not_happen_is_not_planned() -> None:
    """Nobody restarts a server that others use, and the rest is as it would be."""
    plan = make_plan(3, 300, without=OURS_ALONE)

    assert not {event.kind for event in plan} & OURS_ALONE
    assert plan == [event for event in make_plan(3, 300) if event.kind not in OURS_ALONE]


def test_the_rate_of_faults_is_in_proportion() -> None:
    """Twice as many with 2, none with 0."""
    usual, twice = counted(make_plan(1, 600)), counted(make_plan(1, 600, rate=2))

    assert twice["kill"] == 2 * usual["kill"]
    assert make_plan(1, 600, rate=0) == []
