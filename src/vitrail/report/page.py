"""The shell of every page, and the one place that turns templates into HTML.

Templates escape whatever they are given: only what a template or a chart has made itself, a `Markup`, goes in as it is.
A template lies beside the code that fills it, and its macros are called like functions.
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from vitrail.report.numbers import number, percent

SOURCE = Path(__file__).parents[1]  # of all templates: "report/templates/parts.html", "doctor/page.html"


class Section(NamedTuple):
    """A part of a page under a heading; the key is its id, and in a report its name among the links at the top."""

    key: str
    title: str
    body: Markup


def name(text: object) -> Markup:
    """A name from outside: broken, where it has to be, behind _ and /, and kept from turning the direction of the
    sentence around it."""
    return Markup("<bdi>{}</bdi>").format(path(text))


def path(text: object) -> Markup:
    """A file's name, broken behind _ and / where it has to be."""
    return Markup(re.sub(r"([/_])", r"\1<wbr>", str(escape(text))))


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(SOURCE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    made.filters.update(percent=percent, number=number, name=name, path=path)
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return made


ENVIRONMENT = _environment()


def macros(template: str) -> Any:
    """The macros of a template as functions that give `Markup`."""
    return ENVIRONMENT.get_template(template).module


PARTS = macros("report/templates/parts.html")


def document(
    title: str,
    sections: Iterable[Section],
    summary: str = "",
    lead: Markup | str = "",
    note: str = "",
    links: bool = False,
) -> str:
    """The whole page. `lead` stands before the first section, `note` in the footer; `links` lead to the sections."""
    templates = Path(__file__).with_name("templates")
    style, script = (Markup((templates / f"page.{kind}").read_text(encoding="utf-8")) for kind in ("css", "js"))
    # The policy makes sure of what the page promises: nothing is asked from outside and no other script is run,
    # whatever a name may hold.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return ENVIRONMENT.get_template("report/templates/page.html").render(
        title=title, summary=summary, lead=lead, sections=list(sections), note=note, links=links, style=style,
        script=script, policy=Markup(policy),
    )  # fmt: skip
