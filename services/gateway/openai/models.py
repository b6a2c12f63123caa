"""`GET /v1/models` and `/v1/models/{id}`: bodies, and the refusal of a model that there is not."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from services.gateway.call import ApiError
from services.gateway.openai.refusal import echo
from services.gateway.openai.responses import Model, ModelList

OWNER = "headrace"
_encode = msgspec.json.Encoder().encode


def model(name: str, *, created: int, max_model_len: int | None = None) -> Model:
    """Return the object that describes a model; `max_model_len` is its context in tokens, where known."""
    return Model(
        id=name,
        created=created,
        owned_by=OWNER,
        max_model_len=UNSET if max_model_len is None else max_model_len,
    )


def model_body(described: Model) -> bytes:
    """Return the body of `/v1/models/{id}`."""
    return _encode(described)


def model_list_body(models: Iterable[Model]) -> bytes:
    """Return the body of `/v1/models`, sorted by name."""
    return _encode(ModelList(data=sorted(models, key=lambda entry: entry.id)))


def model_not_found(name: str) -> ApiError:
    """Return the 404 for a model that nobody serves."""
    return ApiError(
        404,
        f"The model `{echo(name)}` does not exist; GET /v1/models lists those that do.",
        kind="invalid_request_error",
        code="model_not_found",
        param="model",
    )
