"""Leases are renewed beside the sender's own transactions, and never in their way."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

from pipeline import delivery
from pipeline.database import boot_clock, connect, transaction
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
