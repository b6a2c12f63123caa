"""Dashboards about what serves: engines and the processes."""

from __future__ import annotations

from scripts.grafana.layout import Dashboard, Panel
from scripts.grafana.queries import (
    ENGINE,
    RATE,
    E,
    quantiles,
    rate,
    ratio,
)

ENGINES = Dashboard(
    uid="headrace-engine",
    title="Headrace / Engines",
    text="Steps of the engines: what they do, how long they take, whether they go on.",
    variables=ENGINE,
    rows={
        "Progress": [
            Panel(
                title="Age of the step under way",
                queries={
                    f"llm_engine_step_age_seconds{{{E}}}": "{{engine}}",
                    f"llm_engine_step_bound_seconds{{{E}}} > 0": "bound, {{engine}}",
                },
                unit="s",
                text="A hung engine answers health checks; this grows.",
            ),
            Panel(title="Choices running", queries={f"llm_engine_running{{{E}}}": "{{engine}}"}),
            Panel(title="Choices waiting", queries={f"llm_engine_waiting{{{E}}}": "{{engine}}"}),
        ],
        "Steps": [
            Panel(
                title="Tokens generated",
                queries={rate(f"llm_engine_tokens_total{{{E}}}", "engine"): "{{engine}}"},
            ),
            Panel(
                title="Busy",
                queries={
                    rate(f"llm_engine_step_duration_seconds_sum{{{E}}}", "engine"): "{{engine}}"
                },
                unit="percentunit",
                text="Share of the time in which a step ran.",
            ),
            Panel(
                title="Time of a step",
                queries=quantiles("llm_engine_step_duration_seconds", E, "engine"),
                unit="s",
            ),
            Panel(
                title="Largest batch",
                queries={f"headrace_engine_batch_size{{{E}}}": "{{engine}}"},
            ),
            Panel(
                title="Time lost to prompts",
                queries={
                    ratio(
                        f"headrace_engine_wait_seconds_total{{{E}}}",
                        f"headrace_engine_busy_seconds_total{{{E}}}",
                        "engine",
                    ): "{{engine}}"
                },
                unit="percentunit",
                text="Part of the step time beyond decode-only steps while somebody was decoding.",
            ),
            Panel(
                title="Computed tokens",
                queries={
                    rate(f"llm_engine_prefill_tokens_total{{{E}}}"): "prompt",
                    rate(f"llm_engine_tokens_total{{{E}}}"): "generated",
                    rate(f"llm_engine_recomputed_tokens_total{{{E}}}"): "again",
                },
                is_stacked=True,
            ),
        ],
        "Trouble": [
            Panel(
                title="Preemptions",
                queries={rate(f"llm_engine_preemptions_total{{{E}}}", "engine"): "{{engine}}"},
            ),
            Panel(
                title="Kernels",
                queries={
                    f"llm_engine_step_mode{{{E}}}": "{{engine}}: {{mode}}",
                    rate(f"llm_engine_mode_changes_total{{{E}}}", "engine"): "changes, {{engine}}",
                },
                text="Attention backend, graph or eager; a fallback shows as a change.",
            ),
            Panel(
                title="Streams ended",
                queries={rate(f"llm_engine_streams_ended_total{{{E}}}", "end"): "{{end}}"},
            ),
            Panel(
                title="Refused submits",
                queries={rate(f"llm_engine_refused_total{{{E}}}", "reason"): "{{reason}}"},
            ),
            Panel(
                title="Deltas asked for again",
                queries={
                    rate(f"llm_engine_resends_total{{{E}}}"): "asked",
                    rate(f"llm_engine_resends_gone_total{{{E}}}"): "too late",
                },
            ),
            Panel(
                title="Speculation that held",
                queries={
                    ratio(
                        f"llm_engine_accepted_tokens_total{{{E}}}",
                        f"llm_engine_drafted_tokens_total{{{E}}}",
                        "engine",
                    ): "{{engine}}"
                },
                unit="percentunit",
                most=1.0,
            ),
        ],
    },
)

FLEET = Dashboard(
    uid="headrace-fleet",
    title="Headrace / Fleet",
    text="The processes: who is there, on which bus, at what cost.",
    rows={
        "Who is there": [
            Panel(
                title="Answer scrapes",
                queries={'up{job=~"headrace.*"}': "{{job}} {{instance}}"},
                most=1.0,
            ),
            Panel(
                title="Engines ready, gateways alive",
                queries={
                    "max(headrace_gateway_engines_ready)": "engines",
                    "max(headrace_gateway_gateways)": "gateways",
                },
            ),
            Panel(
                title="Versions",
                queries={
                    "sum by (service, version) (headrace_build_info)": "{{service}} {{version}}"
                },
            ),
        ],
        "Bus": [
            Panel(
                title="Connected",
                queries={"headrace_bus_connected": "{{job}} {{instance}}"},
                most=1.0,
            ),
            Panel(
                title="Lost or refused",
                queries={
                    rate("headrace_bus_losses_total", "job"): "losses, {{job}}",
                    rate("headrace_bus_unsent_total", "job"): "unsent, {{job}}",
                    rate("headrace_bus_undecodable_total", "job"): "undecodable, {{job}}",
                },
            ),
            Panel(
                title="Gaps in streams",
                queries={
                    rate("headrace_gateway_gaps_total"): "gaps",
                    rate("headrace_gateway_resends_total"): "asked again",
                    rate("headrace_gateway_retries_total", "way"): "another engine, {{way}}",
                },
            ),
        ],
        "Cost": [
            Panel(
                title="CPU",
                queries={
                    f'rate(process_cpu_seconds_total{{job=~"headrace.*"}}{RATE})': "{{job}} {{instance}}"
                },
                unit="percentunit",
                text="Of a core. An engine's page tells of its front process only.",
            ),
            Panel(
                title="Memory",
                queries={
                    'process_resident_memory_bytes{job=~"headrace.*"}': "{{job}} {{instance}}"
                },
                unit="bytes",
            ),
            Panel(
                title="Connections of clients",
                queries={"sum by (stage) (headrace_gateway_http_connections)": "{{stage}}"},
                is_stacked=True,
            ),
        ],
        "Tracing": [
            Panel(
                title="Traces",
                queries={
                    rate("headrace_tracer_traces_kept_total", "reason"): "kept, {{reason}}",
                    rate("headrace_tracer_traces_dropped_total"): "dropped",
                },
            ),
            Panel(title="Level", queries={"headrace_tracer_level": "{{instance}}"}, most=2.0),
            Panel(
                title="Ledgers seen",
                queries={
                    rate("headrace_tracer_ledgers_total"): "seen",
                    rate("headrace_tracer_missed_total"): "times that some may have been missed",
                },
            ),
        ],
    },
)
