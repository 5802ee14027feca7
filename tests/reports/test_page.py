"""The page about a run: whole, quiet, and deaf to what others wrote into the run."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from builders import START, grade, plan, record
from posttrain.reports.figures import trajectory
from posttrain.reports.page import MOST_ROWS, Page, Table, Text, render_page
from posttrain.reports.svg import draw_svg
from posttrain.reports.visible import Blinds, decoded, visible

HOSTILE = (
    "</pre></style></title><script>alert(1)</script><img src=x onerror=alert(1)>"
    "<svg onload=alert(1)><a href='javascript:alert(1)'>x</a>{{ 7 * 7 }}{% raw %}"
    "\x1b[2J\u202egnp.exe\u200b\x00"
)


class Elements(HTMLParser):
    """Every start tag with its attributes, and the texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def page(**changes: object) -> Page:
    made = plan()
    happened = record()
    grades = (grade(1, 60.0, at=60), grade(2, 68.0, at=120), grade(3, None, at=200))
    values: dict[str, object] = {
        "run_id": made.run_id,
        "title": "recipe on boolean with smollm2-135m",
        "status": "completed",
        "made": "today",
        "headline": "+20.8",
        "facts": (("result", "65.4"),),
        "marks": ("isolation: none",),
        "figure": trajectory(grades, plan=made, record=happened, start_time=START),
        "submissions": Table(("id", "remarks"), (("1", "fine"),), ("id",)),
        "check": None,
        "check_said": "not checked",
        "summary": None,
        "metrics": (),
        "plan": (),
        "logs": (),
    }
    return Page(**(values | changes))  # type: ignore[arg-type]


def rendered(blinds: Blinds | None = None, **changes: object) -> str:
    return render_page(page(**changes), blinds=blinds or Blinds())


def hostile() -> str:
    raw = HOSTILE.encode() + b"\xff\xfe"
    return rendered(
        run_id=HOSTILE,
        title=HOSTILE,
        status=HOSTILE,
        headline=HOSTILE,
        made=HOSTILE,
        facts=((HOSTILE, HOSTILE),),
        marks=(HOSTILE,),
        figure=page().figure.model_copy(  # type: ignore[union-attr]
            update={"title": HOSTILE, "metric": HOSTILE}
        ),
        submissions=Table(("id", "remarks"), (("1", HOSTILE),)),
        check=Table(("line",), ((HOSTILE,),)),
        check_said=HOSTILE,
        summary=Text("summary.md", b"# " + raw + b"\n- " + raw + b"\n```\n" + raw + b"\n```\n" + raw),
        metrics=((HOSTILE, HOSTILE),),
        plan=((HOSTILE, HOSTILE),),
        logs=(Text("agent.log", raw),),
    )


def test_hostile_text_is_inert_wherever_it_stands() -> None:
    found = Elements(hostile())
    quiet = Elements(
        rendered(check=Table(("line",), (("x",),)), summary=Text("s", b"# a\n- b\n```\nc\n```\nd"))
    )
    names = {tag for tag, _ in found.tags}
    assert names <= {tag for tag, _ in quiet.tags} | {"h3", "p", "pre", "dt", "dd", "dl", "td", "tr"}
    assert names.isdisjoint({"script", "img", "a", "iframe", "object", "embed", "link", "form", "base"})
    for tag, attributes in found.tags:
        for name in attributes:
            assert not name.startswith("on"), (tag, name)
            assert name not in {"src", "href", "style", "srcdoc", "action"}, (tag, name)
    assert "{{ 7 * 7 }}" in found.text
    assert "alert(1)" in found.text


def test_what_acts_or_hides_in_a_text_is_written_out() -> None:
    text = hostile()
    for char in ("\x1b", "\u202e", "\u200b", "\x00"):
        assert char not in text
    assert "&lt;U+202E&gt;gnp.exe&lt;U+200B&gt;&lt;U+0000&gt;" in text
    assert r"\xff\xfe" in text


def test_the_policy_lets_nothing_in_but_the_page_s_own_style() -> None:
    text = rendered()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy is not None
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    rules = policy.group(1).replace("&#39;", "'").replace("&#43;", "+").replace("&#47;", "/")
    assert rules.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert text.index("Content-Security-Policy") < text.index("<style>")
    assert "unsafe" not in rules
    assert "http" not in style.group(1)
    assert "@import" not in style.group(1)
    assert "url(" not in style.group(1)


def test_a_page_names_no_other_address() -> None:
    assert set(re.findall(r"https?://[^\s\"<]+", rendered())) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("saved to /lab/home/runs/boolean/x/y.log", "saved to $POSTTRAIN_HOME/runs/boolean/x/y.log"),
        ('File "/opt/some/where/train.py", line 3', 'File "…/train.py", line 3'),
        (
            "POST http://127.0.0.1:5000/run/abcdefghijklmnop_QRST-1234/submit",
            "POST http://127.0.0.1:5000/run/…/submit",
        ),
        ("key sk-abcdefghijklmnopqrstuvwx end", "key … end"),
        ("Authorization: Bearer abcdefghijklmnopqrstuvwxyz", "Authorization: …"),
        ("hunter2-hunter2", "…"),
        (
            "skip_special_tokens=True, risk-averse_planning_of_all",
            "skip_special_tokens=True, risk-averse_planning_of_all",
        ),
        ("1/2/3 and/or n/a, 5 % / 6 %", "1/2/3 and/or n/a, 5 % / 6 %"),
        ("asked: Tom has 5 apples and eats 2, how many?", "asked: [a hidden item]"),
    ],
)
def test_what_is_private_is_not_told(told: str, shown: str) -> None:
    blinds = Blinds(
        paths={"/lab/home": "$POSTTRAIN_HOME"},
        secrets=("hunter2-hunter2",),
        hidden=("Tom has 5 apples and eats 2, how many?",),
    )
    assert blinds(told) == shown


def test_long_tables_and_cells_are_cut_and_say_so() -> None:
    rows = tuple((str(number), "x" * 5000) for number in range(MOST_ROWS + 7))
    text = rendered(submissions=Table(("id", "remarks"), rows))
    assert "7 further rows are left out" in text
    assert "x" * 401 not in text


def test_a_cut_log_says_how_much_is_missing() -> None:
    text = rendered(logs=(Text("agent.log", b"the end", left_out=209_715_200),))
    assert "209715200 bytes before are left out" in text
    assert "the end" in text


def test_a_summary_keeps_its_order_and_its_open_code() -> None:
    story = "# 运行总结\r\n## Iteration 1\r\n- **状态**: ✅\n```python\nx = 1\n"
    found = Elements(rendered(summary=Text("summary.md", story.encode())))
    assert [tag for tag, _ in found.tags if tag in {"h3", "h4", "pre"}] == ["h3", "h4", "pre"]
    assert "状态: ✅" in found.text


def test_text_of_any_kind_can_be_written() -> None:
    assert visible("a\ud800b\u2028c\U000e0041") == "a<U+D800>b<U+2028>c<U+E0041>"
    assert decoded(b"a\r\nb\rc\xffd") == "a\nb\nc\\xffd"
    assert visible("中文，é\u0301 👍") == "中文，é\u0301 👍"


def test_the_figure_shows_every_submission_and_never_a_missing_score_as_zero() -> None:
    figure = page().figure
    assert figure is not None
    text = draw_svg(figure)
    found = Elements(text)
    assert sum(tag == "circle" for tag, _ in found.tags) == 4
    assert "submission 3, unloadable" in found.text
    assert "submission 2, graded: 68.0 [63.8, 71.9]" in found.text
    assert "held-out test" in found.text


def test_a_figure_without_anything_can_be_drawn() -> None:
    bare = trajectory((), plan=plan(), record=record(result=None, val_baseline=None), start_time=START)
    assert draw_svg(bare).endswith("</svg>")


@pytest.mark.parametrize("blank", ["\u3164", "\u115f", "\u2800", "\ufe01", "\U000e0101", "\u034f"])
def test_letters_that_are_drawn_as_nothing_are_written_out(blank: str) -> None:
    assert visible(f"a{blank}b") == f"a<U+{ord(blank):04X}>b"


def test_signs_in_colour_stay() -> None:
    assert visible("\u26a0\ufe0f loss") == "\u26a0\ufe0f loss"


def test_an_item_that_speaks_of_a_folder_is_hidden() -> None:
    item = "Which file lies in /srv/quiz/seven of the server?"
    assert Blinds(hidden=(item,))(f"asked {item}!") == "asked [a hidden item]!"
