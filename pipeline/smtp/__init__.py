"""Handing messages to the relay, stage by stage.

relay          where it is, how it is secured, how long it may take
dialogue       how one thread talks to several servers
wire           commands and replies on a socket, each with a deadline
handshake      from the connection to the login
transaction    one message: MAIL, RCPT, DATA, content, dot
session        a kept connection, and what became of each message
"""

from pipeline.replies import Outcome, Reply, Scope, Stage

from .dialogue import BeforeDot, Dialogue, Wait
from .relay import Relay, Timeouts
from .session import Result, Session

__all__ = [
    "BeforeDot",
    "Dialogue",
    "Outcome",
    "Relay",
    "Reply",
    "Result",
    "Scope",
    "Session",
    "Stage",
    "Timeouts",
    "Wait",
]
