"""Which model an OpenAI-compatible server has, from its answer to `GET /models`."""

from __future__ import annotations

import msgspec

from services.engine.ports import EngineFailedError
from services.engine.settings import OpenAiSettings


class _Meta(msgspec.Struct):
    n_ctx: int | None = None
    n_ctx_train: int | None = None


class _Card(msgspec.Struct):
    """`max_model_len` is told by vLLM and SGLang, `meta` by llama.cpp."""

    id: str
    owned_by: str = ""
    max_model_len: int | None = None
    meta: _Meta | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class ServerModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model that requests name."""

    name: str
    owner: str
    max_model_len: int


def find_model(body: bytes, settings: OpenAiSettings) -> ServerModel:
    """Return the wanted model, else the first. Raises `EngineFailedError`."""
    try:
        cards = msgspec.json.decode(body, type=_Cards).data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineFailedError(
            f"{settings.url}/models does not list models ({error}): is openai.url right?"
        ) from error
    known = {card.id: card for card in cards}
    card = known.get(settings.model or next(iter(known), ""))
    if card is None:
        raise EngineFailedError(
            f"{settings.url} has no model {settings.model!r}; it has {sorted(known)}:"
            " set openai.model"
        )
    meta = card.meta or _Meta()
    max_model_len = settings.max_model_len or card.max_model_len or meta.n_ctx or meta.n_ctx_train
    if not max_model_len:
        raise EngineFailedError(
            f"{settings.url} does not tell the context length of {card.id!r}:"
            " set openai.max_model_len"
        )
    return ServerModel(name=card.id, owner=card.owned_by, max_model_len=max_model_len)
