"""From an `LLMService` to its document: canonical keys, units for people, defaults left out. Pure.

`from_document(to_document(spec)) == spec`.
"""

from __future__ import annotations

from typing import Any

import yaml

from shared.ids import ServiceName
from shared.spec import model
from shared.spec.fields import Field, Table
from shared.spec.tables import METADATA, SPEC_FIELDS


def to_document(spec: model.LLMService) -> dict[str, object]:
    """Return the document of a service, of plain values."""
    body: dict[str, object] = {}
    for field in SPEC_FIELDS:
        value = getattr(spec, field.attr)
        default = _DEFAULTS.get(field.attr)
        if value != default or field.attr == "model":
            body[field.key] = _value(field, value)
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": _table(METADATA, spec.metadata),
        "spec": body,
    }


def to_yaml(spec: model.LLMService) -> str:
    """Return the document as YAML."""
    return str(yaml.safe_dump(to_document(spec), sort_keys=False, allow_unicode=True, width=120))


def value_text(field: Field, value: object) -> str:
    """Return a value as it stands in a document."""
    written = _value(field, value)
    return str(written).lower() if isinstance(written, bool) else str(written)


def _table(table: Table, value: model.Part) -> dict[str, object]:
    defaults = table.defaults()
    found: dict[str, object] = {}
    for field in table.fields:
        item = getattr(value, field.attr)
        if field.attr not in defaults or item != defaults[field.attr]:
            found[field.key] = _value(field, item)
    return found


def _value(field: Field, value: Any) -> object:
    if field.table is None:
        assert field.kind is not None
        return field.kind.write(value)
    if field.many:
        return [_table(field.table, item) for item in value]
    return _table(field.table, value)


_DEFAULTS: dict[str, object] = {
    field.attr: getattr(
        model.LLMService(
            metadata=model.Metadata(name=ServiceName("x")), model=model.ModelRef(name="x")
        ),
        field.attr,
    )
    for field in SPEC_FIELDS
}
