"""The worker process: `dramatiq pipeline.worker`, or `pipeline worker`.

Importing this module makes a broker from the settings, makes it Dramatiq's global one, and
registers the pipeline's actors on it. Shops that have a broker use `pipeline.Pipeline` instead.
"""

from __future__ import annotations

import logging
from contextlib import closing

import dramatiq
import psycopg2

from .application import Pipeline
from .database import connect, schema_version
from .process import make_broker, prepared
from .settings import Settings
from .storms import limit_storms


def _refuse_unprepared(url: str) -> None:
    """End this process, rather than log the same error for ever, where no schema is.

    A database that is down is another matter: it may come up at any time.
    """
    try:
        with closing(connect(url)) as connection:
            version = schema_version(connection)
    except psycopg2.OperationalError:
        return
    if version is None:
        raise SystemExit(
            "The database that PIPELINE_DATABASE_URL names has not been prepared: "
            "run `pipeline init`."
        )


# Dramatiq has set logging up before it imports this.
limit_storms(*logging.getLogger().handlers)
settings = prepared(Settings.load())
_refuse_unprepared(settings.url)
broker = make_broker(settings)
dramatiq.set_broker(broker)
pipeline = Pipeline(broker, settings)
