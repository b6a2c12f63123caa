"""Runs of adjacent free blocks are counted as a look at the whole pool would, in pieces."""

from __future__ import annotations

import re
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from services.engine.pool_scan import CHUNK, FreeRuns, PoolScan


def pool(used: str) -> list[SimpleNamespace]:
    return [SimpleNamespace(ref_cnt=int(each)) for each in used]


def passed(used: str) -> FreeRuns | None:
    scan = PoolScan(pool(used))
    for _ in range(-(-len(used) // CHUNK)):
        scan.look()
    return scan.last


def test_runs_of_a_small_pool():
    assert FreeRuns(free=6, runs=3, largest=3) == passed("0011000201")


def test_a_run_goes_on_over_the_edge_of_a_chunk():
    used = "1" + "0" * (CHUNK + 5) + "1" * CHUNK + "00"

    assert FreeRuns(free=CHUNK + 7, runs=2, largest=CHUNK + 5) == passed(used)


def test_nothing_is_told_before_a_whole_pass_and_the_last_one_after():
    blocks = pool("0" * (CHUNK + 1))
    scan = PoolScan(blocks)

    scan.look()
    assert scan.last is None
    scan.look()
    assert FreeRuns(free=CHUNK + 1, runs=1, largest=CHUNK + 1) == scan.last
    blocks[CHUNK // 2].ref_cnt = 1
    scan.look()
    assert 1 == scan.last.runs
    scan.look()
    assert 2 == scan.last.runs


def test_a_full_pool_has_no_run():
    assert FreeRuns(free=0, runs=0, largest=0) == passed("1" * 20)


@given(st.text("012", min_size=1, max_size=40).map(lambda piece: piece * 60))
def test_it_counts_what_a_search_finds(used: str):
    runs = [len(run) for run in re.findall("0+", used)]

    assert FreeRuns(sum(runs), len(runs), max(runs, default=0)) == passed(used)
