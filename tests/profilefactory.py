"""Small synthetic profiles of a decode step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recordfactory import a_launch, a_record
from samebytes import profile
from samebytes.profile import Profile

KERNELS = (
    ("machete::MacheteKernel", 256.0, 0.0080),
    ("nvjet_tst_64x8", 1.0, 0.0004),
    ("flash::FlashAttnFwdSm90", 64.0, 0.0010),
    ("triton_red_fused_add_rsqrt_0", 128.0, 0.0006),
    ("argmax_kernel", 1.0, 0.0002),
    ("<unknown>", 3.0, 0.0001),
)
"""Name, calls and seconds of a step: 10.3 ms in all."""


def a_profile(
    config: str, *, steps: Mapping[int, float] | None = None, copy: Mapping[str, float] | None = None, **changes: Any
) -> Profile:
    """Return a profile on an H200 of a 12 ms step, of which 1.2 ms are idle and 0.5 ms are in further kernels."""
    found = a_record(config)
    values: dict[str, Any] = {
        "study": "toy",
        "config": found.config,
        "model": found.model.model_copy(update={"id": "qwen3-32b-awq-shape"}),
        "machine": found.machine.model_copy(update={"gpu": "NVIDIA H200"}),
        "versions": found.versions,
        "launch": a_launch("sb", linear_kernel="MacheteLinearKernel"),
        "rows": [{"rows": n, "step_s": [s, s]} for n, s in (steps or {1: 0.0110, 6: 0.0132}).items()],
        "trace": {
            "steps": 35,
            "step_s": 0.012,
            "device": "gpu",
            "busy": 0.9,
            "kernels": [{"name": name, "calls": calls, "seconds": s} for name, calls, s in KERNELS],
            "others_s": 0.0005,
        },
        "copy": {"device": "a device", "buffer_bytes": 2**31, **copy} if copy else None,
    }
    return Profile.model_validate(values | changes)


def keep(house: Path, found: Profile) -> None:
    """Write a profile beside its study's records."""
    path = profile.path_of(house / "results" / found.study, found.config.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found.model_dump(mode="json", by_alias=True)))
