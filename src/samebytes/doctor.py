"""What a run needs, what is here, and how to get what is missing."""

from __future__ import annotations

from dataclasses import dataclass

from samebytes import engine, machine, model, paths, server, settings, shape
from samebytes.errors import SamebytesError, UsageError
from samebytes.run import load_prompts


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ``ok``, and what was seen or how to mend it."""

    name: str
    ok: bool
    text: str


def examine(study: str, port: int | None = None) -> list[Finding]:
    """Return what is here for a study: engine, GPU, memory, port, model, prompts.

    Parameters
    ----------
    study : str
        Name of the study to examine for.
    port : int or None
        Port that the server shall take; None: any free one.
    """
    the_study = settings.study(study)
    findings: list[Finding] = []

    found: engine.Engine | None = None
    try:
        found = engine.resolve()
        text = f"vLLM {found.vllm}, torch {found.torch}, Python {found.python_version} ({found.source})"
        findings.append(Finding("engine", True, text))
    except SamebytesError as error:
        findings.append(Finding("engine", False, str(error)))

    here = machine.info()
    cpu_engine = found is not None and "cpu" in (found.torch or "")
    if here.gpu:
        text = f"{here.gpu}, driver {here.driver}" + (", not used by this CPU engine" if cpu_engine else "")
    else:
        text = "none seen through NVML"
    usable = here.gpu is not None and not cpu_engine
    if the_study.device == "gpu" and not usable:
        text += f"; study {study!r} needs one: run it on a GPU machine with environment.yml, or take study 'quick'"
    findings.append(Finding("GPU", the_study.device != "gpu" or usable, text))

    text = f"{here.cpu}, {here.cpu_cores} cores, {', '.join(here.cpu_isa) or 'no vector extensions named'}"
    findings.append(Finding("CPU", True, text))

    try:
        taken = port or server.free_port()
        server.check_port(taken)
        findings.append(Finding("port", True, f"{taken} is free"))
    except SamebytesError as error:
        findings.append(Finding("port", False, str(error)))

    try:
        sent = {prompt.id for plan in settings.plans(study) for part in load_prompts(plan)[:2] for prompt in part}
        findings.append(Finding("prompts", True, f"{len(sent)} and their checks can be read"))
    except SamebytesError as error:
        findings.append(Finding("prompts", False, str(error)))

    weights: int | None = None
    try:
        if the_study.model == model.EMBEDDED and not model.intact(model.embedded_folder()):
            raise UsageError("the embedded model is not built yet; a run does that, or 'make model' (93 MB, seconds)")
        resolved = model.resolve(the_study.model)
        weights = resolved.weight_bytes
        unknown = "random weights" if resolved.id == shape.NAME else "size not known before the download"
        size = unknown if weights is None else f"{weights / 2**20:,.0f} MiB of weights"
        findings.append(Finding("model", True, f"{resolved.id}, {size}"))
    except SamebytesError as error:
        findings.append(Finding("model", False, str(error)))

    try:
        kv_gib = 0.0 if usable else float(the_study.env.get("VLLM_CPU_KVCACHE_SPACE", "0"))
        machine.check_room(paths.results(), weights, kv_bytes=int(kv_gib * 2**30), needs_gpu=usable)
        findings.append(Finding("room", True, f"{(here.memory_bytes or 0) / 2**30:.1f} GiB of memory; disk suffices"))
    except SamebytesError as error:
        findings.append(Finding("room", False, str(error)))
    return findings
