"""How numbers are written on a page."""

import math
from typing import TypeGuard

THIN = "\u202f"  # narrow space that does not break: before %


def known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def percent(value: float | None, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}{THIN}%" if known(value) else "–"


def number(value: float | None) -> str:
    """Four digits, as many as anyone reads; small ones as they are typed: 2e-4."""
    if not known(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if value == 0 or abs(value) >= 0.001:
        return f"{value:.4g}"
    digits, power = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def short_count(count: int) -> str:
    """A count where there is little room: 950, 1.2k, 34k."""
    return str(count) if count < 1000 else f"{count / 1000:.1f}k" if count < 10_000 else f"{count / 1000:.0f}k"
