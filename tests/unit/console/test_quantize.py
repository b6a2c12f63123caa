"""Whether a model can be quantized here is known at once, and the message says what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.console.modelcheck.quantize import Found, check_found, check_shape
from shared.errors import UserError

SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "head_dim": 64,
}
PACKAGES: dict[str, str | None] = {"llmcompressor": "0.12.0.2", "torch": "2.13.0"}


def test_groups_that_fit_pass():
    check_shape(SMOLLM2, 64)
    check_shape({"text_config": {"hidden_size": 4096}}, 128)
    check_shape({}, 128)


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        (SMOLLM2, "--group-size 64"),
        ({"text_config": {"hidden_size": 2080}}, "--group-size 32"),
        ({"hidden_size": 1001}, "no group size fits this model"),
    ],
)
def test_groups_that_do_not_fit_are_refused_with_the_size_that_does(config, hint):
    with pytest.raises(UserError) as caught:
        check_shape(config, 128)

    assert hint == caught.value.hint


def test_a_model_that_is_quantized_is_not_quantized_again():
    with pytest.raises(UserError, match="already"):
        check_shape({"quantization_config": {}}, 64)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            Found(packages=PACKAGES | {"llmcompressor": None, "torch": None}),
            "no llmcompressor, torch",
        ),
        (Found(packages=PACKAGES | {"llmcompressor": "0.14.0.1"}), "needs an accelerator"),
    ],
)
def test_a_python_that_cannot_do_it_is_told_before_it_is_tried(found, says):
    with pytest.raises(UserError, match=says):
        check_found(found, Path("python"))


def test_a_python_that_can_passes():
    check_found(Found(packages=PACKAGES), Path("python"))
    check_found(
        Found(packages=PACKAGES | {"llmcompressor": "0.14.0"}, accelerator=True), Path("python")
    )
