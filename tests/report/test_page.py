"""The shell: nothing from outside, no script but its own, and nothing is HTML that was not made as such."""

import base64
import hashlib
import re

import pytest
from markupsafe import Markup

from vitrail.report.page import PARTS, SOURCE, Section, document, macros, name, path

MACROS = sorted(str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.html") if "{% macro" in p.read_text("utf-8"))


def test_the_only_script_that_the_policy_allows_is_the_page_s_own():
    text = document("A page", [Section("one", "One", Markup("<p>words</p>"))])
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_a_section_of_plain_text_is_shown_as_text():
    text = document("<i>t</i>", [Section("one", "<b>", "<script>alert(1)</script>")], "<u>", note="<s>")  # type: ignore
    assert "&lt;script&gt;alert(1)" in text and "<i>t" not in text and "<u>" not in text and "<s>" not in text


def test_links_lead_to_the_sections_where_they_are_wanted():
    sections = [Section(key, key.upper(), Markup("<p>…</p>")) for key in ("one", "two")]
    assert re.findall(r'<a href="#(\w+)">(\w+)</a>', document("t", sections, links=True)) == [
        ("one", "One"), ("two", "Two"),
    ]  # fmt: skip
    assert "<nav" not in document("t", sections)


def test_names_are_kept_to_themselves_and_broken_where_they_are_joined():
    assert name("a_b/c") == "<bdi>a_<wbr>b/<wbr>c</bdi>"
    assert path("<a>/b") == "&lt;a&gt;/<wbr>b"


def test_cells_of_a_table_are_escaped_unless_they_are_html():
    table = PARTS.table("A table", ["One", "Two"], [["<b>", Markup("<b>2</b>")]], numeric=[1])
    assert '<td>&lt;b&gt;</td><td class="num"><b>2</b></td>' in table


@pytest.mark.parametrize("template", MACROS)
def test_every_template_of_macros_can_be_compiled(template):
    assert [name for name in dir(macros(template)) if not name.startswith("_")]
