"""The inbox's web page: a list of mails, one mail's views, and the JSON behind them.

Mails are hostile here. The page itself is static files under a content policy that allows nothing
else; mail text reaches it as JSON and is only ever set as text; a mail's HTML is a document of its
own without an origin, scripts or network, in a sandboxed frame. Requests under a foreign `Host` are
refused, so that no web page can get at the inbox through a name of its own (DNS rebinding), and
what changes something must come from the page itself.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.inbox.mailbox import Mailbox, ReceivedMail
from pipeline.inbox.reading import header_text, read

__all__ = ["inbox_page"]

FILES = {
    "/": ("inbox.html", "text/html"),
    "/inbox.css": ("inbox.css", "text/css"),
    "/inbox.js": ("inbox.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: No scripts, no network, no forms, no origin; links may only open in another tab.
MAIL_POLICY = (
    "sandbox allow-popups allow-popups-to-escape-sandbox; default-src 'none'; "
    "style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)

#: Most mails listed in one answer.
PAGE_SIZE = 100
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",
}


def inbox_page(mailbox: Mailbox, *, host: str, smtp_url: str) -> Starlette:
    """The page as an ASGI application.

    Parameters:
      host: the address it is served on; requests must name it, or this machine.
      smtp_url: told to people while the inbox is empty.
    """
    views = _Views(mailbox, smtp_url)
    routes = [Route(path, _file(name, kind)) for path, (name, kind) in FILES.items()]
    routes += [
        Route("/api/mails", views.list_mails),
        Route("/api/mails/{number:int}", views.show_mail),
        Route("/api/clear", views.clear, methods=["POST"]),
        Route("/mails/{number:int}/html", views.html),
        Route("/mails/{number:int}/source", views.source),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_OwnRequestsOnly, host=host)])


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    # Read once: the files don't change, and the page must not depend on the disk.
    content = (Path(__file__).parent / "static" / name).read_bytes()
    policy = PAGE_POLICY if kind == "text/html" else "default-src 'none'"
    headers = {**HEADERS, "Content-Security-Policy": policy}

    async def serve(_: Request) -> Response:
        return Response(content, media_type=kind, headers=headers)

    return serve


class _Views:
    def __init__(self, mailbox: Mailbox, smtp_url: str) -> None:
        self.mailbox = mailbox
        self.smtp_url = smtp_url

    async def list_mails(self, request: Request) -> Response:
        """Newest first. `version` as it was told last: answers 204 if nothing has changed since."""
        version = self.mailbox.version
        if request.query_params.get("version") == str(version):
            return Response(status_code=204, headers=HEADERS)
        words = request.query_params.get("search", "").casefold().split()
        before = _number(request.query_params.get("before"))
        limit = min(_number(request.query_params.get("limit")) or PAGE_SIZE, 1000)
        kept = self.mailbox.messages()
        found = [
            mail
            for mail in reversed(kept)
            if (before is None or mail.number < before)
            and all(word in mail.searched for word in words)
        ]
        answer = {
            "version": version,
            "mails": [self._summary(mail) for mail in found[:limit]],
            "more": len(found) > limit,
            "found_count": len(found),
            "kept_count": len(kept),
            "message_count": self.mailbox.message_count,
            "duplicate_id_count": self.mailbox.duplicate_id_count(),
            "smtp_url": self.smtp_url,
        }
        return JSONResponse(answer, headers=HEADERS)

    def _summary(self, mail: ReceivedMail) -> dict[str, object]:
        return {
            "number": mail.number,
            "received_at": mail.received_at,
            "to": ", ".join(mail.rcpt_to),
            "subject": mail.subject,
            "times_seen": self.mailbox.times_seen(mail.message_id),
        }

    async def show_mail(self, request: Request) -> Response:
        mail = self._mail(request)
        parts = read(mail.content)
        answer = {
            **self._summary(mail),
            "from": header_text(mail.content, "From") or mail.mail_from,
            "envelope_from": mail.mail_from,
            "headers": parts.headers,
            "text": parts.text,
            "has_html": parts.html is not None,
            "attachments": [
                {"name": each.name, "type": each.content_type, "size": each.size}
                for each in parts.attachments
            ],
            "size": len(mail.content),
        }
        return JSONResponse(answer, headers=HEADERS)

    async def html(self, request: Request) -> Response:
        """The mail's HTML as a document without any rights."""
        html = read(self._mail(request).content).html
        if html is None:
            raise HTTPException(404, "This mail has no HTML.")
        headers = {**HEADERS, "Content-Security-Policy": MAIL_POLICY}
        return Response(
            _with_links_opening_elsewhere(html).encode("utf-8", "replace"),
            media_type="text/html; charset=utf-8",
            headers=headers,
        )

    async def source(self, request: Request) -> Response:
        mail = self._mail(request)
        headers = {**HEADERS, "Content-Security-Policy": "sandbox; default-src 'none'"}
        if "download" in request.query_params:
            headers["Content-Disposition"] = f'attachment; filename="mail-{mail.number}.eml"'
            return Response(mail.content, media_type="message/rfc822", headers=headers)
        return PlainTextResponse(mail.content.decode("utf-8", "replace"), headers=headers)

    async def clear(self, _: Request) -> Response:
        self.mailbox.clear()
        return Response(status_code=204, headers=HEADERS)

    def _mail(self, request: Request) -> ReceivedMail:
        mail = self.mailbox.get(request.path_params["number"])
        if mail is None:
            raise HTTPException(404, "This mail is not kept any more.")
        return mail


class _OwnRequestsOnly:
    """Refuses requests that another web page made, or made somebody make."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.hosts = LOOPBACK | {host}
        #: Bound to everywhere, it is meant to be reached by names that nobody told us.
        self.any_host = host in ("0.0.0.0", "::")  # noqa: S104 - recognised, not used

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(Request(scope))):
            await PlainTextResponse(refusal, 403, HEADERS)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, request: Request) -> str | None:
        host = request.headers.get("host", "")
        if not self.any_host and _host_name(f"//{host}") not in self.hosts:
            return "The inbox does not answer to this name."
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin")
            if origin is None or urlsplit(origin).netloc != host:
                return "Only the inbox's own page may do this."
        return None


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,15}", text) else None


_START = re.compile(r"<head\b[^>]*>|<html\b[^>]*>|<!doctype\b[^>]*>", re.IGNORECASE)


def _with_links_opening_elsewhere(html: str) -> str:
    """A link in the frame could only replace the mail, which the page's policy forbids."""
    ends = [found.end() for found in _START.finditer(html[:10_000])]
    at = ends[-1] if ends else 0
    return f'{html[:at]}<base target="_blank">{html[at:]}'
