"""The JSON edge: subjects and headers that any NATS client may use."""

from __future__ import annotations

API_SUBJECT = "hr.api.{service}.{verb}"
API_VERBS = ("chat", "completions", "models")
API_CANCEL_SUBJECT = "hr.api.{service}.cancel"
API_QUEUE = "gateway"
API_END_HEADER = "Hr-End"
API_TIMEOUT_HEADER = "Hr-Timeout"
API_REQUEST_ID_HEADER = "Hr-Request-Id"
API_PRIORITY_HEADER = "Hr-Priority"
API_TIMING_HEADER = "Hr-Timing"
API_KEY_HEADER = "Authorization"
DEAD_LETTER_SUBJECT = "hr.dead.{service}"
