"""The JSON Schema of `LLMService` documents, for editors: made from the tables that the reader reads by. Pure."""

from __future__ import annotations

import re

from shared.spec import model
from shared.spec.fields import Field, Table
from shared.spec.kinds import Json
from shared.spec.tables import METADATA, SPEC_FIELDS


def schema() -> Json:
    """Return the schema (draft 2020-12). It knows every key in both spellings; what keys say together only the reader knows."""
    spec = _object(SPEC_FIELDS, required=())
    top: Json = {
        "apiVersion": {"const": model.API_VERSION},
        "kind": {"const": model.KIND},
        "metadata": _table(METADATA),
        "spec": spec,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": model.KIND,
        "type": "object",
        "properties": top,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
    }


def snake(key: str) -> str:
    """Return a camelCase key in snake_case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()


def _table(table: Table) -> Json:
    defaults = table.defaults()
    required = tuple(field.key for field in table.fields if field.attr not in defaults)
    found = _object(table.fields, required=required)
    if not table.shorthand:
        return found
    short = next(field for field in table.fields if field.key == table.shorthand)
    assert short.kind is not None
    return {"anyOf": [found, short.kind.schema()]}


def _object(fields: tuple[Field, ...], *, required: tuple[str, ...]) -> Json:
    properties: Json = {}
    for field in fields:
        for key in dict.fromkeys((field.key, snake(field.key))):
            properties[key] = _field(field)
    found: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        either = [{"anyOf": [{"required": [key]}, {"required": [snake(key)]}]} for key in required]
        found["allOf"] = either
    return found


def _field(field: Field) -> Json:
    if field.table is None:
        assert field.kind is not None
        return {"description": f"{field.about}; {field.kind.hint}", **field.kind.schema()}
    one = _table(field.table)
    if field.many:
        return {"description": field.about, "anyOf": [{"type": "array", "items": one}, one]}
    return {"description": field.about, **one}
