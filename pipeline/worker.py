"""The worker process: `dramatiq pipeline.worker`, or `pipeline worker`.

Importing this module makes a broker from the settings, makes it Dramatiq's global one, and
registers the pipeline's actors on it. Shops that have a broker use `pipeline.Pipeline` instead.
"""

from __future__ import annotations

import dramatiq

from .application import Pipeline
from .process import make_broker, prepared
from .settings import Settings

settings = prepared(Settings.load())
broker = make_broker(settings)
dramatiq.set_broker(broker)
pipeline = Pipeline(broker, settings)
