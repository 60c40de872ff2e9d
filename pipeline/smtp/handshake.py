"""Gets a connection to the relay ready for its first MAIL: TCP, TLS, banner, EHLO and login."""

from __future__ import annotations

import base64
import hmac
import ssl
from collections.abc import Callable

from pipeline.replies import Reply
from pipeline.smtp.dialogue import Dialogue
from pipeline.smtp.relay import Relay
from pipeline.smtp.wire import Wire, WireError

__all__ = ["HandshakeError", "open_wire", "tls_context"]

#: Answers to an AUTH that another mechanism may get round (RFC 4954 sections 4 and 6).
_OTHER_MECHANISM = frozenset({504, 534})


class HandshakeError(Exception):
    """The relay can't be used now. `reply` is its answer, if that is why."""

    def __init__(self, message: str, reply: Reply | None = None) -> None:
        super().__init__(message)
        self.reply = reply


def tls_context(relay: Relay) -> ssl.SSLContext:
    """Verifies the relay's certificate and name, against its `ca_file` or the system's authorities.

    Raises:
      HandshakeError: the file can't be read or holds no certificates.
    """
    try:
        return ssl.create_default_context(cafile=relay.ca_file)
    except OSError as error:
        raise HandshakeError(f"ca_file {relay.ca_file!r} can't be used: {error}") from error


def open_wire(
    relay: Relay, local_hostname: str, context: ssl.SSLContext | None, deadline: float
) -> Dialogue[tuple[Wire, dict[str, str]]]:
    """Connects, secures, greets and logs in.

    Parameters:
      context: needed unless the relay is `plain`.
      deadline: when all of it must be done, as of `time.monotonic()`.

    Returns:
      The connection, and the extensions that the relay offers: upper-case keyword to parameters.

    Raises:
      HandshakeError: whatever went wrong. Nothing is left open then.
    """
    try:
        wire = yield from Wire.connect(relay.host, relay.port, deadline)
    except WireError as error:
        raise HandshakeError(f"can't connect to {relay.name}: {error}") from error
    try:
        handshake = _Handshake(relay, local_hostname, context, wire, deadline)
        return wire, (yield from handshake.run())
    except BaseException:
        wire.close()
        raise


class _Handshake:
    """One run; it only exists to carry what every step needs."""

    def __init__(
        self,
        relay: Relay,
        local_hostname: str,
        context: ssl.SSLContext | None,
        wire: Wire,
        deadline: float,
    ) -> None:
        self.relay = relay
        self.local_hostname = local_hostname
        self.context = context
        self.wire = wire
        self.deadline = deadline
        self.doing = ""

    def run(self) -> Dialogue[dict[str, str]]:
        try:
            if self.relay.security == "tls":
                yield from self._encrypt()
            self.doing = "waiting for the banner"
            self._expect(220, (yield from self.wire.read_reply(self.deadline)))
            features = yield from self._greet()
            if self.relay.security == "starttls":
                features = yield from self._start_tls(features)
            if self.relay.username is not None:
                yield from self._log_in(features.get("AUTH", "").upper().split())
        except WireError as error:
            raise HandshakeError(f"{self.relay.name}, {self.doing}: {error}") from error
        return features

    def _expect(self, code: int, reply: Reply) -> None:
        if reply.code != code:
            raise HandshakeError(f"{self.relay.name} refused us, {self.doing}", reply)

    def _greet(self) -> Dialogue[dict[str, str]]:
        self.doing = "greeting it with EHLO"
        reply = yield from self.wire.command(f"EHLO {self.local_hostname}", self.deadline)
        if reply.code in (500, 502, 504):
            # A server that knows no extensions (RFC 5321 section 3.2).
            self.doing = "greeting it with HELO"
            reply = yield from self.wire.command(f"HELO {self.local_hostname}", self.deadline)
            self._expect(250, reply)
            return {}
        self._expect(250, reply)
        features: dict[str, str] = {}
        for text in self.wire.texts[1:]:
            keyword, _, parameters = text.replace("AUTH=", "AUTH ", 1).partition(" ")
            known = features.get(keyword.upper())
            features[keyword.upper()] = f"{known} {parameters}" if known else parameters
        return features

    def _encrypt(self) -> Dialogue[None]:
        self.doing = "starting TLS"
        assert self.context is not None
        yield from self.wire.encrypt(self.context, self.relay.host, self.deadline)

    def _start_tls(self, features: dict[str, str]) -> Dialogue[dict[str, str]]:
        self.doing = "starting TLS"
        if "STARTTLS" not in features:
            raise HandshakeError(
                f"{self.relay.name} offers no STARTTLS, and mail must not go there in clear text"
            )
        self._expect(220, (yield from self.wire.command("STARTTLS", self.deadline)))
        yield from self._encrypt()
        # What was said in clear text counts no more (RFC 3207 section 4.2).
        return (yield from self._greet())

    def _log_in(self, offered: list[str]) -> Dialogue[None]:
        """Logs in once: a second mechanism is tried only if the first isn't taken at all, since
        every refused password counts towards the relay's limit."""
        self.doing = f"logging in as {self.relay.username!r}"
        mechanisms = [name for name in self._mechanisms() if name in offered]
        if not mechanisms:
            raise HandshakeError(
                f"{self.relay.name} offers no login that we know "
                f"(it offers {' '.join(offered) or 'none'})"
            )
        for name in mechanisms:
            reply = yield from self._mechanisms()[name]()
            if reply.code not in _OTHER_MECHANISM:
                break
        self._expect(235, reply)

    def _mechanisms(self) -> dict[str, Callable[[], Dialogue[Reply]]]:
        """Best first: without encryption the one that doesn't show the password."""
        clear = {"PLAIN": self._plain, "LOGIN": self._login}
        hashed = {"CRAM-MD5": self._cram_md5}
        return {**clear, **hashed} if self.wire.encrypted else {**hashed, **clear}

    def _plain(self) -> Dialogue[Reply]:
        secret = f"\0{self.relay.username}\0{self.relay.password}"
        reply = yield from self._say(f"AUTH PLAIN {_encoded(secret)}")
        if reply.code == 334:
            reply = yield from self._say(_encoded(secret))
        return reply

    def _login(self) -> Dialogue[Reply]:
        reply = yield from self._say("AUTH LOGIN")
        for answer in (self.relay.username, self.relay.password):
            if reply.code != 334:
                break
            reply = yield from self._say(_encoded(answer or ""))
        return reply

    def _cram_md5(self) -> Dialogue[Reply]:
        reply = yield from self._say("AUTH CRAM-MD5")
        if reply.code != 334:
            return reply
        try:
            challenge = base64.b64decode(reply.text, validate=True)
        except ValueError:
            yield from self._say("*")
            raise HandshakeError(f"{self.relay.name} sent a broken CRAM-MD5 challenge") from None
        digest = hmac.new((self.relay.password or "").encode(), challenge, "md5").hexdigest()
        return (yield from self._say(_encoded(f"{self.relay.username} {digest}")))

    def _say(self, line: str) -> Dialogue[Reply]:
        return (yield from self.wire.command(line, self.deadline))


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")
