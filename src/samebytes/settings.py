"""Server configs, studies and the parameters of a run: plain YAML files and names, validated before anything starts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from samebytes import paths, strictyaml, workloads
from samebytes.errors import UsageError, invalid, unknown

FlagValue = bool | int | float | str | dict[str, Any]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
FLAG = re.compile(r"[a-z0-9][a-z0-9-]*(\.[a-z0-9_-]+)*")
OURS = ("host", "port", "model", "served-model-name", "api-key")
"""Flags that a run sets itself: a config or study that sets them is refused."""


class Settings(BaseModel):
    """Base of everything read from YAML: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _check_flags(flags: dict[str, FlagValue]) -> dict[str, FlagValue]:
    for name, value in flags.items():
        if not FLAG.fullmatch(name):
            raise ValueError(f"flag {name!r} must be written as on vLLM's command line, without the leading dashes")
        if name in OURS:
            raise ValueError(f"flag {name!r} is set by the run itself; remove it")
        if value is False:
            raise ValueError(f"flag {name!r}: false says nothing on a command line; leave it out, or use no-{name}")
    return flags


def _check_workloads(chosen: list[str]) -> list[str]:
    twice = sorted({name for name in chosen if chosen.count(name) > 1})
    if chosen and not twice:
        return chosen
    valid = ", ".join(workloads.names(paths.workloads())) or "(none)"
    if not chosen:
        raise ValueError(f"names none; leave the key out, or name some. Valid: {valid}")
    raise ValueError(f"names {', '.join(map(repr, twice))} twice; name each once. Valid: {valid}")


class ServerConfig(Settings):
    """One server config: what differs from the study's base flags, and why it exists."""

    name: str
    why: str
    flags: dict[str, FlagValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)

    _flags = field_validator("flags")(_check_flags)


class Leg(Settings):
    """A concurrent leg: every prompt sent ``dup`` times, ``concurrency`` requests in flight.

    Of its workloads those that the study lists are sent as far as the run sends them one by one (``limit``); any other
    is sent whole, and only here.
    """

    concurrency: int = Field(ge=2)
    dup: int = Field(default=4, ge=1)
    workloads: list[str] = Field(default_factory=lambda: ["code_edit", "rag"])

    _workloads = field_validator("workloads")(_check_workloads)


class Run(Settings):
    """One run of a study. A config's second run is its repeat: another server start, another record."""

    config: str
    label: str
    concurrent: Leg | None = None


class Study(Settings):
    """A model, a machine's base flags, and the runs in their order."""

    name: str
    title: str
    model: str
    device: Literal["any", "cpu", "gpu"] = "any"
    note: str | None = None
    flags: dict[str, FlagValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    workloads: list[str] = Field(default_factory=list)
    limit: int | None = Field(default=None, ge=1)
    max_tokens: int = Field(ge=1)
    ready_timeout_s: float = Field(default=900.0, gt=0, strict=False)
    request_timeout_s: float = Field(default=600.0, gt=0, strict=False)
    max_foreign_load: float | None = Field(default=None, gt=0, strict=False)
    """CPU cores that other processes (or the hypervisor) may use during a pass before it is measured again."""
    runs: list[Run] = Field(min_length=1)

    _flags = field_validator("flags")(_check_flags)
    _workloads = field_validator("workloads")(_check_workloads)

    @model_validator(mode="before")
    @classmethod
    def _label_runs(cls, data: Any) -> Any:
        """Label runs that have no label: ``ngram``, then ``ngram-2`` for its repeat."""
        if not isinstance(data, dict) or not isinstance(data.get("runs"), list):
            return data
        seen: dict[str, int] = {}
        runs = []
        for run in data["runs"]:
            if isinstance(run, dict) and isinstance(run.get("config"), str):
                config = run["config"]
                seen[config] = seen.get(config, 0) + 1
                run = {"label": config if seen[config] == 1 else f"{config}-{seen[config]}", **run}
            runs.append(run)
        return {**data, "runs": runs}

    @model_validator(mode="after")
    def _labels_differ(self) -> Study:
        labels = [run.label for run in self.runs]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"two runs have the label {', '.join(twice)}; a label names one record")
        return self


_Model = TypeVar("_Model", bound=Settings)


def _read(kind: str, name: str, folder: Path, model: type[_Model]) -> _Model:
    """Read ``folder/name.yaml`` as ``model``; every error names the file, the key and the valid choices."""
    path = folder / f"{name}.yaml"
    if name not in names(folder):
        raise unknown(kind, name, names(folder))
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{path.name}: a {kind}'s name has letters, digits, '.', '_' and '-' and begins with a letter or a digit; "
            "rename the file"
        )
    try:
        data = strictyaml.load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: no UTF-8, or a date that is none
        raise UsageError(f"{path.name} is not valid YAML: {error}") from None
    except OSError as error:
        raise UsageError(f"{path.name} cannot be read: {error.strerror}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path.name} must be a mapping of keys to values")
    if "name" in data:
        raise UsageError(f"{path.name}: 'name' is the file's own name; remove the key")
    try:
        return model.model_validate({"name": name, **data})
    except ValidationError as error:
        own = [key for key in model.model_fields if key != "name"]
        valid = {"": own, "runs": Run.model_fields, "concurrent": Leg.model_fields}
        raise UsageError(f"{path.name}: {invalid(error, valid)}") from None


def names(folder: Path) -> list[str]:
    """Return the names of the YAML files in a folder."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def config(name: str) -> ServerConfig:
    """Read ``configs/NAME.yaml``.

    Raises
    ------
    UsageError
        For an unknown name, an unknown key or a wrong type; the valid choices are listed.
    """
    return _read("config", name, paths.configs(), ServerConfig)


def study(name: str) -> Study:
    """Read ``studies/NAME.yaml`` and check that every config it names exists.

    Raises
    ------
    UsageError
        For an unknown study, config, key or a wrong type; the valid choices are listed.
    """
    found = _read("study", name, paths.studies(), Study)
    for run in found.runs:
        config(run.config)
        if not NAME.fullmatch(run.label):
            raise UsageError(f"{name}.yaml: label {run.label!r} must be letters, digits, '.', '_' and '-'")
    return found


def arguments(flags: Mapping[str, FlagValue]) -> list[str]:
    """Return flags as command-line arguments.

    ``true`` stands for a bare flag; a mapping is passed as JSON with its keys in the file's order.
    """
    argv: list[str] = []
    for name, value in flags.items():
        argv.append(f"--{name}")
        if isinstance(value, dict):
            argv.append(json.dumps(value))
        elif value is not True:
            argv.append(str(value))
    return argv


class Plan(Settings):
    """Everything that one run needs, validated."""

    study: Study
    config: ServerConfig
    label: str
    model: str
    base_url: str | None
    workloads: list[str] | None
    limit: int | None
    max_tokens: int
    leg: Leg | None
    port: int | None
    results_dir: Path

    @property
    def record_path(self) -> Path:
        """Where the record lies: ``results/STUDY/LABEL.json``."""
        return self.results_dir / self.study.name / f"{self.label}.json"

    @property
    def flags(self) -> dict[str, FlagValue]:
        """The study's base flags with the config's over them."""
        return {**self.study.flags, **self.config.flags}

    @property
    def env(self) -> dict[str, str]:
        """The study's environment variables with the config's over them."""
        return {**self.study.env, **self.config.env}


PARAMETERS: dict[str, tuple[type, Any, str]] = {
    "config": (str, "baseline", "server config: a file in configs/"),
    "study": (str, "quick", "study: a file in studies/ (model, base flags, prompts)"),
    "model": (str, "", "another model: embedded name, local folder or hub id; empty: the study's"),
    "base_url": (str, "", "measure a running server instead, e.g. http://127.0.0.1:8000; empty: start one"),
    "label": (str, "", "name of the record; empty: the config's name"),
    "workloads": (str, "", "comma-separated workloads, e.g. code_edit,rag; empty: the study's"),
    "limit": (int, 0, "prompts per workload; 0: the study's"),
    "max_tokens": (int, 0, "longest answer in tokens; 0: the study's"),
    "concurrency": (int, 0, "requests in flight in a concurrent leg; 0: the study's, 1: no such leg"),
    "dup": (int, 0, "copies of each prompt in the concurrent leg; 0: the study's"),
    "port": (int, 0, "port of the server; 0: a free one"),
    "results_dir": (str, "", "folder for records; empty: results/ of the project"),
}
"""Parameter name to (type, default, help). The notebook's parameters cell is checked against it."""


def plan(parameters: Mapping[str, object]) -> Plan:
    """Validate the parameters of a run by name, type and value.

    Parameters
    ----------
    parameters : mapping
        Any of `PARAMETERS`; those left out take their defaults.

    Raises
    ------
    UsageError
        For an unknown name, a wrong type, or a config, study or workload that does not exist.
    """
    values = _typed(parameters, PARAMETERS)
    for name in ("limit", "max_tokens", "concurrency", "dup", "port"):
        if values[name] < 0:
            raise UsageError(f"{name} must not be negative, got {values[name]}")
    if values["port"] > 65535:
        raise UsageError(f"port must be at most 65535, got {values['port']}")

    the_study = study(values["study"])
    the_config = config(values["config"])
    label = values["label"] or the_config.name
    if not NAME.fullmatch(label):
        raise UsageError(f"label {label!r} must be letters, digits, '.', '_' and '-'")
    chosen = _names(values["workloads"]) or list(the_study.workloads)
    for name in chosen:
        if name not in workloads.names(paths.workloads()):
            raise unknown("workload", name, workloads.names(paths.workloads()))
    listed = next((run for run in the_study.runs if run.label == label), None)
    if listed is not None and listed.config != the_config.name:
        raise UsageError(
            f"label {label!r} belongs to config {listed.config!r} in study {the_study.name!r}; "
            f"give config {the_config.name!r} another label"
        )
    return Plan(
        study=the_study,
        config=the_config,
        label=label,
        model=values["model"] or the_study.model,
        base_url=_base_url(values["base_url"]),
        workloads=chosen or None,
        limit=values["limit"] or the_study.limit,
        max_tokens=values["max_tokens"] or the_study.max_tokens,
        leg=_leg(values["concurrency"], values["dup"], listed.concurrent if listed else None),
        port=values["port"] or None,
        results_dir=Path(values["results_dir"]).expanduser().resolve() if values["results_dir"] else paths.results(),
    )


def plans(name: str) -> list[Plan]:
    """Return the plans of a study's runs, in its file's order; raises as `plan`."""
    return [plan({"study": name, "config": run.config, "label": run.label}) for run in study(name).runs]


def _typed(given: Mapping[str, object], known: Mapping[str, tuple[type, Any, str]]) -> dict[str, Any]:
    """Return every known parameter with its value, given or default; names and types are checked."""
    values = {name: default for name, (_, default, _) in known.items()}
    for name, value in given.items():
        if name not in known:
            raise unknown("parameter", name, known)
        if type(value) is not known[name][0]:
            raise UsageError(_wrong_type(name, value, known[name][0]))
        values[name] = value
    return values


def _wrong_type(name: str, value: object, expected: type) -> str:
    want = "a whole number" if expected is int else "text"
    hint = f" (papermill: use -r {name} VALUE to pass text that looks like a number)" if expected is str else ""
    return f"parameter {name!r} must be {want}, got {value!r} of type {type(value).__name__}{hint}"


def _base_url(text: str) -> str | None:
    if not text:
        return None
    if not re.match(r"https?://[^/]+", text):
        raise UsageError(f"base_url must start with http:// or https://, got {text!r}")
    return text.rstrip("/").removesuffix("/v1")


def _names(text: str) -> list[str]:
    """Return the names of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _leg(concurrency: int, dup: int, listed: Leg | None) -> Leg | None:
    """Return the concurrent leg: parameters over the study's."""
    if concurrency == 1 or (concurrency == 0 and listed is None):
        if dup > 1:
            raise UsageError("dup needs a concurrent leg: set concurrency to 2 or more")
        return None
    base = listed or Leg(concurrency=concurrency)
    return Leg(concurrency=concurrency or base.concurrency, dup=dup or base.dup, workloads=base.workloads)


def from_namespace(namespace: Mapping[str, object]) -> Plan:
    """Validate a notebook's variables as the parameters of a run.

    papermill injects ``-p confg ngram`` as a variable and only warns; here any plain variable that is no parameter
    stops the run.

    Parameters
    ----------
    namespace : mapping
        The notebook's ``globals()``.
    """
    return plan(_plain(namespace))


ANALYSIS: dict[str, tuple[type, Any, str]] = {
    "study": (str, "cpu-smollm2-135m", "study with records in results/"),
    "reference": (str, "", "comma-separated configs to compare with; empty: every baseline"),
    "candidates": (str, "", "comma-separated configs to compare; empty: all"),
}
"""Parameters of the notebooks that read records, as `PARAMETERS`."""


def analysis_from_namespace(namespace: Mapping[str, object]) -> tuple[Path, list[str] | None, list[str] | None]:
    """Validate a notebook's variables as the parameters of an analysis.

    Returns
    -------
    folder : Path
        The study's records.
    references, candidates : list of str or None
        Configs to compare with and to compare; None: the analysis's own choice.

    Raises
    ------
    UsageError
        For an unknown name, a wrong type, or a study that has no records.
    """
    values = _typed(_plain(namespace), ANALYSIS)
    folder = records_folder(values["study"])
    return folder, _names(values["reference"]) or None, _names(values["candidates"]) or None


TUNING: dict[str, tuple[type, Any, str]] = {"study": ANALYSIS["study"]}
"""Parameters of the notebook that tunes n-gram speculation, as `PARAMETERS`."""


def tuning_from_namespace(namespace: Mapping[str, object]) -> Path:
    """Return the folder of the records that a notebook's variables name; raises as `analysis_from_namespace`."""
    return records_folder(_typed(_plain(namespace), TUNING)["study"])


DIVERGENCE: dict[str, tuple[type, Any, str]] = {
    "study": ANALYSIS["study"],
    "reference": (str, "baseline", "record to compare with"),
    "candidate": (str, "ngram", "record whose answers part from it"),
}
"""Parameters of the notebook that says why answers part, as `PARAMETERS`."""


def divergence_from_namespace(namespace: Mapping[str, object]) -> tuple[Path, str, str]:
    """Return the folder of the records that a notebook's variables name, and the labels of the two to hold together.

    Raises as `analysis_from_namespace`; whether the labels have a record is not looked at.
    """
    values = _typed(_plain(namespace), DIVERGENCE)
    return records_folder(values["study"]), values["reference"], values["candidate"]


def records_folder(study: str) -> Path:
    """Return the folder of a study's records; a study without any is refused with those that have some."""
    measured = sorted({path.parent.name for path in paths.results().glob("*/*.json")} - {paths.bench().name})
    if study in measured:
        return paths.results() / study
    if study in names(paths.studies()):
        have = ", ".join(measured) or "(none)"
        raise UsageError(f"study {study!r} has no records yet: samebytes study {study}. With records: {have}")
    raise unknown("study with records", study, measured)


def records_at(text: str) -> Path:
    """Return where records lie: the folder of a study that is named, else the record or folder at this path.

    Raises
    ------
    UsageError
        Where it is neither, with the studies that have records.
    """
    path, is_name = Path(text), "/" not in text and (paths.results() / text).is_dir()
    # a record that is not there is for its reader to refuse
    return path if not is_name and (path.exists() or path.suffix == ".json") else records_folder(text)


def _plain(namespace: Mapping[str, object]) -> dict[str, object]:
    """Return a notebook's own variables of plain types: parameters are nothing else."""
    plain = (bool, int, float, str, list, dict, tuple, type(None))
    ipython = ("In", "Out", "exit", "quit")
    return {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_") and name not in ipython and isinstance(value, plain)
    }
