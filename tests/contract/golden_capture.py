"""Samples of what the console and gateways say about captured prompts; see `golden_samples`."""

from __future__ import annotations

from shared.ids import RequestId, ServiceName
from shared.messages import (
    Captured,
    CapturedRequest,
    CaptureQuery,
    CaptureState,
    CaptureSwitch,
    ChatPrompt,
    Message,
    TextPrompt,
    TokensPrompt,
)
from tests.contract.golden_ledger import GATEWAY

SERVICE = ServiceName("smollm2")
CAPTURE_SAMPLES: dict[str, Message] = {
    "capture_switch": CaptureSwitch(gateway=GATEWAY, service=SERVICE, seconds=600.0),
    "capture_switch.tell": CaptureSwitch(gateway=GATEWAY, service=SERVICE),
    "capture_state": CaptureState(left_s=599.5, requests=12, bytes=34_567, passed_over=1),
    "capture_query": CaptureQuery(gateway=GATEWAY, request="cmpl-0123456789abcdef"),
    "captured": Captured(
        found=CapturedRequest(
            request=RequestId("cmpl-0123456789abcdef"),
            service=SERVICE,
            prompts=(
                ChatPrompt(messages_json=b'[{"role":"user","content":"hi"}]'),
                TextPrompt(text="Once upon"),
                TokensPrompt(token_ids=[1, 2, 3]),
            ),
        ),
        services=1,
    ),
    "captured.none": Captured(),
}
