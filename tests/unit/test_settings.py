"""Settings are checked at start, and the error names the setting, the value and what is wrong."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.settings import SettingError, Settings, duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    """The forms that the design names."""
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("PIPELINE_STACK_EVERY", "5 fortnights", "not a duration"),
        ("PIPELINE_STACK_EVERY", "-5", "not a duration"),
        ("PIPELINE_STACK_EVERY", "0", "at least 1ms"),
        ("PIPELINE_LEASE", "100ms", "at least 500ms"),
        ("PIPELINE_SENDERS", "0", "at least 1"),
        ("PIPELINE_SENDERS", "many", "whole number"),
        ("PIPELINE_ON_UNCERTAIN", "panic", "resend, hold"),
        ("PIPELINE_SMTP_URL", "http://mail", "smtps, got 'http'"),
        ("PIPELINE_SMTP_URL", "smtp://", "host"),
        ("PIPELINE_SMTP_URL", "smtp://mail:port", "port"),
        ("PIPELINE_MAIL_FROM", "nobody", "address"),
        ("PIPELINE_BASE_URL", "javascript:alert(1)", "http"),
        ("PIPELINE_RETRY_CAP", "1ms", "RETRY_BASE"),
        ("PIPELINE_RECOVER_EVERY", "2h", "at most 1m"),
        ("PIPELINE_KEEP", "1s", "at least 1m"),
    ],
)
def test_a_value_that_can_not_be_used_is_named(variable: str, value: str, says: str) -> None:
    """Whoever reads the error knows which variable to mend."""
    with pytest.raises(SettingError) as caught:
        Settings.load({variable: value})
    assert variable in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@mail",
        "smtp://user:p@secret@mail:x",
        "smtp://user:secret",
        "smtp+starttls://user:secret@mail/path",
    ],
)
def test_a_password_is_not_repeated_in_an_error(url: str) -> None:
    """Errors are logged."""
    with pytest.raises(SettingError) as caught:
        Settings.load({"PIPELINE_SMTP_URL": url})
    assert "secret" not in str(caught.value)
    assert "user:***" in str(caught.value)


def test_a_file_is_read_and_the_environment_goes_before_it(tmp_path: Path) -> None:
    """The file's names are in lower case."""
    path = tmp_path / "pipeline.toml"
    path.write_text('stack_every = "1m"\nsenders = 7\n')
    environ = {"PIPELINE_SETTINGS_FILE": str(path), "PIPELINE_STACK_EVERY": "2m"}
    settings = Settings.load(environ)
    assert (settings.stack_every, settings.senders) == (timedelta(minutes=2), 7)


@pytest.mark.parametrize(
    ("content", "says"),
    [("sender = 7", "'sender'"), ("senders = 0", "senders"), ("=", "can't be read")],
)
def test_a_file_that_can_not_be_used_says_where(tmp_path: Path, content: str, says: str) -> None:
    """A misspelt name is an error, not a setting that nothing reads."""
    path = tmp_path / "pipeline.toml"
    path.write_text(content)
    with pytest.raises(SettingError) as caught:
        Settings.load({"PIPELINE_SETTINGS_FILE": str(path)})
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_senders_domain_is_encoded_for_headers() -> None:
    """H07: the right-hand side of a Message-ID is the configured one, in ASCII."""
    settings = Settings.load({"PIPELINE_MAIL_FROM": "Büro <post@bücher.example>"})
    assert settings.domain == "xn--bcher-kva.example"


@given(
    st.dictionaries(
        st.sampled_from(["PIPELINE_" + name.upper() for name in Settings.__dataclass_fields__]),
        st.text(),
        max_size=4,
    )
)
def test_any_environment_gives_settings_or_a_clear_error(environ: dict[str, str]) -> None:
    """Nothing but SettingError comes out of bad values."""
    try:
        outcome = str(Settings.load(environ).senders)
    except SettingError as error:
        outcome = str(error)
    assert outcome.isdigit() or any(name in outcome for name in environ)


def test_settings_can_be_shown_without_their_passwords() -> None:
    """They end up in tracebacks and logs."""
    settings = Settings(
        database_url="postgresql://shop:hunter2@db/shop", smtp_url="smtp://shop:hunter2@mail:587"
    )
    assert "hunter2" not in repr(settings)
    assert "stack_every" in repr(settings)
