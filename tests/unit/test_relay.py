"""A relay's URL is read, and its password never shown."""

from __future__ import annotations

import pytest

from pipeline.smtp.relay import Relay, Timeouts


@pytest.mark.parametrize(
    ("url", "relay"),
    [
        ("smtp://mx.example.org", Relay("mx.example.org", 25)),
        ("smtp://127.0.0.1:2525/", Relay("127.0.0.1", 2525)),
        ("smtp://[::1]:2525", Relay("::1", 2525)),
        ("smtps://mx.example.org", Relay("mx.example.org", 465, "tls")),
        ("smtp+starttls://mx.example.org", Relay("mx.example.org", 587, "starttls")),
        (
            "smtp+starttls://me%40x:p%2Fw%3A%C3%A4@mx:26",
            Relay("mx", 26, "starttls", "me@x", "p/w:ä"),
        ),
        ("smtps://u:@mx", Relay("mx", 465, "tls", "u", "")),
        ("smtps://mx?ca_file=/etc/my%20ca.pem", Relay("mx", 465, "tls", ca_file="/etc/my ca.pem")),
    ],
)
def test_a_url_says_where_and_how(url: str, relay: Relay) -> None:
    """Scheme, login, host, port and options each end up in their field."""
    assert Relay.from_url(url) == relay


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "scheme"),
        ("mx.example.org:25", "scheme"),
        ("http://mx", "scheme .* got 'http'"),
        ("smtp://", "host is missing"),
        ("smtp://u:hunter2@", "host is missing"),
        ("smtp://m x", "host holds white space"),
        ("smtp://[::1", "host is not a valid"),
        ("smtp://mx:0", "port"),
        ("smtp://mx:99999", "port"),
        ("smtp://u:hunter2", "port"),
        ("smtp://u:hun/ter2@mx", "percent-encoded"),
        ("smtp://u:hun#ter2@mx", "percent-encoded"),
        ("smtp://u:hun?ter2@mx", "percent-encoded"),
        ("smtp://u@mx", "without a password"),
        ("smtp://:hunter2@mx", "user is empty"),
        ("smtp://u:hunter2%00@mx", "NUL"),
        ("smtp://mx/inbox", "path"),
        ("smtp://mx#x", "fragment"),
        ("smtps://mx?timeout=3", "unknown option 'timeout'"),
        ("smtps://mx?ca_file", "name=value"),
        ("smtps://mx?ca_file=", "ca_file is empty"),
        ("smtp://mx?ca_file=/x", "ca_file goes with"),
    ],
)
def test_a_wrong_url_is_refused_by_the_part_that_is_wrong(url: str, told: str) -> None:
    """The message names the part and shows nothing that may be the password."""
    with pytest.raises(ValueError, match=told) as raised:
        Relay.from_url(url)
    assert "hunter2" not in str(raised.value)
    assert "ter2" not in str(raised.value)


def test_the_password_is_not_shown() -> None:
    """Neither form that ends up in logs has it."""
    relay = Relay.from_url("smtp+starttls://me:hunter2@mx")
    assert str(relay) == "smtp+starttls://me:***@mx:587"
    assert "hunter2" not in repr(relay)
    assert relay.name == "mx:587"
    assert Relay("::1", 25).name == "[::1]:25"


def test_a_timeout_must_be_positive() -> None:
    """Zero would mean never to wait, and is refused with its name."""
    with pytest.raises(ValueError, match=r"timeout data must be positive, got 0"):
        Timeouts(data=0)
