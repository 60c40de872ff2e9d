"""Notification rows in Postgres become stacked emails; nothing is lost, nothing is sent twice."""

from .application import Pipeline
from .notifications import notify
from .outbox import enqueue
from .settings import SettingError, Settings

__all__ = ["Pipeline", "SettingError", "Settings", "enqueue", "notify"]
