"""Metrics as plain values, and Prometheus' text form of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]


class Sample(NamedTuple):
    """One figure. `suffix` is what a histogram's parts add to the name."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


class Family(NamedTuple):
    """One metric with all its series."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample]


def render(families: Iterable[Family]) -> bytes:
    """The text that Prometheus reads."""
    lines: list[str] = []
    for family in families:
        lines += (
            f"# HELP {family.name} {_escape(family.help)}",
            f"# TYPE {family.name} {family.kind}",
        )
        lines += (_line(family.name, sample) for sample in family.samples)
    return ("\n".join(lines) + "\n").encode()


def _line(name: str, sample: Sample) -> str:
    pairs = ",".join(f'{key}="{_quote(value)}"' for key, value in sample.labels.items())
    labels = f"{{{pairs}}}" if pairs else ""
    return f"{name}{sample.suffix}{labels} {number(sample.value)}"


def number(value: float) -> str:
    """Whole numbers without a point, as they are easier on the eye."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quote(text: str) -> str:
    # A lone surrogate has no UTF-8; a name that carries one must not cost the whole scrape.
    text = text.encode("utf-8", "replace").decode()
    return _escape(text).replace('"', '\\"')
