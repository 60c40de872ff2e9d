"""What can go wrong, told so that the reader knows what to do."""


class EmbeddedPostgresError(RuntimeError):
    """The embedded Postgres can't be had; the text says why and what to do about it."""
