"""From a request that has ended to its entry in the ledger. Reads calls and changes nothing; what is sent last is known later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from services.gateway.call import ApiError
from services.gateway.ledger.account import US, Account, usual
from services.gateway.ledger.stamps import NEVER, Stay, Stays
from services.gateway.openai.ending import chat_finish, completion_finish
from services.gateway.outlet import Caller, Kind
from services.gateway.running import Part, RunningCall
from shared.ids import EngineId
from shared.messages import (
    MAX_BLOCKERS,
    Attempt,
    ChoiceRecord,
    Finish,
    Ledger,
    Outcome,
    Priority,
    Spent,
)

MAX_CHOICES = 64
MAX_ATTEMPTS = 16
"""With these bounds an entry stays below 4 KB: some dozens of them always fit a message."""
STATUS_WHOLE = 200
STATUS_LEFT = 499
"""As nginx logs requests whose client closed the connection."""
_GOOD = (Finish.STOP, Finish.LENGTH, Finish.TOOL_CALLS)
_FINISHES: dict[Kind, dict[Finish, str]] = {
    "chat": {finish: chat_finish(finish) for finish in _GOOD},
    "completion": {finish: completion_finish(finish) for finish in _GOOD},
}
_NO_ATTEMPTS: list[Attempt] = []
_NOTHING = Spent(received_at=0.0, until=0.0, us=[])


def entry_of_call(
    running: RunningCall,
    outcome: Outcome,
    error: ApiError | None,
    *,
    ended_at: float,
    unix_offset_s: float,
) -> tuple[Ledger, int]:
    """Return the entry of a call that has ended, as yet without its wall time, and when its delivery began, in µs since the first byte."""
    call, caller, parts = running.call, running.caller, running.parts
    part = parts[0] if len(parts) == 1 else _critical(parts)
    stays, began, trace = part.stays, caller.received_at, caller.trace
    present, attempts = stays.present, _NO_ATTEMPTS
    found: tuple[list[int], int, bool] | None = None
    if len(parts) == 1 and not stays.lost:
        work, max_gap_s = _told(present), stays.max_gap_s
        if outcome is Outcome.FINISHED and present is not None:
            found = usual(began, running.offered_at, running.admitted_at, present)
    else:
        work, attempts, max_gap_s = _all_work(parts, part), _attempts(parts), _max_gap_s(parts)
    us, at_us, is_estimated = found or _account(running, stays, outcome, ended_at)
    engine, version, backend, zone = _engine(present)
    prompts, completions, cached = _tokens(parts, work)
    status, code = (STATUS_WHOLE, "") if outcome is Outcome.FINISHED else _status(error)
    # By place, in the order of its fields: by name it takes three times as long.
    # fmt: off
    entry = Ledger(
        caller.request, int((began + unix_offset_s) * US), 0, us,
        outcome, running.priority, caller.door, caller.kind, status, code,
        caller.tenant, caller.label,
        trace.trace_id, trace.span_id, trace.parent_id, trace.flags, trace.state,
        call.stream, call.timeout_s is not None,
        0 if running.first_at is None else int((running.first_at - began) * US),
        engine, version, backend, zone,
        attempts, _choices(parts, _FINISHES[caller.kind]),
        prompts, completions, cached,
        work.prefill_tokens, work.recomputed_tokens, work.drafted_tokens, work.accepted_tokens,
        work.preemptions, work.first_step, work.last_step, work.batch_size, work.kv_blocks,
        work.blocked_by[:MAX_BLOCKERS], work.mode, work.mode_changes,
        is_estimated, call.sampling.max_tokens or 0, int(max_gap_s * US), work.blocks_us,
        *_why(present),
        work.host_tokens, work.disk_tokens,
    )
    # fmt: on
    return entry, at_us


def entry_of_refusal(
    caller: Caller,
    outcome: Outcome,
    error: ApiError | None,
    *,
    ended_at: float,
    unix_offset_s: float,
) -> tuple[Ledger, int]:
    """Return, as `entry_of_call` does, the entry of a request that never became a call; `error` is none where the client left before."""
    account = Account(caller.received_at)
    account.at_gateway(NEVER, NEVER, ended_at)
    status, code = _status(error)
    trace = caller.trace
    entry = Ledger(
        request=caller.request,
        began_unix_us=int((caller.received_at + unix_offset_s) * US),
        wall_us=0,
        us=account.us,
        outcome=outcome,
        priority=Priority.DEFAULT,
        door=caller.door,
        kind=caller.kind,
        status=status,
        code=code,
        tenant=caller.tenant,
        label=caller.label,
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        trace_flags=trace.flags,
        trace_state=trace.state,
    )
    return entry, account.at_us


def failed_at_last(entry: Ledger, error: ApiError) -> Ledger:
    """Return the entry of a call whose answer was whole and could not be sent."""
    status, code = _status(error)
    return msgspec.structs.replace(entry, outcome=Outcome.FAILED, status=status, code=code)


def _account(
    running: RunningCall, stays: Stays, outcome: Outcome, ended_at: float
) -> tuple[list[int], int, bool]:
    """Return the stages, where the delivery begins, and whether some were seen from outside only."""
    account = Account(running.caller.received_at)
    account.at_gateway(running.offered_at, running.admitted_at, ended_at)
    if running.admitted_at >= 0:
        is_whole = outcome is Outcome.FINISHED
        account.at_engines(stays.lost, stays.present, ended_at=ended_at, is_whole=is_whole)
    return account.us, account.at_us, account.is_estimated


def _status(error: ApiError | None) -> tuple[int, str]:
    return (STATUS_LEFT, "") if error is None else (error.status, error.code or error.kind)


def _critical(parts: list[Part]) -> Part:
    """Return the part that the client waited for: one that is not finished, else the one that finished last."""
    return max(parts, key=lambda part: (part.usage is None, len(part.stays.lost), _last_at(part)))


def _last_at(part: Part) -> float:
    stay = part.stays.present
    return NEVER if stay is None else stay.last_at


def _told(stay: Stay | None) -> Spent:
    """Return the latest that the engine said of its part."""
    return _NOTHING if stay is None or stay.spent is None else stay.spent


def _all_work(parts: Sequence[Part], critical: Part) -> Spent:
    """Return the counts over all engines and prompts, and what describes one engine of the critical part."""
    all_told = [_told(stay) for part in parts for stay in part.stays.lost]
    all_told += [_told(part.stays.present) for part in parts if not _is_lost(part)]
    return msgspec.structs.replace(
        _told(critical.stays.present),
        prefill_tokens=sum(told.prefill_tokens for told in all_told),
        cached_tokens=sum(told.cached_tokens for told in all_told),
        host_tokens=sum(told.host_tokens for told in all_told),
        disk_tokens=sum(told.disk_tokens for told in all_told),
        recomputed_tokens=sum(told.recomputed_tokens for told in all_told),
        drafted_tokens=sum(told.drafted_tokens for told in all_told),
        accepted_tokens=sum(told.accepted_tokens for told in all_told),
        preemptions=sum(told.preemptions for told in all_told),
    )


def _tokens(parts: Sequence[Part], work: Spent) -> tuple[int, int, int]:
    """Return the tokens of prompts, of answers, and those that were cached: as the client was told, else as far as they are known."""
    if len(parts) == 1 and (usage := parts[0].usage) is not None:
        return usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    prompt_tokens = completion_tokens = cached_tokens = 0
    is_told = True
    for part in parts:
        usage = part.usage
        if usage is not None:
            prompt_tokens += usage.prompt_tokens
            completion_tokens += usage.completion_tokens
            cached_tokens += usage.cached_tokens
        else:
            is_told = False
            stay = part.stays.present
            prompt_tokens += 0 if stay is None else stay.prompt_tokens
            completion_tokens += sum([len(said.token_ids) for said in part.said])
    return prompt_tokens, completion_tokens, cached_tokens if is_told else work.cached_tokens


def _max_gap_s(parts: Sequence[Part]) -> float:
    return max(part.stays.max_gap_s for part in parts)


def _is_lost(part: Part) -> bool:
    """Return whether the last attempt is among those that were lost."""
    return bool(part.stays.lost) and part.stays.lost[-1] is part.stays.present


def _engine(stay: Stay | None) -> tuple[EngineId, str, str, str]:
    if stay is None:
        return EngineId(""), "", "", ""
    beat = stay.beat
    if beat is None:
        return stay.engine, "", "", ""
    return stay.engine, beat.version, beat.backend, beat.zone


def _why(stay: Stay | None) -> tuple[str, int]:
    """Return why the engine was chosen, and what it was expected to have of the prompt."""
    return ("", 0) if stay is None else (stay.route, stay.expected_cached_tokens)


def _attempts(parts: Sequence[Part]) -> list[Attempt]:
    """Return the engines that had a prompt and lost it; the way is that of the attempt which came after."""
    attempts: list[Attempt] = []
    for part in parts:
        lost, present = part.stays.lost, part.stays.present
        if lost:
            ways = [stay.way for stay in lost[1:]]
            ways.append("" if present is None or _is_lost(part) else present.way)
            attempts += [
                Attempt(
                    engine=stay.engine,
                    why=stay.why,
                    us=max(0, int((stay.left_at - stay.submitted_at) * US)),
                    way=way,
                )
                for stay, way in zip(lost, ways, strict=True)
            ]
    return attempts[:MAX_ATTEMPTS]


def _choices(parts: Sequence[Part], finishes: Mapping[Finish, str]) -> list[ChoiceRecord]:
    records: list[ChoiceRecord] = []
    for part in parts:
        index, said_by_choice = part.first_choice, part.said
        for said in said_by_choice:
            tokens = len(said.token_ids)
            if not tokens and part.usage is not None and len(said_by_choice) == 1:
                tokens = part.usage.completion_tokens  # a backend that shows no token ids
            finish = "" if said.finish is None else finishes.get(said.finish, "")
            records.append(ChoiceRecord(index, tokens, finish))
            index += 1
            if len(records) == MAX_CHOICES:
                return records
    return records
