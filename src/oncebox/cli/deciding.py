"""What the `oncebox dead` commands do with what they were told."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from oncebox.cli.asking import ask, who
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import Target, find_target
from oncebox.cli.tables import Rows
from oncebox.cli.text import age, clean, count, seconds_of
from oncebox.core.audit import Act
from oncebox.core.dead import Choice, Count, DeadLetter, Decision, count_dead, dead_letters, decide
from oncebox.core.unfinished import all_dead, count_claims, decide_claims, unfinished_claims
from oncebox.errors import UsageError
from oncebox.message import check_id


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision came to."""

    act: str
    decision: str
    applied: bool
    count: int
    """Messages that were changed; without `--apply`, that would be."""
    claims: int = 0
    """How many of them are claims of the guard's, of which nothing but the id is kept."""
    counts: list[Count] = []
    ids: list[str] = []
    """The first thousand of those that were changed."""


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """Which id stands now."""

    act: str
    id: str
    stands: str


Where = tuple[str | None, str | None, str | None]


def choice(
    ids: list[str] | None,
    consumer: str | None,
    source: str | None,
    kind: str | None,
    why: str | None,
    error: str | None,
    key: str | None,
    older: str | None,
    newer: str | None,
) -> Choice:
    unique = tuple(dict.fromkeys(ids or []))
    for each in unique:
        check_id(each)
    return Choice(
        ids=unique, consumer=consumer, source=source, type=kind, reason=why, error_type=error, key=key,
        older_seconds=seconds_of(older, "--older"), newer_seconds=seconds_of(newer, "--newer"),
    )  # fmt: skip


def none_found(target: Target, choice: Choice) -> str:
    """Nothing was found: because nothing is dead, or because nothing that is matches?"""
    if choice == Choice():
        return "Nothing is dead."
    every = ask(target, all_dead(target.database.queries, Choice()))
    if not every:
        return "Nothing is dead."
    whose = ", ".join(repr(clean(name)) for name in sorted({each.consumer for each in every}))
    return f"Nothing that is dead matches. There is some of {whose}: oncebox dead list shows it."


def decide_all(
    decision: Decision,
    choice: Choice,
    every: bool,
    apply: bool,
    rate: float,
    reason: str,
    by: str | None,
    where: Where,
    as_json: bool,
) -> None:
    if bool(choice.ids) == every:
        raise UsageError("name the messages: ids, or --all (with --consumer, --type, --error …, if you like)")
    if apply and not every:
        raise UsageError("--apply goes with --all; messages that are named are changed at once")
    if not reason.strip():
        raise UsageError('say why: --reason "…"; it is kept in the audit')
    target = find_target(*where)
    act = _act(f"dead {decision}", choice, reason, by)
    if every and not apply:
        counts = ask(target, count_dead(target.database.queries, choice, decision))
        claims = ask(target, count_claims(target.database.queries, choice))
        would, free = (sum(each.count for each in some) for some in (counts, claims))
        done = Done(
            act=act.id, decision=decision, applied=False, count=would + free, claims=free, counts=[*counts, *claims]
        )  # fmt: skip
        return _say(done, as_json)
    changed = _paced(target, decision, choice, act, rate)
    if choice.ids:
        _check_named(target, choice, changed)
    ids = [each.id for each in changed[:1000]]
    free = sum(each.is_claim for each in changed)
    return _say(
        Done(act=act.id, decision=decision, applied=True, count=len(changed), claims=free, ids=ids), as_json
    )


def _paced(target: Target, decision: Decision, choice: Choice, act: Act, rate: float) -> list[DeadLetter]:
    """Batch after batch, no faster than asked for. What dies again meanwhile is not meant."""
    began = time.monotonic()
    changed: list[DeadLetter] = []
    while True:
        since = time.monotonic() - began
        if rate and len(changed) / rate > since:
            time.sleep(len(changed) / rate - since)
        older = (
            max(choice.older_seconds or 0.0, time.monotonic() - began) if changed else choice.older_seconds
        )
        meant = msgspec.structs.replace(choice, older_seconds=older)
        found = ask(target, decide(target.database.queries, decision, meant, act))
        found = found or ask(target, decide_claims(target.database.queries, decision, meant, act))
        changed += found
        if not found:
            return changed


def _check_named(target: Target, choice: Choice, changed: list[DeadLetter]) -> None:
    missing = [each for each in choice.ids if each not in {letter.id for letter in changed}]
    if not missing:
        return
    left = ask(target, all_dead(target.database.queries, Choice(ids=tuple(missing))))
    clashing = {each.id for each in left if each.is_conflict}
    others = {each.id for each in left} - clashing
    told = (
        (clashing, "in conflict (settle it with oncebox dead resolve)"),
        (others, "dead, but not as the other options say (oncebox dead list ID)"),
        (
            set(missing) - clashing - others,
            "not dead: done, which is not run again, or waiting, or never seen here (oncebox show ID)",
        ),
    )
    why = [_are([each for each in missing if each in ids], what) for ids, what in told if ids]
    raise UsageError(f"{len(changed)} changed, but {'; '.join(why)}")


def _are(ids: list[str], what: str) -> str:
    more = ", …" if len(ids) > 5 else ""
    return f"{', '.join(map(repr, ids[:5]))}{more} {'is' if len(ids) == 1 else 'are'} {what}"


def one(
    verb: str, choice: Choice, reason: str, by: str | None, where: Where
) -> tuple[Target, Act, DeadLetter]:
    if not reason.strip():
        raise UsageError('say why: --reason "…"; it is kept in the audit')
    target = find_target(*where)
    found = ask(target, dead_letters(target.database.queries, choice))
    if not found and ask(target, unfinished_claims(target.database.queries, choice, 1)):
        raise UsageError(
            f"id {choice.ids[0]!r} is a claim of the guard's that was left unfinished, and no payload is kept of it; "
            "redrive or discard it"
        )
    if not found:
        what = "in conflict" if choice.reason else "dead"
        raise UsageError(f"id {choice.ids[0]!r} is not {what}; oncebox dead list shows what is")
    if len(found) > 1:
        which = ", ".join(f"--consumer {each.consumer} --source {each.source or repr('')}" for each in found)
        raise UsageError(f"id {choice.ids[0]!r} is there {len(found)} times; name one of: {which}")
    return target, _act(verb, choice, reason, by), found[0]


def _act(verb: str, choice: Choice, reason: str, by: str | None) -> Act:
    words = {**msgspec.structs.asdict(choice), "ids": list(choice.ids) or None}
    return Act(verb=verb, who=who(by), reason=reason.strip(), filter=words)


def public(each: DeadLetter) -> dict[str, Any]:
    words = {**msgspec.structs.asdict(each), "key": each.lane or each.key}
    return {word: value for word, value in words.items() if word not in ("fingerprint", "lane")}


def _say(done: Done, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    if done.decision == "discard":
        past = f"{count(done.count)} {'' if done.applied else 'would be '}discarded"
    else:
        past = f"{count(done.count - done.claims)} {'' if done.applied else 'would be '}in line again"
        past += f", {count(done.claims)} free to run when delivered again" if done.claims else ""
    if done.applied:
        console().print(plain(past))
        return
    for each in done.counts:
        console().print(plain(f"{count(each.count)}  {each.consumer}  {each.reason}  {each.type}"))
    console().print(plain(f"{past}; --apply does it", "bold"))


def say_one(done: Replaced, as_json: bool) -> None:
    if as_json:
        print_json(done)
    elif done.stands == "first":
        console().print(plain(f"{done.id}: the first payload stands"))
    else:
        console().print(plain(f"in line as {done.id}"))


def _reason(each: DeadLetter) -> str:
    if each.is_claim:
        return f"{each.reason} (by the guard)"
    return each.reason if each.is_kept else f"{each.reason} (no payload kept)"


def table(found: list[DeadLetter]) -> Rows:
    right = ("attempts", "dead for")
    columns = ("consumer", "source", "id", "type", "key", "reason", "error", *right)
    table = Rows("dead messages", columns, right=right)
    for each in found:
        table.add(
            plain(each.consumer), plain(each.source), plain(each.id, "bold"), plain(each.type),
            plain(each.lane or each.key or ""), plain(_reason(each)), plain(each.error_type), str(each.attempts),
            age(each.dead_seconds),
        )  # fmt: skip
    return table
