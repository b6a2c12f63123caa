"""What is wrong with a model directory is said from its files, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import UserError
from shared.models.files import inspect_model, read_header

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}


def safetensors(*, tensors: int = 2, data_bytes: int = 8, dtype: str = "BF16") -> bytes:
    """A small real safetensors file."""
    header = {
        f"t{n}": {
            "dtype": dtype,
            "shape": [data_bytes // 2],
            "data_offsets": [n * data_bytes, (n + 1) * data_bytes],
        }
        for n in range(tensors)
    }
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(tensors * data_bytes)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory that looks loadable."""
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(safetensors())
    return directory


def test_facts_of_a_whole_directory(model):
    facts = inspect_model(model)

    assert "LlamaForCausalLM" == facts.architecture
    assert "bfloat16" == facts.dtype
    assert 8192 == facts.context_tokens
    assert (model / "model.safetensors").stat().st_size == facts.weight_bytes


def test_dtype_comes_from_the_weights_where_the_config_is_silent(model):
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(safetensors(dtype="F16"))

    facts = inspect_model(model)

    assert ("float16", None, "?") == (facts.dtype, facts.context_tokens, facts.architecture)


def test_context_length_is_found_in_the_text_part_of_a_config(model):
    (model / "config.json").write_text(
        json.dumps({"text_config": {"max_position_embeddings": 4096}})
    )

    assert 4096 == inspect_model(model).context_tokens


@pytest.mark.parametrize("cut_bytes", [1, 9, 16])
def test_a_cut_weight_file_is_refused_with_both_sizes(model, cut_bytes):
    whole = safetensors()
    (model / "model.safetensors").write_bytes(whole[:-cut_bytes])

    with pytest.raises(UserError, match=f"it has {len(whole) - cut_bytes} of {len(whole)} bytes"):
        inspect_model(model)


@given(st.data())
def test_no_cut_of_a_weight_file_passes(tmp_path_factory, data):
    whole = safetensors(tensors=3)
    file = tmp_path_factory.mktemp("cut") / "model.safetensors"
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])

    with pytest.raises(UserError, match="damaged or cut off"):
        read_header(file)


@given(junk=st.binary(max_size=200))
def test_junk_is_refused_and_never_crashes(tmp_path_factory, junk):
    file = tmp_path_factory.mktemp("junk") / "model.safetensors"
    file.write_bytes(junk)

    with pytest.raises(UserError):
        read_header(file)


@pytest.mark.parametrize(
    ("broken", "content", "told"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", b"{", "cannot be read"),
        ("config.json", b"\xff\xfe", "cannot be read"),
        ("config.json", b"[]", "not a JSON object"),
        ("tokenizer.json", None, "has no tokenizer"),
        ("model.safetensors", None, "has no weights"),
        ("model.safetensors", b"", "damaged or cut off"),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "git lfs pull",
        ),
        ("model.safetensors", (2).to_bytes(8, "little") + b"[]", "header is not a JSON object"),
        ("model.safetensors", (8).to_bytes(8, "little") + b'{"a":{}}', "has no 'data_offsets'"),
    ],
)
def test_each_defect_is_named(model, broken, content, told):
    (model / broken).unlink()
    if content is not None:
        (model / broken).write_bytes(content)

    with pytest.raises(UserError) as caught:
        inspect_model(model)

    assert told in f"{caught.value} {caught.value.hint}"
    assert caught.value.hint


def test_a_shard_that_the_index_names_must_be_there(model):
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))

    with pytest.raises(UserError, match="lacks 1 of 2 weight files: model-00002-of-00002"):
        inspect_model(model)


def test_gguf_alone_is_told_apart_from_no_weights(model):
    (model / "model.safetensors").rename(model / "model.gguf")

    with pytest.raises(UserError, match="GGUF only"):
        inspect_model(model)


def test_a_file_instead_of_a_directory_is_refused(model):
    with pytest.raises(UserError, match="is a file"):
        inspect_model(model / "model.safetensors")
