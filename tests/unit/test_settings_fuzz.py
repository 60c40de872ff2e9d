"""Whatever is in the environment: settings that can be worked with, or one error that names it."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.settings import SHOWN, SettingError, Settings

NAMES = [each.name for each in fields(Settings)]
ODD = [
    *("0", "-1", "1e9", "nan", "inf", "-inf", "1_000", "٣", "٣s", "0x10", "999999999", "1" * 5000),
    *("5 m", "5M", " 5m ", "1ms", "0.0001", "3650d", "3651d", "99999999999999d", "True", "none"),
    *("\x00", "a\x00b", "\udcff", "\r\nX: y", "ünï", "x" * 100_000, "'; DROP TABLE x; --", "{}"),
    *(
        "smtp://",
        "smtp://h:0",
        "smtp://h:99999",
        "smtp://u:geheim@h:x",
        "smtps://[::1",
        "smtp://[::1]",
    ),
    *("smtp://u:ge/heim@h", "smtp+starttls://u:p%40@h:587", "smtp:///x", "smtp://h/?x=1", "//h"),
    *("a@b", "a@", "@b", "A <a@b.example>", "A\r\nBcc: x <a@b.example>", "<>", "a@ü.example"),
    *("http://", "https://x/ y", "http://x\n", "http://[", "HTTP://X/", "file:///etc/passwd"),
]
texts = st.one_of(
    st.sampled_from(ODD), st.text(), st.from_regex(r"\A\d{1,12}(\.\d+)?(ms|s|m|h|d)?\Z")
)


@pytest.mark.parametrize("name", NAMES)
@given(text=texts)
@example(text="999999999")
def test_any_text_is_a_setting_or_an_error_that_names_it(name: str, text: str) -> None:
    """Never another exception, never a password, never a page of text."""
    variable = f"PIPELINE_{name.upper()}"
    try:
        settings = Settings.load({variable: text})
    except SettingError as refused:
        told = str(refused)
        assert told.startswith("PIPELINE_")
        assert variable in told
        assert len(told) < 2 * SHOWN + 500
        assert "geheim" not in told
        assert told.isprintable()
    else:
        value = getattr(settings, name)
        assert isinstance(value, str | int | timedelta | None)
        assert "geheim" not in repr(settings) or not name.endswith("_url")
        if isinstance(value, str):
            value.encode()
            assert "\0" not in value


@given(
    content=st.dictionaries(
        st.sampled_from([*NAMES, "no_such_setting"]),
        st.sampled_from(["1", '"x"', "true", "[1]", "{a = 1}", "1979-05-27", "1.5", "nan", '"5m"']),
        max_size=3,
    )
)
def test_any_file_is_settings_or_an_error(
    content: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """TOML knows more kinds of values than settings have."""
    path = tmp_path_factory.mktemp("toml") / "pipeline.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in content.items()))
    told = ""
    try:
        Settings.load({"PIPELINE_SETTINGS_FILE": str(path)})
    except SettingError as refused:
        told = str(refused)
    assert not told or any(name in told or name.upper() in told for name in content)
