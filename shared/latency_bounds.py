"""Bounds of the latency histograms, in seconds: those who count use them, and those who ask about an objective must find one of them."""

from __future__ import annotations

STAGE_S = tuple(2.0**power for power in range(-13, 9))
"""0.12 ms to 256 s. Powers of two are the bounds of native histograms too, so that these can be turned into such without loss."""
WHOLE_S = tuple(
    sorted(
        {0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
        | {0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0}
    )
)
"""What OTel's conventions advise, and the round numbers that objectives are stated in. The same below."""
FIRST_S = tuple(
    sorted(
        {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0}
        | {0.2, 0.3, 2.0, 20.0, 30.0, 60.0, 120.0}
    )
)
EACH_S = tuple(
    sorted(
        {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5}
        | {0.001, 0.002, 0.005, 0.02, 0.03}
    )
)
GAP_S = STAGE_S[3:]
"""1 ms to 256 s."""


def spelled(bound: float) -> str:
    """Return a bound as it stands in the label `le`."""
    return str(bound)
