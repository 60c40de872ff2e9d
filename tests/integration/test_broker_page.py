"""docs/broker.md says what is: its examples run, and its options are the broker's."""

from __future__ import annotations

import inspect
import re
from contextlib import closing
from pathlib import Path

import dramatiq
import psycopg2
import pytest
from dramatiq_pg import generate_init_sql

from pipeline.broker import PostgresBroker
from tests.support.broker import actor, messages
from tests.support.postgres import execute

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "broker.md").read_text()
FIRST, SECOND = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_run(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changed import makes a working broker, and the block sends in its transaction."""
    execute(empty_database_url, generate_init_sql())
    monkeypatch.setattr("dramatiq.broker.global_broker", None)
    names = {"dramatiq": dramatiq}
    exec(
        FIRST.replace("postgresql:///shop", "URL").replace('"URL"', repr(empty_database_url)), names
    )
    broker: PostgresBroker = names["broker"]  # type: ignore[assignment]
    assert dramatiq.get_broker() is broker
    order_confirmed = actor(broker, lambda *_: None, actor_name="order_confirmed")
    with closing(psycopg2.connect(empty_database_url)) as shop:
        exec(
            SECOND.replace("[...]", "[order_confirmed.message(i) for i in range(3)]"),
            {**names, "cursor": shop.cursor(), "order_confirmed": order_confirmed, "order_id": 7},
        )
        assert messages(empty_database_url) == {}
        shop.commit()
    assert len(messages(empty_database_url)) == 4
    broker.close()


def test_every_option_is_explained() -> None:
    """Each option that the stock broker doesn't have is in the page's table, and no other."""
    table = PAGE.split("## Options")[1].split("**Connections.**")[0]
    cells = " ".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))
    listed = set(re.findall(r"`(\w+)`", cells))
    own = set(inspect.signature(PostgresBroker).parameters)
    own -= {"pool", "url", "results", "schema", "prefix", "options"}
    assert listed | {"keep_by_queue"} == own
    assert "keep_by_queue" in table
