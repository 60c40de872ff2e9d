"""Comments made safe, as HTML and as plain text."""

import re

import pytest

from pipeline.digest.richtext import READ_LIMIT, mentioned_ids, parse, plain
from tests.support.digests import Page

ALLOWED = {
    *("a", "b", "blockquote", "br", "code", "div", "em", "hr", "i", "li", "ol", "p", "pre", "s"),
    *("strong", "u", "ul"),
}


def html(source: str, limit: int = 5_000, **people: str) -> str:
    return parse(source, people).html(limit)


def text(source: str, limit: int = 5_000, **people: str) -> str:
    return parse(source, people).text(limit)


@pytest.mark.parametrize(
    "source",
    [
        "<script>alert(1)</script>",
        "<p onclick='alert(1)'>x</p>",
        "<img src=x onerror=alert(1)>",
        "<a href='javascript:alert(1)'>x</a>",
        "<a href='JaVa\tScript:alert(1)'>x</a>",
        "<a href='//evil.test'>x</a>",
        "<a href='data:text/html,x'>x</a>",
        "<a href='https://e.test' style='position:fixed' onmouseover=x>x</a>",
        "<svg/onload=alert(1)>",
        "<svg><style><img src=x onerror=alert(1)></style></svg>",
        "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
        "<iframe src='https://e.test'></iframe>",
        "<form action='https://e.test'><input name=x><button>go</button></form>",
        "<style>p{display:none}</style><p>x</p>",
        "<link rel=stylesheet href='https://e.test'>",
        "<meta http-equiv=refresh content='0;url=https://e.test'>",
        "<object data=x></object><embed src=x>",
        "<![CDATA[<script>alert(1)</script>]]>",
        "<![foo bar<p>x</p>",
        "<!--><script>alert(1)</script>-->",
        "<title><script>alert(1)</script></title>",
        "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
        "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>",
        "<mention-component entity_identifier='\"><script>alert(1)</script>'></mention-component>",
        "<p/><details ontoggle=alert(1) open>x</details>",
        "<customtag onclick=alert(1)>x",
    ],
)
def test_H05_nothing_active_is_left(source: str) -> None:
    """Only plain tags, and of attributes only our own styles and checked links."""
    for tag, attributes in Page(html(source)).tags:
        assert tag in ALLOWED
        assert attributes.keys() <= {"href", "style", "class"}
        assert attributes.get("href", "https://").startswith(("https://", "http://", "mailto:"))
        assert "position" not in attributes.get("style", "")


def test_links_of_the_web_and_of_mail_are_kept() -> None:
    """http, https and mailto, with their address shown in plain text."""
    source = (
        '<p><a href="https://e.test/?a=1&amp;b=2">here</a> '
        '<a href="mailto:a@e.test">a@e.test</a></p>'
    )
    assert Page(html(source)).links == ["https://e.test/?a=1&b=2", "mailto:a@e.test"]
    assert text(source) == "here (https://e.test/?a=1&b=2) a@e.test"


def test_a_formula_is_not_taken_for_a_tag() -> None:
    """Plain text with a `<` in it is shown as it stands."""
    assert text("x < y && List<String>\nnext") == "x < y && List<String>\nnext"
    assert Page(html("x < y && List<String>")).text == "x < y && List<String>"


def test_lists_quotes_and_code_in_plain_text() -> None:
    """Written the way people write them in plain mails."""
    source = (
        "<h2>Plan</h2><ul><li><p>one</p></li><li><p>two</p><ol><li>a</li><li>b</li></ol></li></ul>"
        "<blockquote><p>said</p><p>so</p></blockquote><pre><code>x = 1\n  y\n</code></pre><hr>"
        "<table><tr><td>1</td><td>2</td></tr></table>line<br>break<img alt='cat'>"
    )
    assert text(source).split("\n") == [
        "Plan",
        "- one",
        "- two",
        "  1. a",
        "  2. b",
        "> said",
        "> so",
        "x = 1",
        "  y",
        "---",
        "1 2",
        "line",
        "break[image: cat]",
    ]


def test_mentions_are_names() -> None:
    """By the people handed in; who is not among them is someone."""
    source = (
        '<p><mention-component id="1" entity_identifier="b"></mention-component> and '
        '<mention-component entity_identifier="c"></mention-component></p>'
    )
    rich = parse(source, {"b": "Bob <i>"})
    assert rich.text(100) == "@Bob <i> and @someone"
    assert "<strong>@Bob &lt;i&gt;</strong>" in rich.html(1000)
    assert rich.mentioned == ("b", "c")
    assert mentioned_ids(source) == {"b", "c"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", ["<b>", "<div>", "<b><div>", "<p><b>", "<a><div>", "<ol><li>"])
def test_B02_deep_nesting_is_bounded(unit: str) -> None:
    """Megabytes of open tags take neither long nor much room."""
    rich = parse(unit * 400_000 + "end", {})
    assert len(rich.html(4_000).encode()) < 4_400
    assert len(rich.text(2_000)) <= 2_000


@pytest.mark.parametrize("word", ["x", "ф", "&", "😀", "<p>x</p>", "<li>x", "x<br>", "x ", "\n"])
@pytest.mark.parametrize("limit", [60, 1_000, 6_000])
def test_B02_long_comments_are_clipped(word: str, limit: int) -> None:
    """By bytes in HTML, by characters in plain text, and always well-formed."""
    rich = parse(f"<p>{word * 1_000_000}", {})
    assert len(rich.html(limit).encode()) <= limit + 200
    assert len(rich.text(limit)) <= limit
    if word.strip():
        assert re.search(r"…(?:</\w+>)*$", rich.html(limit))
        assert rich.text(limit).endswith("…")


def test_B02_clipping_uses_the_room_there_is() -> None:
    """What fits is shown."""
    assert len(html("<p>" + "x" * READ_LIMIT, limit=4_000)) > 3_900


def test_a_pasted_picture_does_not_hide_the_words_after_it() -> None:
    """The data of an embedded picture is no part of what is read."""
    source = f'<p><img src="data:image/png;base64,{"A" * 3_000_000}">after</p>'
    assert text(source) == "[image]after"


def test_direction_marks_and_control_characters_are_left_out() -> None:
    """Nothing in a comment rewrites the lines around it, not even by character references."""
    assert text("<p>a&#8238;b\u202ec\x00d&#7;e\ud800f</p>") == "abcdef"
    assert text("a\u202eb") == "ab"


def test_plain_takes_html_and_text() -> None:
    """One line out of either."""
    assert plain("<p>one</p><p>two</p>", 50) == "one two"
    assert plain("a\u2028b\r\nc <d", 50) == "a b c <d"
    assert plain("x" * 100, 10) == "xxxxxxxxx…"
