"""A study: a loop over its runs, each in a notebook of its own; the records on disk are the only memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samebytes import execute, machine, paths, record, settings
from samebytes.errors import SamebytesError
from samebytes.lock import locked
from samebytes.record import MachineInfo
from samebytes.run import differences, is_complete
from samebytes.settings import Plan, Run, Study

State = Literal["to measure", "to resume", "complete", "failed here", "other settings"]


@dataclass(frozen=True)
class Step:
    """One run of a study and what its record says so far."""

    run: Run
    plan: Plan
    state: State
    reason: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What a study came to: labels measured now, kept, refused by the engine, failed otherwise, and left for later."""

    measured: list[str]
    kept: list[str]
    failed: dict[str, str]
    unmeasured: dict[str, str]
    postponed: list[str]


def steps(study: Study, results_dir: Path | None = None) -> list[Step]:
    """Return the study's runs in its file's order (the control first) with the state of each."""
    here = machine.info()
    return [_step(run, _plan(study, run, results_dir), here) for run in study.runs]


def _plan(study: Study, run: Run, results_dir: Path | None) -> Plan:
    return settings.plan(_parameters(study, run, results_dir))


def _parameters(study: Study, run: Run, results_dir: Path | None) -> dict[str, object]:
    given: dict[str, object] = {"study": study.name, "config": run.config, "label": run.label}
    if results_dir is not None:
        given["results_dir"] = str(results_dir)
    return given


def _step(run: Run, plan: Plan, here: MachineInfo) -> Step:
    if not plan.record_path.exists():
        return Step(run, plan, "to measure")
    kept = record.load(plan.record_path)
    changed = differences(kept, plan)
    if not kept.passes:
        # Refused before a prompt was sent: that is this config's result, but on this machine only.
        refused = kept.status == "failed" and (kept.machine.gpu, kept.machine.cpu) == (here.gpu, here.cpu)
        return Step(run, plan, "failed here", kept.reason) if refused and not changed else Step(run, plan, "to measure")
    if changed:
        return Step(run, plan, "other settings", "; ".join(changed))
    return Step(run, plan, "complete" if is_complete(kept, plan) else "to resume")


def conduct(
    name: str,
    *,
    results_dir: Path | None = None,
    retry_failed: bool = False,
    time_limit_s: float | None = None,
    say: Callable[[str], None] = print,
    quiet: bool = False,
) -> Outcome:
    """Measure what a study still lacks.

    Parameters
    ----------
    name : str
        The study.
    results_dir : Path or None
        Where records go; None: ``results/`` of the project.
    retry_failed : bool
        Measure again what the engine refused on this machine.
    time_limit_s : float or None
        Start no run that would end later than this, by the longest run so far: machine time that is lent by the hour
        is spent on whole runs, for a run cut in two is no control.
    say : callable
        Takes one line of progress.
    quiet : bool
        Keep the notebooks' own output off the terminal.

    Returns
    -------
    Outcome
        A config that cannot run here is a result and stops nothing.

    Raises
    ------
    UsageError
        Where another study is running into the same folder.
    """
    study = settings.study(name)
    folder = (results_dir or paths.results()) / study.name
    measured: list[str] = []
    postponed: list[str] = []
    with locked(folder / ".study.lock", f"another study is running into {folder}; wait for it to end"):
        plan = steps(study, results_dir)
        wanted = {"to measure", "to resume"} | ({"failed here"} if retry_failed else set())
        todo = [step for step in plan if step.state in wanted]
        kept = [step.run.label for step in plan if step.state == "complete"]
        failed = {s.run.label: s.reason or "" for s in plan if s.state == "failed here" and not retry_failed}
        unmeasured = {
            s.run.label: f"{s.plan.record_path} was measured with other settings ({s.reason}); move it away"
            for s in plan
            if s.state == "other settings"
        }
        say(f"study {name}: {len(study.runs)} runs, {len(kept) + len(failed)} done, {len(todo)} to measure")
        began = time.monotonic()
        longest = 0.0
        for number, step in enumerate(todo, 1):
            start = time.monotonic()
            if time_limit_s is not None and start - began + longest > time_limit_s:
                postponed = [late.run.label for late in todo[number - 1 :]]
                say(f"time limit: {', '.join(postponed)} left for the next time")
                break
            say(f"[{number}/{len(todo)}] {step.run.label}{_left(began, number - 1, len(todo))}")
            try:
                execute.run_config(_parameters(study, step.run, results_dir), quiet=quiet)
            except SamebytesError as error:
                after = _step(step.run, step.plan, machine.info())
                if after.state == "failed here":
                    failed[step.run.label] = after.reason or ""
                    say(f"  the engine refused this config here: {after.reason}")
                else:
                    unmeasured[step.run.label] = str(error)
                    say(f"  not measured: {error}")
            else:
                measured.append(step.run.label)
            longest = max(longest, time.monotonic() - start)
    return Outcome(measured, kept, failed, unmeasured, postponed)


def _left(began: float, done: int, total: int) -> str:
    """Return an estimate of the time left, from the runs done so far."""
    if done == 0:
        return ""
    seconds = (time.monotonic() - began) / done * (total - done)
    return f" (about {seconds / 60:.0f} min left)" if seconds >= 90 else f" (about {seconds:.0f} s left)"
