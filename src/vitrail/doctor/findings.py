"""What a check has to say: one line each, healthy or not, with the number that it rests on."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

OK, SKIPPED, WARN, FAULT = "ok", "skipped", "warn", "fault"


@dataclass(frozen=True)
class Finding:
    severity: str  # ok | skipped | warn | fault
    seen: str  # what was seen, with the number
    cause: str = ""  # what is likely behind it
    fix: str = ""  # what to do
    code: str = ""  # a name for programs, where something is wrong: "positions_zero"
    figures: Mapping[str, float] = field(default_factory=dict)
    check: str = ""  # which check it is of, "positions", as `diagnose` names it

    @property
    def line(self) -> str:
        """All of it in one line."""
        parts = [self.seen.rstrip("."), self.cause and f"Likely: {self.cause}", self.fix and f"Fix: {self.fix}"]
        return ". ".join(part.rstrip(".") for part in parts if part) + "."

    def __str__(self) -> str:
        """As the command prints it, in columns."""
        return f"{self.severity:<8}{self.check:<14} {self.line}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no word for what is no number."""
        figures = {name: value if math.isfinite(value) else None for name, value in self.figures.items()}
        return {"check": self.check} | asdict(self) | {"figures": figures}


def ok(seen: str, **figures: float) -> Finding:
    return Finding(OK, seen, figures=figures)


def skipped(seen: str) -> Finding:
    return Finding(SKIPPED, seen)


def warn(code: str, seen: str, cause: str, fix: str, **figures: float) -> Finding:
    return Finding(WARN, seen, cause, fix, code, figures)


def fault(code: str, seen: str, cause: str, fix: str, **figures: float) -> Finding:
    return Finding(FAULT, seen, cause, fix, code, figures)


def numbers(places: list[int]) -> str:
    """3, 5–7: what a person would write for block numbers."""
    runs: list[list[int]] = []
    for place in sorted(places):
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def blocks(places: list[int]) -> str:
    """ "block 4", "blocks 6–8", for the places 3 and 5 to 7: people count from 1, as pages and the Studio do."""
    return f"block{'' if len(places) == 1 else 's'} {numbers([place + 1 for place in places])}"
