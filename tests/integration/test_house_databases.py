"""The databases that tests are given."""

from pipeline.embedded import EmbeddedPostgres
from tests.support.postgres import execute, fresh_database


def test_an_empty_database_is_empty_and_speaks_unicode(empty_database_url: str) -> None:
    """A test's own database starts with nothing in it, in UTF-8 with C.UTF-8's rules."""
    tables = execute(empty_database_url, "SELECT FROM pg_tables WHERE schemaname = 'public'")
    [(encoding, lowered)] = execute(
        empty_database_url, "SELECT current_setting('server_encoding'), lower('ÄÖ')"
    )

    assert tables == []
    assert (encoding, lowered) == ("UTF8", "äö")


def test_a_database_is_gone_after_its_test(postgres: EmbeddedPostgres) -> None:
    """Leaving the block drops the database."""
    with fresh_database(postgres, "template1") as url:
        [(name,)] = execute(url, "SELECT current_database()")

    left = execute(postgres.dsn("postgres"), "SELECT FROM pg_database WHERE datname = %s", (name,))
    assert left == []
