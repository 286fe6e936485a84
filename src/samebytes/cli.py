"""The ``samebytes`` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from samebytes import (
    __version__,
    bookbuild,
    compare,
    diff,
    doctor,
    execute,
    markdown,
    pagecheck,
    paths,
    probe,
    profile,
    record,
    settings,
    show,
    summary,
    tune,
)
from samebytes import run as runs
from samebytes import study as studies
from samebytes.errors import RecordError, SamebytesError, UsageError

app = typer.Typer(
    help="What a serving flag does to a language model's speed and to its output bytes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Command = TypeVar("Command", bound=Callable[..., Any])


_RESUMED = ("run", "study", "probe_command")
"""Commands that go on where they were interrupted."""


def _reported(command: Command) -> Command:
    """Turn an error meant for the person at the keyboard into one message and exit code 1."""

    @wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except SamebytesError as error:
            typer.echo(f"samebytes: {error}", err=True)
            raise typer.Exit(1) from None
        except (NotADirectoryError, PermissionError) as error:  # of a path that was named
            typer.echo(f"samebytes: {error.filename}: {error.strerror}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            hint = "; the same command goes on with what is kept" if command.__name__ in _RESUMED else ""
            typer.echo(f"samebytes: interrupted{hint}", err=True)
            raise typer.Exit(130) from None

    return wrapper  # type: ignore[return-value]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What a serving flag does to a language model's speed and to its output bytes."""


@app.command(epilog="Example: samebytes run ngram --study quick")
@_reported
def run(
    config: Annotated[str, typer.Argument(help="Server config: a file in configs/.")],
    study: Annotated[str, typer.Option(help="Study: a file in studies/.")] = "quick",
    model: Annotated[str, typer.Option(help="Another model: embedded name, local folder or hub id.")] = "",
    base_url: Annotated[str, typer.Option(help="Measure this running server instead of starting one.")] = "",
    label: Annotated[str, typer.Option(help="Name of the record; the config's name if left out.")] = "",
    workloads: Annotated[str, typer.Option(help="Comma-separated workloads.")] = "",
    limit: Annotated[int, typer.Option(help="Prompts per workload; 0: the study's.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Longest answer in tokens; 0: the study's.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Requests in flight in a concurrent leg; 1: no such leg.")] = 0,
    dup: Annotated[int, typer.Option(help="Copies of each prompt in the concurrent leg.")] = 0,
    port: Annotated[int, typer.Option(help="Port of the server; 0: a free one.")] = 0,
    results_dir: Annotated[str, typer.Option(help="Folder for records; results/ if left out.")] = "",
) -> None:
    """Run one config: start its server, send the prompts, leave one record.

    Executes notebooks/run_config.ipynb through papermill; the executed notebook lies beside the record. An interrupted
    run goes on where it stopped.
    """
    parameters = {
        "config": config,
        "study": study,
        "model": model,
        "base_url": base_url,
        "label": label,
        "workloads": workloads,
        "limit": limit,
        "max_tokens": max_tokens,
        "concurrency": concurrency,
        "dup": dup,
        "port": port,
        "results_dir": results_dir,
    }
    path = execute.run_config(parameters, quiet=not sys.stdout.isatty())
    typer.echo(str(path))


@app.command(epilog="Example: samebytes study quick --dry-run")
@_reported
def study(
    name: Annotated[str, typer.Argument(help="Study: a file in studies/.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs and what would be measured.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Measure again what the engine refused here.")
    ] = False,
    time_limit: Annotated[
        float, typer.Option(help="Minutes after which no further run shall end; 0: no limit.", min=0)
    ] = 0,
    results_dir: Annotated[Path | None, typer.Option(help="Folder for records; results/ if left out.")] = None,
) -> None:
    """Measure every run of a study that has no complete record yet.

    A config that the engine refuses on this machine is a result: it is listed, and the others go on.
    """
    for plan in settings.plans(name):
        runs.load_prompts(plan)
    if dry_run:
        for step in studies.steps(settings.study(name), results_dir):
            flags = " ".join(settings.arguments(step.plan.flags))
            leg = "" if step.plan.leg is None else f" + {step.plan.leg.concurrency}-way leg"
            typer.echo(f"{step.state:14} {step.run.label}: {flags}{leg}")
        return
    quiet = not sys.stdout.isatty()
    outcome = studies.conduct(
        name,
        results_dir=results_dir,
        retry_failed=retry_failed,
        time_limit_s=time_limit * 60 or None,
        say=_silent if quiet else typer.echo,
        quiet=quiet,
    )
    typer.echo(f"{name}: {len(outcome.measured)} measured, {len(outcome.kept)} complete already")
    for label, reason in outcome.failed.items():
        typer.echo(f"{label}: cannot run here: {reason}")
    if outcome.postponed:
        typer.echo(f"left for the next time: {', '.join(outcome.postponed)}")
    for label, reason in outcome.unmeasured.items():
        typer.echo(f"{label}: not measured: {reason}", err=True)
    if outcome.unmeasured:
        raise typer.Exit(1)


def _rest(more: int, study: str, edited: Sequence[str]) -> str:
    """Say how many differences are not shown, and what to do about all of them."""
    first = ", ".join(edited[:NAMED]) + (f" and {len(edited) - NAMED} more" if len(edited) > NAMED else "")
    named = f" (prompts whose file is not the one that was sent: {first})" if edited else ""
    return f"... and {more:,} more: put back what was changed{named}, or write anew with samebytes summary {study}"


NAMED = 5
"""Prompts that ``verify`` names before it counts the rest."""

SHOWN = 20
"""Differences that ``verify`` prints before it counts the rest."""


def _silent(_: str) -> None:
    """Take a line of progress where no terminal shows it."""


@app.command(name="show", epilog="Example: samebytes show results/cpu-smollm2-135m/ngram.json")
@_reported
def show_record(
    path: Annotated[Path, typer.Argument(help="A record: results/STUDY/LABEL.json.", metavar="RECORD")],
) -> None:
    """Show a record: what was measured, one row per prompt."""
    typer.echo(show.text(record.load(path)))


@app.command(name="summary", epilog="Example: samebytes summary cpu-smollm2-135m")
@_reported
def summary_command(
    study: Annotated[str, typer.Argument(help="Study with records in results/.")],
    reference: Annotated[list[str] | None, typer.Option(help="Config to compare with; may be repeated.")] = None,
    candidate: Annotated[list[str] | None, typer.Option(help="Config to compare; may be repeated.")] = None,
) -> None:
    """Compute a study's tables from its records: results/STUDY/summary.md, .csv and .json."""
    folder = settings.records_folder(study)
    for path in summary.write(folder, summary.build(folder, reference, candidate)):
        typer.echo(str(path))


@app.command(epilog="Example: samebytes verify cpu-smollm2-135m")
@_reported
def verify(study: Annotated[str, typer.Argument(help="Study with records in results/.")]) -> None:
    """Compute a study's tables again and fail where a committed one differs."""
    folder = settings.records_folder(study)
    differences = summary.verify(folder)
    for line in differences[:SHOWN]:
        typer.echo(line, err=True)
    if len(differences) > SHOWN:
        typer.echo(_rest(len(differences) - SHOWN, study, summary.edited(folder)), err=True)
    if differences:
        raise typer.Exit(1)
    typer.echo(f"{study}: every derived table is what its records say")


@app.command(
    name="compare",
    epilog="Example: samebytes compare results/cpu-smollm2-135m/baseline.json results/cpu-smollm2-135m/ngram.json "
    "--control results/cpu-smollm2-135m/baseline-2.json",
)
@_reported
def compare_command(
    a: Annotated[Path, typer.Argument(help="Record of the reference.", metavar="A")],
    b: Annotated[Path, typer.Argument(help="Record of the candidate.", metavar="B")],
    control: Annotated[
        list[Path] | None, typer.Option(help="Further record of the reference's config; may be repeated.")
    ] = None,
    repeat: Annotated[
        list[Path] | None, typer.Option(help="Further record of the candidate's config; may be repeated.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            help="Exit with 0: same bytes, 10: differs, 11: not attributable or intermittent, 12: cannot compare."
        ),
    ] = False,
    allow_failures: Annotated[
        bool, typer.Option(help="With --strict: judge the prompts that succeeded although others failed.")
    ] = False,
) -> None:
    """Compare two runs prompt by prompt: same bytes, or where they part."""
    try:
        baseline = [record.load(path) for path in (a, *(control or []))]
        candidates = [record.load(path) for path in (b, *(repeat or []))]
        found = compare.compare_groups(baseline, candidates)
    except RecordError as error:
        typer.echo(f"samebytes: {error}", err=True)
        raise typer.Exit(12 if strict else 1) from None
    for note in dict.fromkeys(r.note for r in (*baseline, *candidates) if r.note):
        typer.echo(f"note: {note}")
    typer.echo(markdown.comparison(found), nl=False)
    if strict:
        raise typer.Exit(found.strict_code(allow_failures))


@app.command(name="diff", epilog="Example: samebytes diff cpu-smollm2-135m h200-smollm2-135m --config ngram")
@_reported
def diff_command(
    a: Annotated[str, typer.Argument(help="Study with records in results/, or a folder of records.", metavar="A")],
    b: Annotated[str, typer.Argument(help="The same study, measured again.", metavar="B")],
    config: Annotated[list[str] | None, typer.Option(help="Only this config; may be repeated.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
) -> None:
    """Say what changed between two runs of a study: speeds, bytes, versions, machine, flags, KV pool."""
    found = diff.compute(diff.read(a), diff.read(b), config or ())
    typer.echo(summary.to_json(found) if json else diff.text(found), nl=False)


@app.command(name="tune", epilog="Example: samebytes tune cpu-smollm2-135m")
@_reported
def tune_command(
    records: Annotated[
        list[str] | None, typer.Argument(help="Studies with records in results/, records, or folders of them.")
    ] = None,
    transcripts: Annotated[
        Path | None, typer.Option(help="Own traffic as JSON Lines: chat messages, or prompt and response.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json of the model that answered.")] = None,
    cost: Annotated[
        float | None,
        typer.Option(help="Steps that verifying five tokens takes, above 0; measured if left out."),
    ] = None,
) -> None:
    """Replay n-gram speculation over recorded answers and print the best settings; no engine is started."""
    places = [settings.records_at(text) for text in records or ()]
    if tokenizer is not None and transcripts is None:
        raise UsageError("--tokenizer needs --transcripts: records hold their token ids")
    if transcripts is not None:
        if tokenizer is None:
            raise UsageError("--transcripts needs --tokenizer: the tokenizer.json of the model that answered")
        sweep = tune.of_transcripts(transcripts, tokenizer, places, cost)
    elif places:
        sweep = tune.of_records(places, cost)
    else:
        raise UsageError("name a study with records, or records (files, folders), or own traffic with --transcripts")
    typer.echo(tune.text(sweep))


@app.command(name="probe", epilog="Example: samebytes probe cpu-smollm2-135m baseline --copies 6")
@_reported
def probe_command(
    study: Annotated[str, typer.Argument(help="Study with records in results/.")],
    config: Annotated[str, typer.Argument(help="Config of the record to probe.")],
    label: Annotated[str, typer.Option(help="The record; the config's name if left out.")] = "",
    copies: Annotated[int, typer.Option(help="Then ask each prompt so many times at once; 0: not.", min=0)] = 0,
    mode: Annotated[
        str, typer.Option(help="What the server gives as scores: raw_logits or raw_logprobs.")
    ] = "raw_logits",
    kv_cache_gib: Annotated[
        float, typer.Option(help="Room for the KV cache, for probes that share a GPU; 0: as the flags say.", min=0)
    ] = 0,
    time_limit: Annotated[float, typer.Option(help="Minutes after which no prompt is begun; 0: no limit.", min=0)] = 0,
    results_dir: Annotated[str, typer.Option(help="Folder with the study's records; results/ if left out.")] = "",
) -> None:
    """Ask a record's prompts again, untimed, and keep what each token won against: results/STUDY/probes/LABEL.json.

    Several probes may run on one machine at once. An interrupted one goes on where it stopped.
    """
    found = probe.make(
        settings.plan({"study": study, "config": config, "label": label, "results_dir": results_dir}),
        copies=copies,
        mode=probe.mode(mode),
        kv_cache_bytes=int(kv_cache_gib * 2**30) or None,
        time_limit_s=time_limit * 60 or None,
        say=typer.echo,
    )
    reproduced = sum(p.reproduces_until is None for p in found.prompts)
    typer.echo(f"{found.label}: {found.status}, {reproduced} of {len(found.prompts)} prompts reproduced")


@app.command(name="profile", epilog="Example: samebytes profile h200-qwen3-32b-shape baseline")
@_reported
def profile_command(
    study: Annotated[str, typer.Argument(help="Study: a file in studies/.")],
    config: Annotated[list[str], typer.Argument(help="Configs to profile, a server start each.")],
    results_dir: Annotated[Path | None, typer.Option(help="Folder for results; results/ if left out.")] = None,
) -> None:
    """Say what a decode step of a config takes and why: results/STUDY/profiles/CONFIG.json."""
    for name in config:
        typer.echo(str(profile.measure(study, name, results_dir, say=typer.echo)))


@app.command(epilog="Example: samebytes book")
@_reported
def book() -> None:
    """Build the site from the records in results/ and print its first page's path."""
    first = bookbuild.build(paths.root())
    for heavy in pagecheck.heavy(paths.root() / "_build" / "html", bookbuild.pages(paths.root())):
        typer.echo(f"note: {heavy}", err=True)
    typer.echo(str(first))


@app.command(name="doctor", epilog="Example: samebytes doctor --study h200-smollm2-135m")
@_reported
def doctor_command(
    study: Annotated[str, typer.Option(help="Study to examine this machine for.")] = "quick",
    port: Annotated[int, typer.Option(help="Port that the server shall take; 0: any free one.")] = 0,
) -> None:
    """Say what a run needs, what is here, and how to get what is missing."""
    findings = doctor.examine(study, port or None)
    for finding in findings:
        typer.echo(f"{'ok     ' if finding.ok else 'MISSING'} {finding.name}: {finding.text}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command(name="list", epilog="Example: samebytes list")
@_reported
def list_names() -> None:
    """List configs and studies, with why each exists; a file that is not valid is named with its reason."""
    broken = _list("config", paths.configs(), lambda name: settings.config(name).why.strip())
    broken |= _list("study", paths.studies(), _title)
    if broken:
        raise typer.Exit(1)


def _list(kind: str, folder: Path, describe: Callable[[str], str]) -> bool:
    """Print what lies in a folder, a line each; return whether a file there is not valid."""
    broken = False
    for name in settings.names(folder):
        try:
            typer.echo(f"{kind} {name}: {describe(name)}")
        except UsageError as error:
            broken = True
            typer.echo(f"samebytes: {kind} {name}: {error}", err=True)
    return broken


def _title(name: str) -> str:
    found = settings.study(name)
    return found.title + (f" ({found.note})" if found.note else "")


if __name__ == "__main__":
    app()
