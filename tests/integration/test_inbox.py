"""The inbox over its real ports: mail in by SMTP, out by HTTP, and nothing else."""

from __future__ import annotations

import email.policy
import json
import os
import shutil
import smtplib
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from pipeline.inbox import Inbox
from pipeline.smtp import Outcome
from tests.support.smtp_client import send, session
from tests.support.waiting import wait_until

HOSTILE_SUBJECT = "<img src=x onerror=\"document.title='owned'\"><script>1</script>"
HOSTILE_HTML = """<!doctype html><html><head><base href="https://evil.example/"></head><body>
<p>Shown</p><script>parent.document.title = "owned"; top.location = "https://evil.example/"</script>
<img src=x onerror="parent.document.title = 'owned'"><iframe src="https://evil.example/"></iframe>
</body></html>"""


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with Inbox() as running:
        yield running


def deliver(inbox: Inbox, subject: str, html: str | None = None, to: str = "ada@x.example") -> None:
    message = EmailMessage()
    message["Subject"] = subject
    message["From"] = "Pipeline <pipeline@x.example>"
    message["To"] = to
    message.set_content("Plain text\n")
    if html is not None:
        message.add_alternative(html, subtype="html")
    one = session(inbox.smtp_url)
    assert send(one, to, message.as_bytes(policy=email.policy.SMTP)).outcome is Outcome.SENT
    one.close()


def get(inbox: Inbox, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return ask(inbox, "GET", path, headers)


def ask(
    inbox: Inbox, method: str, path: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(
        inbox.http_url.rstrip("/") + path, method=method, headers=headers
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {}, error.read()


def get_json(inbox: Inbox, path: str) -> Any:
    status, _, body = get(inbox, path)
    assert status == 200
    return json.loads(body)


def test_mail_in_comes_out_in_python_and_on_the_page(inbox: Inbox) -> None:
    """What was sent is counted, kept, listed newest first, and shown whole."""
    deliver(inbox, "First")
    deliver(inbox, "Zweite Grüße", "<p>HTML</p>", to="bob@x.example")
    assert inbox.message_count == 2
    assert [each.subject for each in inbox.messages()] == ["First", "Zweite Grüße"]
    listed = get_json(inbox, "/api/mails")
    assert [(each["to"], each["subject"]) for each in listed["mails"]] == [
        ("bob@x.example", "Zweite Grüße"),
        ("ada@x.example", "First"),
    ]
    assert (listed["message_count"], listed["kept_count"], listed["more"]) == (2, 2, False)
    shown = get_json(inbox, f"/api/mails/{listed['mails'][0]['number']}")
    assert shown["text"].strip() == "Plain text"
    assert shown["has_html"] is True
    assert ["Subject", "Zweite Grüße"] in shown["headers"]
    _, headers, source = get(inbox, "/mails/2/source")
    assert headers["content-type"].startswith("text/plain")
    assert source == inbox.messages()[1].content


def test_nothing_new_is_told_in_a_word(inbox: Inbox) -> None:
    """A page that asks every second is answered 204 until something happens."""
    deliver(inbox, "First")
    version = get_json(inbox, "/api/mails")["version"]
    assert get(inbox, f"/api/mails?version={version}")[0] == 204
    deliver(inbox, "Second")
    assert get(inbox, f"/api/mails?version={version}")[0] == 200


def test_a_search_looks_at_subjects_and_people(inbox: Inbox) -> None:
    """All words must be there, in any case and order, in any of them."""
    deliver(inbox, "WEB-12 moved to Done", to="ada@x.example")
    deliver(inbox, "WEB-13 moved to Done", to="bob@x.example")
    for words, found in [
        ("web-12", 1),
        ("done%20ADA", 1),
        ("moved", 2),
        ("ada%20bob", 0),
        ("%3Cscript", 0),
    ]:
        assert get_json(inbox, f"/api/mails?search={words}")["found_count"] == found, words


def test_a_long_list_comes_in_pieces(inbox: Inbox) -> None:
    """Each piece says whether there is more, and the next one begins before its last mail."""
    for number in range(5):
        deliver(inbox, f"Number {number}")
    first = get_json(inbox, "/api/mails?limit=3")
    assert [each["subject"] for each in first["mails"]] == ["Number 4", "Number 3", "Number 2"]
    assert first["more"] is True
    rest = get_json(inbox, f"/api/mails?limit=3&before={first['mails'][-1]['number']}")
    assert [each["subject"] for each in rest["mails"]] == ["Number 1", "Number 0"]
    assert rest["more"] is False


def test_mail_that_came_twice_is_marked(inbox: Inbox) -> None:
    """The page shows what the pipeline promises not to happen silently."""
    one = session(inbox.smtp_url)
    for _ in range(3):
        assert send(one).outcome is Outcome.SENT
    one.close()
    assert inbox.duplicate_ids() == {"<1@example.org>": 3}
    listed = get_json(inbox, "/api/mails")
    assert listed["duplicate_id_count"] == 1
    assert [each["times_seen"] for each in listed["mails"]] == [3, 3, 3]


def test_a_mails_html_has_no_rights(inbox: Inbox) -> None:
    """It is served as a sandboxed document: no scripts, no network, no forms, no origin."""
    deliver(inbox, HOSTILE_SUBJECT, HOSTILE_HTML)
    status, headers, body = get(inbox, "/mails/1/html")
    assert status == 200
    policy = headers["content-security-policy"]
    assert policy.startswith("sandbox allow-popups")
    for forbidden in ("allow-scripts", "allow-same-origin", "allow-forms", "allow-top-navigation"):
        assert forbidden not in policy
    for part in ("default-src 'none'", "form-action 'none'", "base-uri 'none'", "img-src data:"):
        assert part in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert body.startswith(b'<!doctype html><html><head><base target="_blank">')


def test_the_page_runs_its_own_script_only(inbox: Inbox) -> None:
    """Files of its own and nothing inline, nothing from elsewhere."""
    status, headers, body = get(inbox, "/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert b"http" not in body.lower().replace(b"http-equiv", b"")
    for path, kind in [
        ("/inbox.js", "javascript"),
        ("/inbox.css", "css"),
        ("/icon.svg", "svg"),
    ]:
        status, headers, body = get(inbox, path)
        assert status == 200
        assert kind in headers["content-type"]
        assert b"innerHTML" not in body


def test_clearing_takes_a_post_of_the_page_itself(inbox: Inbox) -> None:
    """Neither a link nor another site's form can do it; the counts stay."""
    deliver(inbox, "First")
    own = inbox.http_url.rstrip("/")
    assert get(inbox, "/api/clear")[0] == 405
    assert ask(inbox, "POST", "/api/clear", {})[0] == 403
    assert ask(inbox, "POST", "/api/clear", {"Origin": "https://evil.example"})[0] == 403
    assert ask(inbox, "POST", "/api/clear", {"Origin": "null"})[0] == 403
    assert len(inbox.messages()) == 1
    assert ask(inbox, "POST", "/api/clear", {"Origin": own})[0] == 204
    assert inbox.messages() == []
    assert inbox.message_count == 1
    assert get(inbox, "/api/mails/1")[0] == 404
    assert get(inbox, "/mails/1/html")[0] == 404


def test_the_page_does_not_answer_to_foreign_names(inbox: Inbox) -> None:
    """A site whose name points here must not read the mails."""
    deliver(inbox, "First")
    for name in (
        "evil.example",
        f"evil.example:{inbox.http_port}",
        "",
        "[",
        "127.0.0.1.evil.example",
    ):
        assert get(inbox, "/api/mails", Host=name)[0] == 403, name
    assert get(inbox, "/api/mails", Host=f"localhost:{inbox.http_port}")[0] == 200


def test_any_login_and_other_clients_are_welcome(inbox: Inbox) -> None:
    """A shop's settings with a password work as they are, and so does smtplib."""
    with smtplib.SMTP("127.0.0.1", inbox.smtp_port) as client:
        client.login("anybody", "anything")
        client.sendmail(
            "ä@x.example", ["ö@x.example"], b"Subject: Hi\r\n\r\n.\r\n..\r\n", ["SMTPUTF8"]
        )
    assert inbox.messages()[0].rcpt_to == ("ö@x.example",)
    assert inbox.messages()[0].content == b"Subject: Hi\r\n\r\n.\r\n..\r\n"


def test_many_senders_at_once_lose_nothing(inbox: Inbox) -> None:
    """Eight connections of a hundred mails: all there, each once."""

    def run(sender: int) -> None:
        one = session(inbox.smtp_url)
        for number in range(100):
            content = b"Message-ID: <%d.%d@x>\r\n\r\n" % (sender, number)
            assert send(one, content=content).outcome is Outcome.SENT
        one.close()

    threads = [threading.Thread(target=run, args=(sender,)) for sender in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inbox.message_count == 800
    assert len({each.message_id for each in inbox.messages()}) == 800
    assert inbox.duplicate_ids() == {}


def test_it_stops_with_clients_connected_and_starts_again() -> None:
    """Open connections don't hold it, its ports are free at once, and its mails stay readable."""
    inbox = Inbox().start()
    deliver(inbox, "First")
    ports = inbox.smtp_port, inbox.http_port
    with (
        socket.create_connection(("127.0.0.1", ports[0])) as smtp,
        socket.create_connection(("127.0.0.1", ports[1])) as http,
    ):
        assert smtp.recv(100).startswith(b"220")
        http.sendall(b"GET / HTTP/1.1\r\n")
        inbox.stop()
    assert [each.subject for each in inbox.messages()] == ["First"]
    inbox.stop()
    with Inbox(*ports) as again:
        deliver(again, "Second")
        assert (again.smtp_port, again.http_port) == ports
        with pytest.raises(RuntimeError, match="already"):
            again.start()


def test_a_taken_port_is_named() -> None:
    """Which of the two, and where."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(OSError, match=rf"127\.0\.0\.1:{other.getsockname()[1]} \(http_port\)"),
    ):
        Inbox(http_port=other.getsockname()[1]).start()


XDG_HOMES = ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_a_real_browser_lists_hostile_mail_as_text(inbox: Inbox, tmp_path: Path) -> None:
    """The subject's markup is shown, the mail is in its frame, and no script of it runs."""
    deliver(inbox, HOSTILE_SUBJECT, HOSTILE_HTML)
    found = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=3000",
            "--dump-dom",
            f"{inbox.http_url}#1",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        # It writes more than its user data, and that next to a person's own.
        env={**os.environ, "HOME": str(tmp_path), **{name: str(tmp_path) for name in XDG_HOMES}},
    )
    assert "&lt;img src=x onerror=" in found.stdout
    assert "<title>Inbox (1)</title>" in found.stdout
    assert 'sandbox="allow-popups allow-popups-to-escape-sandbox"' in found.stdout
    assert 'src="/mails/1/html"' in found.stdout


def test_the_thread_ends_with_the_inbox() -> None:
    """Nothing is left running."""
    with Inbox():
        assert any(each.name == "pipeline-inbox" for each in threading.enumerate())
    wait_until(lambda: all(each.name != "pipeline-inbox" for each in threading.enumerate()))


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_package_is_named_with_its_extra(missing: str) -> None:
    """Whoever installed the core only is told what to install."""
    code = f"import sys; sys.modules[{missing!r}] = None; import pipeline.inbox"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert f"the package '{missing}'" in found.stderr
    assert "dramatiq-email-pipeline[demo]" in found.stderr
