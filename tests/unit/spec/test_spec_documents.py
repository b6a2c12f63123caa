"""Every spec survives being written and read; the examples are read; the schema takes what the reader takes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from services.engine.settings import PREFIX, EngineSettings
from shared import settings
from shared.errors import UserError
from shared.spec import model
from shared.spec.engine import engine_arguments, not_yet
from shared.spec.fields import Field, Table
from shared.spec.reading import from_document, plain_key
from shared.spec.revision import differences, revision
from shared.spec.schema import schema
from shared.spec.tables import METADATA, SPEC_FIELDS
from shared.spec.writing import to_document, to_yaml
from shared.spec.yaml_source import read_services
from tests.support.specs import service, specs

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.yaml"))
SCHEMA = jsonschema.Draft202012Validator(schema())
EVERYTHING = next(file for file in EXAMPLES if file.name == "finance-contracts.yaml")


@given(specs)
def test_a_written_spec_is_read_as_it_was(spec):
    document = to_document(spec)
    assert from_document(document) == spec
    assert read_services(to_yaml(spec), "file")[0] == spec
    assert not list(SCHEMA.iter_errors(document))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_is_read_and_fits_the_schema(file):
    found = read_services(file.read_text(), file.name)
    assert found
    for document in yaml.safe_load_all(file.read_text()):
        assert not list(SCHEMA.iter_errors(document))


def keys_of(fields: tuple[Field, ...]) -> set[str]:
    """All keys below some fields, by their attribute's name."""
    found: set[str] = set()
    for field in fields:
        found.add(field.attr)
        if field.table is not None:
            found |= {f"{field.attr}.{key}" for key in keys_of(field.table.fields)}
    return found


def attributes_of(cls: type[model.Part], fields: tuple[Field, ...]) -> None:
    """Fail where a part has an attribute that no key reaches, or a key without one."""
    assert {field.attr for field in fields} == set(cls.__struct_fields__) - {"metadata"}
    for field in fields:
        if field.table is not None:
            attributes_of(field.table.cls, field.table.fields)


def test_every_attribute_has_a_key():
    attributes_of(model.LLMService, SPEC_FIELDS)
    attributes_of(model.Metadata, METADATA.fields)


def written_keys(document: Any, table: Table | None, fields: tuple[Field, ...]) -> set[str]:
    """Which keys a document uses."""
    if isinstance(document, list):
        document = document[-1]
    if not isinstance(document, dict):
        return {table.shorthand} if table is not None else set()
    used: set[str] = set()
    for key, value in document.items():
        field = next(field for field in fields if plain_key(field.key) == plain_key(key))
        used.add(field.attr)
        if field.table is not None:
            used |= {
                f"{field.attr}.{below}"
                for below in written_keys(value, field.table, field.table.fields)
            }
    return used


def test_one_example_uses_every_key():
    body = yaml.safe_load(EVERYTHING.read_text())["spec"]
    unused = keys_of(SPEC_FIELDS) - written_keys(body, None, SPEC_FIELDS)
    # What only other backends or other kinds of spec can say.
    assert unused <= {
        "engine.url",
        "engine.quantization",
        "engine.speculative",
        "slo.availability.measure_window_s",
    } | {"slo.availability.target"}


@given(specs)
def test_engine_arguments_are_settings_of_the_engine(spec):
    spec_without = model.EngineSpec(
        backend=spec.engine.backend,
        url=spec.engine.url,
        max_model_len=spec.engine.max_model_len,
        quantization=spec.engine.quantization,
        args=spec.engine.args,
    )
    plain = msgspec.structs.replace(spec, engine=spec_without, zone=spec.zone and "z")
    arguments = engine_arguments(plain, model_path="/models/m", kv_store="/run/kv.sock")
    found = settings.load(EngineSettings, prefix=PREFIX, argv=list(arguments), env={})
    assert found.service == spec.name
    assert found.backend == spec.engine.backend
    if spec.engine.backend == "vllm":
        assert found.vllm.kv_cache_bytes == spec.kv.pool_bytes
        assert found.vllm.extra_args.items() >= spec.engine.args.items()


@given(specs, st.text("ab", max_size=3), st.integers(0, 9))
def test_a_revision_changes_with_what_a_replica_is_made_of_and_with_nothing_else(
    spec, label, least
):
    replace = msgspec.structs.replace
    same = replace(
        spec,
        metadata=replace(spec.metadata, labels={"x": label}),
        scaling=replace(spec.scaling, min_replicas=least, max_replicas=least),
        kv=replace(spec.kv, share_across="service"),
    )
    assert revision(same) == revision(spec)
    other = replace(spec, model=replace(spec.model, name=spec.model.name + "-2"))
    assert revision(other) != revision(spec)


def test_differences_are_told_a_line_each():
    old = service(scaling=model.ScalingPolicy(min_replicas=1, max_replicas=2))
    new = service(scaling=model.ScalingPolicy(min_replicas=1, max_replicas=4), zone="a")
    assert differences(old, new) == [
        "spec.scalingPolicy.maxReplicas: 2 → 4",
        'spec.zone: + "a"',
    ]
    assert differences(new, new) == []


def test_what_nobody_acts_on_yet_is_named():
    spec = read_services(EVERYTHING.read_text(), "f")[0]
    assert {part.split(" ")[0].split(".")[0].rstrip(",") for part in not_yet(spec)} == {
        *("slo", "rollout", "defragPolicy", "security", "scalingPolicy"),
    }
    assert not_yet(service()) == ()


def mutated(document: Any, draw: st.DrawFn) -> Any:
    """Return a document with one value somewhere replaced."""
    document = copy.deepcopy(document)
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return document
        key = draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or draw(st.booleans()):
            place[key] = draw(
                st.none()
                | st.booleans()
                | st.integers()
                | st.floats()
                | st.text(max_size=5)
                | st.lists(st.integers(), max_size=2)
                | st.dictionaries(st.text(max_size=3), st.none())
            )
            return document
        place = place[key]


@given(st.data())
def test_a_changed_document_is_refused_or_read_and_never_anything_else(data):
    document = data.draw(st.composite(lambda draw: mutated(WHOLE, draw))())
    try:
        spec = from_document(document)
    except UserError:
        return
    assert from_document(to_document(spec)) == spec
    assert not list(SCHEMA.iter_errors(to_document(spec)))


WHOLE = yaml.safe_load(EVERYTHING.read_text())


@given(st.data())
def test_what_the_schema_refuses_the_reader_refuses(data):
    """An editor must not complain of what `apply` takes."""
    document = data.draw(st.composite(lambda draw: mutated(WHOLE, draw))())
    try:
        from_document(document)
    except UserError:
        return
    assert not list(SCHEMA.iter_errors(document))
