"""`pipeline deliveries show`: one stacked email, its whole history, and the mail itself."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .deliveries import DeliveryId, row_for_programs
from .errors import Refusal
from .opening import opened
from .output import (
    STYLES,
    clean,
    count,
    json_option,
    moment,
    print_facts,
    print_json,
    say,
    span,
    stdout,
)

if TYPE_CHECKING:
    from pipeline.deliveries import History, Record


@click.command(short_help="Show one delivery's whole history, and its mail.")
@click.argument("id_", metavar="ID", type=DeliveryId())
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the mail's HTML to this file, to open in a browser.",
)
@json_option
def show(id_: str, html: Path | None, as_json: bool) -> None:
    """Show a delivery: its state, every attempt, what is stacked in it, and its mail.

    The mail is the one that would be sent now, from the notifications and the recipient as they
    are.
    """
    from pipeline.deliveries import read_history

    with opened() as (settings, connection):
        history = read_history(connection, settings, id_)
    if history is None:
        raise Refusal(f"Delivery {id_} is not there, or not any more.")
    if as_json:
        print_json(_history_for_programs(history))
    else:
        _print_history(history)
    if html is not None:
        if history.mail is None:
            raise Refusal(f"Delivery {id_} has no mail to write to {html}: {history.no_mail}")
        try:
            html.write_text(history.mail.html, encoding="utf-8")
        except OSError as error:
            raise Refusal(f"Can't write to {html}: {error.strerror}") from None
        say(f"The mail's HTML is in {html}.")


def _history_for_programs(history: History) -> Record:
    mail: Record | None = None
    if history.mail is not None:
        mail = asdict(history.mail)
        mail["content"] = history.mail.content.decode("utf-8", "replace")
    return {
        **row_for_programs(history.delivery),
        "attempts": history.attempts,
        "notifications": history.notifications,
        "mail": mail,
        "no_mail": history.no_mail,
    }


def _print_history(history: History) -> None:
    row = history.delivery
    click.echo(f"Delivery {row['id']}")
    print_facts([(name, value) for name, value in _facts(row) if value])
    _print_heading(f"Attempts ({len(history.attempts):,})")
    for attempt in history.attempts:
        _print_lines(*_attempt(attempt))
    shown, stacked = len(history.notifications), row["notification_count"]
    newest = f", the newest {shown:,}" if shown < stacked else ""
    _print_heading(f"Notifications ({stacked:,}{newest})")
    for each in history.notifications:
        _print_lines(*_notification(each))
    _print_heading("The mail, as it would be sent now")
    if history.mail is None:
        click.echo(f"None: {clean(history.no_mail)}")
        return
    mail = history.mail
    print_facts(
        [
            ("From", clean(mail.envelope_from)),
            ("To", clean(mail.envelope_to)),
            ("Subject", clean(mail.subject)),
            ("Size", f"{len(mail.content):,} bytes"),
        ]
    )
    click.echo()
    click.echo(clean(mail.text, lines=True).rstrip())


def _print_heading(text: str) -> None:
    from rich.text import Text

    click.echo()
    stdout().print(Text(text, style="bold"))


def _facts(row: Record) -> list[tuple[str, str]]:
    name = clean(row["display_name"])
    to = f"{name} <{clean(row['email'])}>" if row["email"] else name
    item = f"{row['entity_name']} {row['entity_identifier']}"
    about = " ".join(clean(row[part]) for part in ("reference", "title") if row[part])
    times = [
        ("Created", row["created_at"]),
        ("Changed", row["updated_at"]),
        ("Sent", row["sent_at"]),
        (
            "Next attempt",
            row["next_attempt_at"] if row["state"] in ("queued", "deferred") else None,
        ),
        ("Lease until", row["lease_expires_at"]),
        ("Fails after", row["expires_at"] if row["state"] in ("queued", "deferred") else None),
    ]
    return [
        ("State", f"{row['state']}{': ' if row['reason'] else ''}{clean(row['reason'])}"),
        ("To", f"{to} (receiver {clean(row['receiver_id'])})".strip()),
        ("About", f"{about} ({clean(item)})".strip()),
        ("Message-ID", clean(row["message_id"])),
        ("Attempts used", f"{row['attempt_count']:,}"),
        ("Uncertain", count(row["uncertain_count"], "time") if row["uncertain_count"] else ""),
        *((label, f"{clean(at)} ({_distance(at - row['at'])})") for label, at in times if at),
    ]


def _distance(offset: Any) -> str:
    seconds = offset.total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def _print_lines(first: str, second: str, style: str = "") -> None:
    """Two lines about one thing, the second one indented."""
    from rich.padding import Padding
    from rich.text import Text

    console = stdout()
    if not console.is_terminal:
        click.echo(f"{first}\n    {second}")
        return
    console.print(Text(first))
    console.print(Padding(Text(second, style=style), (0, 0, 0, 4)))


def _attempt(attempt: Record) -> tuple[str, str, str]:
    started, finished = attempt["started_at"], attempt["finished_at"]
    took = f", took {span(finished - started)}" if finished else ""
    outcome = attempt["outcome"] or "running"
    code = [str(attempt[part]) for part in ("smtp_code", "enhanced_code") if attempt[part]]
    said = " ".join([*code, clean(attempt["reply"])]).strip()
    why = "; ".join(part for part in (said, clean(attempt["error"])) if part)
    return (
        f"{attempt['attempt_number']}. {moment(started)}{took}, by {clean(attempt['worker'])}",
        f"{outcome}, reached {attempt['stage']}{': ' if why else ''}{why}",
        STYLES.get(outcome, ""),
    )


def _notification(row: Record) -> tuple[str, str]:
    by = f" by {clean(row['triggered_by_id'])}" if row["triggered_by_id"] else ""
    urgent = ", urgent" if row["urgent"] else ""
    return f"{moment(row['created_at'])}{by}{urgent} ({row['id']})", clean(told(row["data"]))


def told(data: Any) -> str:
    """What a notification says, on one short line."""
    activity = data.get("issue_activity", data) if isinstance(data, dict) else data
    if not isinstance(activity, dict) or "field" not in activity:
        return _short(data if isinstance(data, str) else json.dumps(data, ensure_ascii=False))
    old, new = (_value(activity.get(name)) for name in ("old_value", "new_value"))
    return _short(f"{activity.get('verb', '')} {activity['field']}: {old} → {new}", 200)


def _value(value: Any) -> str:
    # Of HTML the words will do here: the mail shows the rest.
    text = _short(re.sub(r"<[^<>]*>", " ", str(value)))
    return "nothing" if text in ("", "None") else text


def _short(text: str, limit: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
