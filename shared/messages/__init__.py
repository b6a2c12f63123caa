"""The contract: every message that crosses the bus, and the table of where it travels.

One file an owner; `routes.py` is the table. Imports msgspec, enum and `shared.ids` only. No behaviour beyond cheap properties.
One file an owner; `routes.py` is the table.
Imports msgspec, enum and `shared.ids` only. No behaviour beyond cheap properties.
Durations are seconds, sizes are bytes or tokens, as each name says.
"""

from shared.messages.api import (
    API_CANCEL_SUBJECT,
    API_END_HEADER,
    API_KEY_HEADER,
    API_PRIORITY_HEADER,
    API_QUEUE,
    API_REQUEST_ID_HEADER,
    API_SUBJECT,
    API_TIMEOUT_HEADER,
    API_VERBS,
    DEAD_LETTER_SUBJECT,
)
from shared.messages.engine import (
    Delta,
    DeltaExtra,
    EngineHeartbeat,
    EngineState,
    Finish,
    Resent,
    StreamError,
    TokenBatch,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from shared.messages.gateway import (
    Accepted,
    Cancel,
    GatewayHeartbeat,
    Refused,
    RefuseReason,
    Resend,
    Submit,
)
from shared.messages.parts import (
    ChatPrompt,
    Message,
    Priority,
    Prompt,
    Sampling,
    TextPrompt,
    TokensPrompt,
    Value,
)
from shared.messages.routes import (
    ALL_MESSAGES,
    ENGINE_GONE_S,
    GATEWAY_GONE_S,
    HEARTBEAT_S,
    ROUTES,
    Delivery,
    Route,
)

__all__ = [
    "ALL_MESSAGES",
    "API_CANCEL_SUBJECT",
    "API_END_HEADER",
    "API_KEY_HEADER",
    "API_PRIORITY_HEADER",
    "API_QUEUE",
    "API_REQUEST_ID_HEADER",
    "API_SUBJECT",
    "API_TIMEOUT_HEADER",
    "API_VERBS",
    "DEAD_LETTER_SUBJECT",
    "ENGINE_GONE_S",
    "GATEWAY_GONE_S",
    "HEARTBEAT_S",
    "ROUTES",
    "Accepted",
    "Cancel",
    "ChatPrompt",
    "Delivery",
    "Delta",
    "DeltaExtra",
    "EngineHeartbeat",
    "EngineState",
    "Finish",
    "GatewayHeartbeat",
    "Message",
    "Priority",
    "Prompt",
    "RefuseReason",
    "Refused",
    "Resend",
    "Resent",
    "Route",
    "Sampling",
    "StreamError",
    "Submit",
    "TextPrompt",
    "TokenBatch",
    "TokenLogprob",
    "TokensPrompt",
    "ToolCallDelta",
    "TopLogprob",
    "Usage",
    "Value",
]
