"""A development inbox: takes every mail over SMTP and shows it on a web page, and sends nothing on.

    with Inbox() as inbox:
        print(inbox.smtp_url, inbox.http_url)

Needs the extra `demo`. It is for one developer's machine: whoever can reach its ports can read
everything in it.
"""

from __future__ import annotations

try:
    import starlette as _starlette
    import uvicorn as _uvicorn
except ImportError as _error:
    raise ImportError(
        f"the inbox needs the package {_error.name!r}, which comes with the extra 'demo': "
        "pip install 'dramatiq-email-pipeline[demo]'",
        name=_error.name,
    ) from _error

from pipeline.inbox.mailbox import Mailbox, ReceivedMail
from pipeline.inbox.server import Inbox

__all__ = ["Inbox", "Mailbox", "ReceivedMail"]

del _starlette, _uvicorn
