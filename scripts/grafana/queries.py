"""PromQL that panels have in common."""

from __future__ import annotations

S = 'service=~"$service"'
"""The services that the viewer chose."""
E = f'{S},engine=~"$engine"'
RATE = "[$__rate_interval]"

WHOLE, FIRST, EACH = (
    f"gen_ai_server_{name}_seconds"
    for name in ("request_duration", "time_to_first_token", "time_per_output_token")
)
ENDED = f"headrace_requests_total{{{S}}}"
JUDGED = f'headrace_requests_total{{{S},evidence!="none"}}'
BAD = f'headrace_requests_total{{{S},evidence="bad"}}'
SERVICE = {"service": "headrace_requests_total"}
ENGINE = {"service": "llm_engine_steps_total", "engine": "llm_engine_steps_total"}


def ratio(part: str, whole: str, by: str = "") -> str:
    """Return the ratio of the rates of two counters, both summed by labels."""
    group = f" by ({by})" if by else ""
    return f"sum{group} (rate({part}{RATE})) / sum{group} (rate({whole}{RATE}))"


def rate(counter: str, by: str = "") -> str:
    """Return the rate of a counter, summed by labels."""
    return f"sum{f' by ({by})' if by else ''} (rate({counter}{RATE}))"


def quantile(share: float, histogram: str, where: str = S, by: str = "") -> str:
    """Return a quantile of a histogram."""
    labels = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{{{where}}}{RATE})))"


def quantiles(histogram: str, where: str = S, by: str = "") -> dict[str, str]:
    """Return the three quantiles that everybody asks for."""
    suffix = "".join(f" {{{{{label}}}}}" for label in by.split(", ") if label)
    return {
        quantile(share, histogram, where, by): f"p{share * 100:g}{suffix}"
        for share in (0.5, 0.95, 0.99)
    }
