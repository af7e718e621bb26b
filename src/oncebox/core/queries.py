"""The statements flows may ask for, by name; their text lives with the engines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_ARRAY = re.compile(r"(?<![:\w]):[a-z_]+(?=::(?:text|bytea)\[\])")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


class Query:
    """One named statement, ready for every parameter style a driver may want."""

    __slots__ = (
        "each",
        "is_script",
        "name",
        "names",
        "numbered",
        "order",
        "packed",
        "pieces",
        "positional",
        "statements",
        "text",
        "whole",
    )

    def __init__(self, name: str, text: str, each: bool, whole: bool = False) -> None:
        self.name = name
        self.text = text
        self.each = each
        self.whole = whole
        """Run per row, but able to take many rows at once: a plain INSERT of values."""
        self.statements = tuple(part.strip() for part in text.split(";\n")) if each else (text,)
        self.is_script = not each and (";\n" in text or text.startswith(("CREATE", "CALL")))
        """No statement with parameters: several, or one that can have none."""
        found = _PARAM.findall(text)
        self.order = tuple(found)
        """Parameter names as they occur, repeats included: for %s and ? styles."""
        self.names = tuple(dict.fromkeys(found))
        """Each parameter name once: for $1 style."""
        number = {name: f"${n}" for n, name in enumerate(self.names, 1)}
        self.numbered = _PARAM.sub(lambda match: number[match[1]], text)
        self.positional = _PARAM.sub("%s", text.replace("%", "%%"))
        self.packed = _PARAM.sub("%s", _ARRAY.sub("%b", text.replace("%", "%%")))
        """`positional` for psycopg: arrays of texts and bytes travel as they are, which costs a twentieth of
        quoting each of their values."""
        self.pieces = tuple(_PARAM.split(text))
        """Text, name, text, name, … text: for literals."""

    def parts(self) -> list[Query]:
        """Its statements as queries of their own, for a handle that takes one at a time."""
        return [Query(f"{self.name}_{n}", text, self.each) for n, text in enumerate(self.statements, 1)]

    def of(self, **names: str) -> Query:
        """The same with tables and bounds that parameters can't name, where the text says `[ledger]`."""
        return _of(self, tuple(sorted(names.items())))

    def __repr__(self) -> str:
        return f"<Query {self.name}>"


@lru_cache(maxsize=256)
def _of(query: Query, names: tuple[tuple[str, str], ...]) -> Query:
    text = query.text
    for word, name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of ours")
        text = text.replace(f"[{word}]", name)
    return Query(query.name, text, query.each)


@dataclass(frozen=True, slots=True)
class Queries:
    """Every query of the runtime and the guard, by name. The last ones are of one dialect only:
    PostgreSQL takes under row locks and then marks, SQLite picks and marks before it writes."""

    claim: Query
    claim_many: Query
    guard_claim: Query
    guard_claim_many: Query
    guard_lookup: Query
    mark_unfinished: Query
    mark_finished: Query
    unclaim: Query
    lookup: Query
    lookup_one: Query
    hold: Query
    keep_result: Query
    keep: Query
    store: Query
    vouch: Query
    due: Query
    due_suspect: Query
    take: Query
    take_suspect: Query
    take_unknown: Query
    take_unknown_suspect: Query
    finish: Query
    lease: Query
    extend: Query
    finish_leased: Query
    still_leased: Query
    give_up: Query
    is_alive: Query
    postpone: Query
    record_attempt: Query
    count_attempts: Query
    charge: Query
    bury: Query
    bury_queued: Query
    set_state: Query
    heartbeat: Query
    mark_inline: Query
    withdraw: Query
    lapsed: Query
    reap: Query
    reap_hands: Query
    orphans: Query
    suspect: Query
    record_deaths: Query
    retire: Query
    retire_hands: Query
    tally: Query
    publish: Query
    ring: Query
    relay_join: Query
    relay_leave: Query
    slots_held: Query
    slots_lease: Query
    slots_free: Query
    send_clash: Query
    outbox_take: Query
    outbox_flush: Query
    outbox_drop: Query
    outbox_keep: Query
    outbox_fail: Query
    outbox_park: Query
    outbox_sweep: Query
    outbox_status: Query
    outbox_parked: Query
    outbox_parked_count: Query
    outbox_retry: Query
    outbox_discard: Query
    audit: Query
    audit_list: Query
    effect_start: Query
    effect_look: Query
    effect_settle: Query
    effect_resolve: Query
    effect_late: Query
    effect_find: Query
    effects_open: Query
    effects_count: Query
    key_touch: Query
    key_lock: Query
    key_backlog: Query
    key_start: Query
    key_moved: Query
    key_block: Query
    key_unblock: Query
    key_redriven: Query
    key_stale: Query
    key_drop: Query
    key_pass: Query
    key_gaps: Query
    key_overdue: Query
    key_waiting: Query
    key_skip: Query
    key_reset: Query
    place_of: Query
    keys_stuck: Query
    keys_count: Query
    spill: Query
    watermark_move: Query
    watermark_look: Query
    watermark_begin: Query
    watermark_set: Query
    watermark_list: Query
    watermark_forget: Query
    dead_list: Query
    dead_choose: Query
    dead_count: Query
    dead_row: Query
    dead_reopen: Query
    dead_requeue: Query
    dead_discard: Query
    dead_drop: Query
    unfinished_list: Query
    unfinished_choose: Query
    unfinished_count: Query
    unfinished_drop: Query
    unfinished_discard: Query
    sweep_lease: Query
    sweep_move: Query
    sweep_free: Query
    sweep_end: Query
    sweep_find: Query
    sweep_drop: Query
    sweep_results: Query
    sweep_attempts: Query
    sweep_effects: Query
    sweep_kept: Query
    sweep_keys: Query
    sweep_keys_drop: Query
    sweep_tally: Query
    sweep_look: Query
    archive_sizes: Query
    archive_extras: Query
    archive_known: Query
    archive_restore: Query
    archive_restore_results: Query
    archive_restore_kept: Query
    forget: Query
    forgotten: Query
    low_note: Query
    low_drop: Query
    exhume: Query
    unbury: Query
    queued: Query
    status_queue: Query
    status_types: Query
    status_known: Query
    status_dead: Query
    status_unfinished: Query
    status_tally: Query
    status_workers: Query
    show_scopes: Query
    show_ledger: Query
    show_lane: Query
    show_dead: Query
    show_attempts: Query
    doctor_server: Query
    doctor_indexes: Query
    doctor_leases: Query
    doctor_sweep: Query
    replay_bound: Query
    replay_begin: Query
    replay_open: Query
    replay_hold: Query
    replay_move: Query
    replay_end: Query
    replay_page: Query
    replay_known: Query
    replay_changes: Query
    replay_counts: Query
    fence: Query | None = None
    guard_open: Query | None = None
    guard_call: Query | None = None
    finished: Query | None = None
    sweep_purge: Query | None = None
    leaves: Query | None = None
    partition_lock_all: Query | None = None
    partition_whole: Query | None = None
    partition_parent: Query | None = None
    partition_join: Query | None = None
    partition_undo: Query | None = None
    partition_rows: Query | None = None
    partition_make: Query | None = None
    partition_lock: Query | None = None
    partition_held: Query | None = None
    partition_told: Query | None = None
    partition_spent: Query | None = None
    partition_empty: Query | None = None
    partition_clear: Query | None = None
    partition_count: Query | None = None
    partition_retire: Query | None = None
    mark: Query | None = None
    pick: Query | None = None
    pick_suspect: Query | None = None
    taken: Query | None = None
    doctor_triggers: Query | None = None
    doctor_tables: Query | None = None
    doctor_snapshots: Query | None = None
    replay_quiet: Query | None = None
    replay_watch: Query | None = None
