"""Notification rows in Postgres become stacked emails; nothing is lost, nothing is sent twice."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .application import Pipeline
    from .notifications import notify
    from .outbox import enqueue
    from .settings import SettingError, Settings
else:
    #: Where each name lives. They are imported when they are asked for: whoever needs one of them,
    #: or `pipeline --help`, doesn't load all the others.
    _HOMES = {
        "Pipeline": "application",
        "SettingError": "settings",
        "Settings": "settings",
        "enqueue": "outbox",
        "notify": "notifications",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)

    def __dir__():
        return sorted({*globals(), *_HOMES})


__all__ = ["Pipeline", "SettingError", "Settings", "enqueue", "notify"]
