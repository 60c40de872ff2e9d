"""Leases are renewed beside the sender's own transactions, and never in their way."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import psycopg2
import pytest

from pipeline import delivery
from pipeline.database import boot_clock, connect, transaction
from pipeline.delivery import Claimed
from pipeline.lease import Keeper
from tests.support.installation import Installation

LEASE = timedelta(seconds=30)


def test_renewing_leases_never_waits_for_the_transaction_that_settles(
    installation: Installation,
) -> None:
    """Both lock several deliveries: if one waited for the other, they could wait for each other."""
    installation.notify_many(3)
    installation.stack()
    with transaction(installation.connection) as cursor:
        first, second, third = delivery.claim(cursor, limit=3, lease=timedelta(seconds=1))
    keeper = Keeper(installation.url, lease=LEASE)
    keeper.keep(1, first.token, taken_at=boot_clock())
    for claimed in (first, second, third):
        keeper.hold(claimed.id, claimed.token)

    with (
        closing(connect(installation.url)) as beside,
        transaction(installation.connection) as cursor,
    ):
        assert delivery.begin(cursor, second, worker="test", lease=LEASE)
        with beside.cursor() as watching:
            watching.execute("SET lock_timeout = '2s'")
        keeper._renew(beside)

    left = "SELECT id::text FROM pipeline.delivery WHERE lease_expires_at < now() + interval '9 s'"
    assert installation.query(left) == []


#: How many deliveries a keeper has renewed of late.
RENEWED = "SELECT count(*) FROM pipeline.delivery WHERE lease_expires_at > now() + interval '9 s'"


def claim_one(installation: Installation) -> Claimed:
    """A delivery whose lease is over in a second."""
    installation.notify_many(1)
    installation.stack()
    with transaction(installation.connection) as cursor:
        (claimed,) = delivery.claim(cursor, limit=1, lease=timedelta(seconds=1))
    return claimed


def test_a_delivery_that_was_claimed_anew_is_not_let_go_with_the_old_claim(
    installation: Installation,
) -> None:
    """Who had it before says so late; its new sender is the same process."""
    claimed = claim_one(installation)
    keeper = Keeper(installation.url, lease=LEASE)
    keeper.hold(claimed.id, claimed.token)
    keeper.drop(claimed.id, "00000000-0000-0000-0000-000000000000")
    keeper._renew(installation.connection)
    assert installation.value(RENEWED) == 1

    keeper.drop(claimed.id, claimed.token)
    installation.query("UPDATE pipeline.delivery SET lease_expires_at = now()")
    keeper._renew(installation.connection)
    assert installation.value(RENEWED) == 0


def test_a_place_that_somebody_has_locked_takes_no_delivery_along(
    installation: Installation,
) -> None:
    """The deliveries' leases are renewed all the same."""
    claimed = claim_one(installation)
    token = installation.value(
        "INSERT INTO pipeline.sender (slot, token) VALUES (1, gen_random_uuid()) "
        "RETURNING token::text"
    )
    keeper = Keeper(installation.url, lease=LEASE)
    keeper.keep(1, token, taken_at=boot_clock())
    keeper.hold(claimed.id, claimed.token)
    with (
        closing(connect(installation.url)) as beside,
        transaction(installation.connection) as cursor,
    ):
        cursor.execute("SELECT FROM pipeline.sender FOR UPDATE")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            keeper._renew(beside)
    assert installation.value(RENEWED) == 1


def test_a_keeper_that_never_began_can_be_stopped() -> None:
    """The thread that was to be its own could not be had."""
    keeper = Keeper("", lease=LEASE)
    keeper.stop()
    assert not keeper._thread.is_alive()
