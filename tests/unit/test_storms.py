"""In a storm the log stays readable, and nothing is left out without a word."""

from __future__ import annotations

import io
import logging

import pytest

from pipeline.storms import MOST, WINDOW, Storms, limit_storms


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until it is set."""
    return Clock()


@pytest.fixture
def log() -> io.StringIO:
    """What is written."""
    return io.StringIO()


@pytest.fixture
def logger(log: io.StringIO, clock: Clock) -> logging.Logger:
    """A logger whose handler has the filter."""
    handler = logging.StreamHandler(log)
    handler.addFilter(Storms(handler, clock=clock))
    one = logging.getLogger("pipeline.test.storm")
    one.setLevel(logging.INFO)
    one.propagate = False
    one.handlers = [handler]
    return one


def lines(log: io.StringIO) -> list[str]:
    return log.getvalue().splitlines()


def test_ten_thousand_lines_of_a_kind_are_fifty_and_a_count(
    logger: logging.Logger, log: io.StringIO, clock: Clock
) -> None:
    """The count comes with the next line after the minute, of whatever kind."""
    for number in range(10_000):
        logger.warning("Delivery %s: uncertain", number)
    assert lines(log) == [f"Delivery {number}: uncertain" for number in range(MOST)]

    clock.now += WINDOW
    logger.info("something else")

    assert lines(log)[MOST:] == [
        "and 9,950 more like this in that minute: Delivery %s: uncertain",
        "something else",
    ]


def test_other_kinds_are_written_meanwhile(logger: logging.Logger, log: io.StringIO) -> None:
    """Another template, or another level, is another kind."""
    for _ in range(MOST + 1):
        logger.info("the same")
    logger.error("the same")
    logger.info("another")

    assert lines(log)[MOST:] == ["the same", "another"]


def test_the_next_minute_starts_anew(
    logger: logging.Logger, log: io.StringIO, clock: Clock
) -> None:
    """As many lines again, after the count."""
    for _ in range(2):
        for number in range(MOST + 5):
            logger.info("line %s", number)
        clock.now += WINDOW
    logger.info("the end")

    assert len(lines(log)) == 2 * (MOST + 1) + 1
    assert sum("and 5 more" in line for line in lines(log)) == 2


def test_few_lines_are_all_written_and_not_counted(
    logger: logging.Logger, log: io.StringIO, clock: Clock
) -> None:
    """Fifty a minute are no storm."""
    for _ in range(MOST):
        logger.info("line")
    clock.now += WINDOW
    logger.info("end")

    assert lines(log) == ["line"] * MOST + ["end"]


def test_counts_are_written_at_the_end(log: io.StringIO) -> None:
    """A process that ends in the middle of a storm says how much it has left out."""
    handler = logging.StreamHandler(log)
    limit_storms(handler)
    limit_storms(handler)
    (storms,) = handler.filters
    logger = logging.getLogger("pipeline.test.storm")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [handler]
    for _ in range(MOST + 3):
        logger.info("line\nwith more")
    assert isinstance(storms, Storms)
    storms.close()
    storms.close()

    assert lines(log)[-1] == "and 3 more like this in that minute: line"
