"""What bandwidth allows: sizes of the shapes, bounds worked out by hand, kernels by their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebytes import roofline, shape
from samebytes.roofline import SHAPES, Bound, Shape

SMALL = SHAPES["smollm2-135m-instruct"]
LARGE = SHAPES["qwen3-32b-awq-shape"]


def test_sizes_by_hand() -> None:
    tiny = Shape(hidden=4, layers=2, heads=2, kv_heads=1, head_dim=2, intermediate=8, vocabulary=10, tied=False)
    # a layer: q 4x4, k and v 4x2 each, o 4x4; gate, up and down 4x8 each
    assert tiny.matrix_params == 2 * (16 + 8 + 8 + 16 + 96)
    assert tiny.norm_params == 2 * 2 * 4 + 4
    assert tiny.n_params == 288 + 20 + 2 * 40
    assert tiny.weight_bytes == 2 * tiny.n_params
    assert tiny.read_bytes == tiny.weight_bytes - 80  # the embedding's table is not read whole
    assert tiny.kv_bytes() == 2 * 2 * 1 * 2 * 2
    assert tiny.kv_bytes(1) == 8


def test_packed_weights_carry_a_scale_and_a_zero_point_a_group() -> None:
    packed = Shape(128, 1, 1, 1, 128, 128, 10, tied=True, bits=4, group=128)
    assert packed.matrix_bytes == packed.matrix_params // 2 + packed.matrix_params // 128 * 20 // 8


def test_the_embedded_models_bytes_are_those_of_its_file() -> None:
    # what the committed records say of its weight file: a header of some thousand bytes and the weights
    found = json.loads((Path(__file__).parents[1] / "results/cpu-smollm2-135m/baseline.json").read_text())["model"]
    assert found["n_params"] == SMALL.n_params
    assert 0 < found["weight_bytes"] - SMALL.weight_bytes < 100_000
    assert SMALL.read_bytes == SMALL.weight_bytes  # tied: the embedding is the output matrix


def test_the_large_shape_is_the_published_one() -> None:
    assert LARGE.n_params == pytest.approx(32.8e9, rel=0.002)  # the model card's 32.8 billion
    assert LARGE.kv_bytes() * 33_760 == 8_849_981_440
    assert roofline.config_shape(shape.config()) == LARGE


def test_a_config_without_head_size_packing_and_ties() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "vocab_size": 5,
    }
    assert roofline.config_shape(config) == Shape(8, 1, 2, 1, 4, 16, 5, tied=False)


def test_the_articles_figures() -> None:
    card = roofline.card("one RTX 5090, 32 GB")
    assert card is not None
    bound = Bound(17e9, 0, card.bytes_per_s, 75.0)
    assert bound.bound_tok_s == pytest.approx(105.4, abs=0.05)
    assert bound.reached == pytest.approx(0.711, abs=0.001)


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 5090", "GeForce RTX 5090"),
        ("NVIDIA H100 PCIe", None),
        (None, None),
    ],
)
def test_cards_by_what_a_driver_calls_them(name: str | None, card: str | None) -> None:
    found = roofline.card(name)
    assert (found and found.name) == card


@given(st.floats(0, 1e5), st.integers(1, 64), st.floats(1e9, 1e13), st.floats(0.1, 1e5))
def test_longer_contexts_and_slower_memory_lower_the_bound(
    context: float, rows: int, bandwidth: float, rate: float
) -> None:
    bound = roofline.bound(LARGE, bandwidth, rate, context=context, rows=rows)
    longer = roofline.bound(LARGE, bandwidth, rate, context=context + 100, rows=rows)
    faster = roofline.bound(LARGE, bandwidth * 2, rate, context=context, rows=rows)
    fp8 = roofline.bound(LARGE, bandwidth, rate, context=context + 1, rows=rows, element=1)
    assert longer.bound_tok_s < bound.bound_tok_s
    assert faster.bound_tok_s == pytest.approx(2 * bound.bound_tok_s)
    assert fp8.bound_tok_s >= roofline.bound(LARGE, bandwidth, rate, context=context + 1, rows=rows).bound_tok_s
    assert bound.reached == pytest.approx(bound.step_s / bound.measured_step_s)


def test_rows_share_the_weights() -> None:
    one, six = (roofline.bound(LARGE, 4.8e12, 1.0, context=0, rows=rows) for rows in (1, 6))
    assert six.bound_tok_s == pytest.approx(6 * one.bound_tok_s)


def test_step_cost_and_speed_up_undo_each_other() -> None:
    assert roofline.step_cost({1: 0.01, 6: 0.012}, 6) == pytest.approx(1.2)
    assert roofline.step_cost({1: 0.01}, 6) is None
    assert roofline.step_cost({6: 0.01}, 6) is None
    assert roofline.speed_up(roofline.tokens_per_step(4.65, 1.1), 1.1) == pytest.approx(4.65)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void cutlass::device_kernel<machete::MacheteKernel<cutlass::bfloat16_t>>", "packed matrices"),
        ("void marlin::Marlin<(vllm::ScalarTypeId)1, 128>", "packed matrices"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>", "attention"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "matrices"),
        ("_C::onednn_mm", "matrices"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>", "KV cache write"),
        ("_C::cpu_attention_with_kv_cache", "attention"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "norms, rotary, activation"),
        ("triton_red_fused__to_copy_add_machete_mm_mean_mul_pow_rsqrt_2", "norms, rotary, activation"),
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int, machete::Mma<cute>>>",
            "packed matrices",
        ),
        ("Memset (Device)", "copies"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps>>", "sampling"),
        ("Memcpy DtoH (Device -> Pinned)", "copies"),
        ("something_else", "other"),
    ],
)
def test_a_kernels_kind(kernel: str, kind: str) -> None:
    assert roofline.kind(kernel) == kind
