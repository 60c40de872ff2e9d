"""The command line: one module a command. Heavy parts are imported when a command runs."""

from .main import main

__all__ = ["main"]
