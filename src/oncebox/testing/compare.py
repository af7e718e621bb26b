"""Two states of a database: what differs, but for what may differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from oncebox.testing.noise import explained, natural, plain
from oncebox.testing.tables.state import Row, State, Table

SHOWN_MAX = 8
_VALUE_MAX = 80
Treatment = Callable[[str | None], str | None]


class Difference(msgspec.Struct, frozen=True):
    """One table that is not as it should be."""

    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    missing: tuple[Row, ...]
    extra: tuple[Row, ...]
    unexplained: tuple[tuple[str, str | None, str | None], ...] = ()
    """Columns whose values alone differ, with one value of each side."""
    noisy: frozenset[str] = frozenset()
    """Columns that differ anyhow, and say nothing here."""

    def told(self) -> list[str]:
        """Row by row; rows with the same key are shown as one that changed."""
        lines = []
        missing, extra = list(self.missing), list(self.extra)
        for row in list(missing):
            other = next((found for found in extra if self._is_same(row, found)), None)
            if other is not None:
                missing.remove(row)
                extra.remove(other)
                lines.append(f"{self.table}, {self._name(row)}: {self._changes(row, other)}")
        lines += [f"{self.table}: missing {self._row(row)}" for row in missing]
        lines += [f"{self.table}: too much {self._row(row)}" for row in extra]
        if len(lines) > SHOWN_MAX:
            lines = [*lines[:SHOWN_MAX], f"{self.table}: and {len(lines) - SHOWN_MAX} rows more"]
        return lines

    def _is_same(self, row: Row, other: Row) -> bool:
        if not self.key:
            return len(self.missing) == len(self.extra) == 1
        places = [self.columns.index(name) for name in self.key]
        return all(row[place] == other[place] for place in places)

    def _name(self, row: Row) -> str:
        if not self.key:
            return "its row"
        return " ".join(f"{name}={_shown(row[self.columns.index(name)])}" for name in self.key)

    def _changes(self, row: Row, other: Row) -> str:
        return ", ".join(
            f"{name} is {_shown(b)} instead of {_shown(a)}"
            for name, a, b in zip(self.columns, row, other, strict=True)
            if a != b and name not in self.noisy
        )

    def _row(self, row: Row) -> str:
        return "(" + ", ".join(f"{n}={_shown(v)}" for n, v in zip(self.columns, row, strict=True)) + ")"


class Comparison:
    """Compares states, and learns on the way which columns may differ, and how.

    `ignore` holds columns ("table.column") and tables that are not compared at all.
    """

    def __init__(self, ignore: Iterable[str] = ()) -> None:
        self.ignored = frozenset(ignore)
        self.noisy: dict[str, str] = {}
        """Columns that were found to differ between two right runs, and why they may."""
        self._treatments: dict[tuple[str, str], Treatment] = {}

    def differences(self, right: State, other: State, *, without: Iterable[str] = ()) -> list[Difference]:
        """What is not in `other` as it is in `right`."""
        names = sorted((right.keys() | other.keys()) - set(without) - self.ignored)
        empty = Table((), (), Counter())
        found = [self._compare(name, right.get(name, empty), other.get(name, empty)) for name in names]
        return [difference for difference in found if difference is not None]

    def _compare(self, name: str, right: Table, other: Table) -> Difference | None:
        if right.rows == other.rows:
            return None
        if right.columns != other.columns:
            return Difference(
                name,
                (right.columns or other.columns),
                (),
                tuple(right.rows.elements()),
                tuple(other.rows.elements()),
            )
        missing, extra = self._only(name, right, other)
        if not missing and not extra:
            return None
        unexplained = self._learn(name, right.columns, missing, extra)
        if unexplained is not None and not unexplained:
            missing, extra = self._only(name, right, other)
            if not missing and not extra:
                return None
        shown = tuple(column for column in right.columns if f"{name}.{column}" not in self.ignored)
        if not shown:
            return None
        return Difference(
            name,
            right.columns,
            right.key,
            _sorted(missing),
            _sorted(extra),
            tuple(unexplained or ()),
            frozenset(column for column in right.columns if (name, column) in self._treatments),
        )

    def _only(self, name: str, right: Table, other: Table) -> tuple[Counter[Row], Counter[Row]]:
        """Rows of either side that the other has not, as they were read; told apart as they are treated."""
        treated = [self._treated(name, table) for table in (right, other)]
        ours = Counter({key: sum(rows.values()) for key, rows in treated[0].items()})
        theirs = Counter({key: sum(rows.values()) for key, rows in treated[1].items()})
        missing: Counter[Row] = Counter()
        extra: Counter[Row] = Counter()
        for key, times in (ours - theirs).items():
            missing.update(list(treated[0][key].elements())[:times])
        for key, times in (theirs - ours).items():
            extra.update(list(treated[1][key].elements())[-times:])
        return missing, extra

    def _treated(self, name: str, table: Table) -> dict[Row, Counter[Row]]:
        treatments = [
            _drop if f"{name}.{column}" in self.ignored else self._treatments.get((name, column))
            for column in table.columns
        ]
        found: dict[Row, Counter[Row]] = {}
        for row, times in table.rows.items():
            key = tuple(
                t(value) if t is not None else value for t, value in zip(treatments, row, strict=True)
            )
            found.setdefault(key, Counter())[row] += times
        return found

    def _learn(
        self, name: str, columns: tuple[str, ...], missing: Counter[Row], extra: Counter[Row]
    ) -> list[tuple[str, str | None, str | None]] | None:
        """The columns in which as many rows differ, if they can't be explained; None if rows differ."""
        if sum(missing.values()) != sum(extra.values()):
            return None
        unexplained: list[tuple[str, str | None, str | None]] = []
        for place, column in enumerate(columns):
            if f"{name}.{column}" in self.ignored:
                continue
            ours = sorted((row[place] or "" for row in missing.elements()), key=natural)
            theirs = sorted((row[place] or "" for row in extra.elements()), key=natural)
            pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
            if not pairs:
                continue
            if all(explained(a, b) for a, b in pairs):
                self._treatments.setdefault((name, column), plain)
                self.noisy.setdefault(f"{name}.{column}", "a time or a random id")
            elif all(explained(a, b, sequences=True) for a, b in pairs):
                self._treatments[name, column] = _drop
                self.noisy[f"{name}.{column}"] = "from a sequence"
            else:
                first = next((a, b) for a, b in pairs if not explained(a, b, sequences=True))
                unexplained.append((column, *first))
        return unexplained


def _sorted(rows: Counter[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows.elements(), key=lambda row: [natural(value or "") for value in row]))


def _drop(value: str | None) -> str | None:
    return None


def _shown(value: str | None) -> str:
    if value is None:
        return "NULL"
    return repr(value if len(value) <= _VALUE_MAX else value[:_VALUE_MAX] + "…")
