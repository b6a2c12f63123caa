"""The dashboard about KV blocks: the pool of each engine, and the store of each host."""

from __future__ import annotations

from scripts.grafana.layout import Dashboard, Panel
from scripts.grafana.queries import ENGINE, RATE, E, S, rate

KV = Dashboard(
    uid="headrace-kv",
    title="Headrace / KV tiers",
    text="The block pool (L1), and the store of each host (L3): how full, how often a prefix is there, how the disks are.",
    variables=ENGINE,
    rows={
        "Pool": [
            Panel(
                title="Used",
                queries={
                    f"1 - llm_engine_free_blocks{{{E}}} / llm_engine_total_blocks{{{E}}}": "{{engine}}"
                },
                unit="percentunit",
                most=1.0,
            ),
            Panel(title="Free blocks", queries={f"llm_engine_free_blocks{{{E}}}": "{{engine}}"}),
            Panel(
                title="Bytes used",
                queries={
                    f"(llm_engine_total_blocks{{{E}}} - llm_engine_free_blocks{{{E}}}) "
                    f"* llm_engine_block_bytes{{{E}}}": "{{engine}}"
                },
                unit="bytes",
            ),
        ],
        "Fragmentation": [
            Panel(
                title="Fragmentation",
                queries={f"llm_engine_fragmentation_ratio{{{E}}}": "{{engine}}"},
                unit="percentunit",
                text="1 - largest run of adjacent free blocks / free blocks. Costs transfers, not attention.",
                most=1.0,
            ),
            Panel(title="Free runs", queries={f"llm_engine_free_runs{{{E}}}": "{{engine}}"}),
            Panel(
                title="Largest free run",
                queries={f"llm_engine_largest_free_run{{{E}}}": "{{engine}}"},
            ),
        ],
        "Hits": [
            Panel(
                title="Prompt tokens that were there",
                queries={
                    f"{rate(f'headrace_cached_tokens_total{{{S}}}', 'tier')} "
                    f'/ on () group_left () {rate(f"""headrace_request_tokens_total{{{S},direction="in"}}""")}': "{{tier}}"
                },
                unit="percentunit",
                most=1.0,
            ),
            Panel(
                title="Prompt tokens computed",
                queries={
                    rate(f"headrace_prefill_tokens_total{{{S}}}"): "first time",
                    rate(f"headrace_recomputed_tokens_total{{{S}}}"): "again, after preemptions",
                },
                is_stacked=True,
            ),
            Panel(
                title="Time to load and to save",
                queries={
                    f'sum by (stage) (rate(headrace_stage_seconds_total{{{S},stage=~"kv_load|kv_sync"}}{RATE}))': "{{stage}}"
                },
                unit="s",
            ),
        ],
        "Store": [
            Panel(
                title="Values found",
                queries={
                    f'{rate("""headrace_kv_job_values_total{kind="load"}""")} / '
                    f'({rate("""headrace_kv_job_values_total{kind="load"}""")} + '
                    f'{rate("""headrace_kv_job_missing_total{kind="load"}""")})': "of those asked for"
                },
                unit="percentunit",
                text="Engines ask for what they were told of: a miss is a value that went meanwhile, or whose disk did.",
                most=1.0,
            ),
            Panel(
                title="Bytes",
                queries={rate("headrace_kv_job_bytes_total", "kind"): "{{kind}}"},
                unit="Bps",
            ),
            Panel(
                title="Time of a job, p95",
                queries={
                    f"histogram_quantile(0.95, sum by (le, kind) (rate(headrace_kv_job_seconds_bucket{RATE})))": "{{kind}}",
                    f"histogram_quantile(0.95, sum by (le, kind) (rate(headrace_kv_job_wait_seconds_bucket{RATE})))": "its wait, {{kind}}",
                },
                unit="s",
            ),
            Panel(
                title="Room",
                queries={
                    "headrace_kv_used_bytes": "used, {{instance}}",
                    "headrace_kv_budget_bytes": "budget, {{instance}}",
                },
                unit="bytes",
            ),
            Panel(
                title="Evicted, broken, refused",
                queries={
                    rate("headrace_kv_evicted_total"): "evicted",
                    rate("headrace_kv_corrupt_total"): "broken",
                    rate("headrace_kv_job_refused_total", "kind"): "refused, {{kind}}",
                },
            ),
            Panel(
                title="Waiting",
                queries={"sum by (kind) (headrace_kv_queue_bytes)": "{{kind}}"},
                unit="bytes",
                is_stacked=True,
            ),
        ],
        "Disks": [
            Panel(
                title="Mirrors in service",
                queries={"headrace_kv_mirror_serves": "{{instance}} {{mirror}}"},
                most=1.0,
            ),
            Panel(
                title="Trouble",
                queries={
                    "sum by (instance, mirror, trouble) (headrace_kv_mirror_trouble)": "{{instance}} {{mirror}}, {{trouble}}",
                    "sum by (instance, mirror) (increase(headrace_kv_mirror_drops_total[5m]))": "{{instance}} {{mirror}}, drops in 5 min",
                },
            ),
            Panel(
                title="Files and what is left",
                queries={
                    "headrace_kv_mirror_file_bytes": "files, {{instance}} {{mirror}}",
                    "headrace_kv_mirror_free_bytes": "free, {{instance}} {{mirror}}",
                },
                unit="bytes",
            ),
            Panel(
                title="Read and written",
                queries={
                    rate("headrace_kv_mirror_read_bytes_total", "mirror"): "read, {{mirror}}",
                    rate("headrace_kv_mirror_written_bytes_total", "mirror"): "written, {{mirror}}",
                },
                unit="Bps",
            ),
            Panel(
                title="Rebuilt and read elsewhere",
                queries={
                    rate("headrace_kv_rebuilt_total"): "values rebuilt",
                    rate("headrace_kv_rerouted_total"): "values read elsewhere: a disk dropped",
                },
            ),
        ],
    },
)
