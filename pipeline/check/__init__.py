"""What would stop the pipeline from working, looked at one by one.

settings     values, and variables that nothing reads
database     the server, the schema, the queue, rights, views, clock, vacuum, who is there
relay        the way to the mail server, up to the login, and who the sender claims to be
"""

from .run import check_all
from .settings import Finding

__all__ = ["Finding", "check_all"]
