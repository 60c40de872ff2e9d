"""A digest made into a mail; the words around it are in `pipeline/templates`.

mail     subject, HTML, plain text, and the bytes that go to the server
mime     headers and parts
zones    times in the reader's zone
"""

from .mail import InvalidAddress, Mail, Recipient, render

__all__ = ["InvalidAddress", "Mail", "Recipient", "render"]
