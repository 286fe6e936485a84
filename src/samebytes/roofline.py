"""What memory bandwidth allows: bytes that a decoded token reads, the bound that follows, and the share of it reached.

A decode step reads every weight of the layers and of the output matrix once, whatever the number of rows, and the
keys and values of each row's own context:

    step bytes = weight bytes + rows x context x KV bytes per token
    bound      = rows x bandwidth / step bytes                (tokens a second)
    reached    = measured tokens a second / bound

The input embedding is a table of which a step reads one row per token; it counts only where it is the output matrix
too. Activations, norms' outputs and sampling are left out: they are thousands of times smaller. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder with grouped-query attention and a gated feed-forward block.

    Attributes
    ----------
    hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary : int
        As in the model's ``config.json``.
    tied : bool
        Whether the output matrix is the embedding.
    head_norms : bool
        Whether queries and keys have a norm of their own (Qwen3).
    bits : int or None
        Bits of a packed weight of the layers' matrices; None: they are 16-bit like everything else.
    group : int
        Weights that share a 16-bit scale and a zero point of ``bits`` bits, where they are packed.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    head_norms: bool = False
    bits: int | None = None
    group: int = 128

    @property
    def matrix_params(self) -> int:
        """Parameters of all layers' matrices (query, key, value, output; gate, up, down)."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def norm_params(self) -> int:
        """Parameters of all norms."""
        return self.layers * (2 * self.hidden + (2 * self.head_dim if self.head_norms else 0)) + self.hidden

    @property
    def embedding_params(self) -> int:
        """Parameters of the embedding, and as many again of an output matrix of its own."""
        return self.vocabulary * self.hidden

    @property
    def n_params(self) -> int:
        """All parameters; tied ones count once."""
        return self.matrix_params + self.norm_params + self.embedding_params * (1 if self.tied else 2)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the layers' matrices with their scales and zero points."""
        if self.bits is None:
            return self.matrix_params * 2
        groups = self.matrix_params // self.group
        return (self.matrix_params * self.bits + groups * (16 + self.bits)) // 8

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        embeddings = self.embedding_params * (1 if self.tied else 2)
        return self.matrix_bytes + 2 * (self.norm_params + embeddings)

    @property
    def read_bytes(self) -> int:
        """Bytes of the weights that one step reads: all but an embedding that is not the output matrix."""
        return self.weight_bytes - (0 if self.tied else 2 * self.embedding_params)

    def kv_bytes(self, element: int = 2) -> int:
        """Bytes of the keys and values of one token; ``element``: bytes of one number (2, or 1 for FP8)."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "smollm2-135m-instruct": Shape(576, 30, 9, 3, 64, 1536, 49152, tied=True),
        "qwen3-32b-awq-shape": Shape(5120, 64, 64, 8, 128, 25600, 151936, tied=False, head_norms=True, bits=4),
    }
)
"""Shapes of the models that this project measures, by the id in their records."""


@dataclass(frozen=True)
class Card:
    """A memory's bandwidth as its vendor gives it.

    Attributes
    ----------
    bytes_per_s : float
        The vendor's figure: the bus at full rate, which no kernel quite reaches.
    source : str
        Where it stands.
    """

    name: str
    bytes_per_s: float
    source: str


CARDS: Sequence[Card] = (
    Card(
        "GeForce RTX 5090",
        1.792e12,
        "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
    ),
    Card("H200", 4.8e12, "https://www.nvidia.com/en-us/data-center/h200/"),
)
"""Cards by a part of the name under which the driver lists them."""


def card(name: str | None) -> Card | None:
    """Return the card that a driver's name or an article's words mean, None for one that is not in `CARDS`.

    >>> card("NVIDIA H200").name
    'H200'
    """
    words = (name or "").lower()
    return next((found for found in CARDS if found.name.lower().removeprefix("geforce ") in words), None)


@dataclass(frozen=True)
class Bound:
    """What bandwidth allows a decode step, and what was measured.

    Attributes
    ----------
    weight_bytes : float
        Weights that a step reads.
    kv_bytes : float
        Keys and values that a step reads, over all rows.
    bytes_per_s : float
        Memory bandwidth.
    tok_s : float
        Measured tokens a second over all rows.
    rows : int
        Sequences in a step.
    """

    weight_bytes: float
    kv_bytes: float
    bytes_per_s: float
    tok_s: float
    rows: int = 1

    @property
    def step_s(self) -> float:
        """Seconds that reading alone takes."""
        return (self.weight_bytes + self.kv_bytes) / self.bytes_per_s

    @property
    def bound_tok_s(self) -> float:
        """Tokens a second that reading alone would allow."""
        return self.rows / self.step_s

    @property
    def reached(self) -> float:
        """Share of the bound that was reached."""
        return self.tok_s / self.bound_tok_s

    @property
    def measured_step_s(self) -> float:
        """Seconds of a step as measured."""
        return self.rows / self.tok_s


def bound(shape: Shape, bytes_per_s: float, tok_s: float, *, context: float, element: int = 2, rows: int = 1) -> Bound:
    """Return the bound of a shape's decode step at a mean context of ``context`` tokens a row."""
    return Bound(shape.read_bytes, rows * context * shape.kv_bytes(element), bytes_per_s, tok_s, rows)


# -- verification -----------------------------------------------------------------------------------------------------


def step_cost(step_s: Mapping[int, float], rows: int) -> float | None:
    """Return what a step of ``rows`` rows costs in steps of one row; None where either was not measured."""
    one, many = step_s.get(1), step_s.get(rows)
    return None if one is None or many is None else many / one


def speed_up(tokens_per_step: float, cost: float) -> float:
    """Return the speed-up of speculation whose steps cost ``cost`` plain steps: tokens per step over cost."""
    return tokens_per_step / cost


def tokens_per_step(speed_up: float, cost: float) -> float:
    """Return the tokens per step that a speed-up needs where a step costs ``cost`` plain steps."""
    return speed_up * cost


# -- kernels ----------------------------------------------------------------------------------------------------------

KINDS: Sequence[tuple[str, re.Pattern[str]]] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("norms, rotary, activation", r"^triton_(?!.*(?:attn|attention|flash))"),  # fused, named after neighbours too
        ("copies", r"^mem(?:cpy|set)\b|^aten::(?:copy_|fill_|zero_|cat|clone|index_copy)"),
        ("KV cache write", r"reshape_and_cache|cache_update|cache_kernel"),
        ("attention", r"flash|fmha|attention|attn|varlen|splitkv"),
        ("packed matrices", r"machete|marlin|awq|gptq|wna16|w4a16|exllama"),
        ("matrices", r"gemm|gemv|nvjet|cublas|cutlass|xmma|splitk|onednn|mkldnn|aten::(?:mm|addmm|linear|matmul)"),
        ("sampling", r"argmax|softmax|top_?k|sampl|sort|gumbel|multinomial|penal|logit"),
        ("norms, rotary, activation", r"norm|rotary|rope|silu|gelu|act_and_mul|triton_|elementwise|aten::(?:mul|add)"),
    )
)
"""What a kernel's name says it does; the first pattern that fits counts, `OTHER` where none does."""

OTHER = "other"


def kind(kernel: str) -> str:
    """Return what a kernel does, by its name.

    >>> kind("void cutlass::device_kernel<machete::MacheteKernel<...>>")
    'packed matrices'
    """
    return next((name for name, pattern in KINDS if pattern.search(kernel)), OTHER)


def config_shape(config: Mapping[str, Any]) -> Shape:
    """Return the shape that a ``config.json`` of a Llama or a Qwen3 describes."""
    packed = config.get("quantization_config") or {}
    heads = config["num_attention_heads"]
    return Shape(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        tied=config.get("tie_word_embeddings", False),
        head_norms=config["model_type"] == "qwen3",
        bits=packed.get("bits"),
        group=packed.get("group_size", 128),
    )
