"""A Postgres of our own, for machines where nobody has set one up.

The binaries come with the `demo` extra (or from wherever else a Postgres is installed); the data
lives in one folder. Any number of processes share one server: the first one starts it, and it
stops when the last one has left, however that one died.
"""

from .errors import EmbeddedPostgresError
from .server import EmbeddedPostgres
from .shared import default_folder, embedded_url

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "default_folder", "embedded_url"]
