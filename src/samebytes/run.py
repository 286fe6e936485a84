"""One run: a config on a server of its own, the prompts streamed to it, one record on disk."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from samebytes import client as clients
from samebytes import (
    definitions,
    engine,
    fairness,
    httpget,
    interrupt,
    machine,
    metrics,
    model,
    paths,
    record,
    server,
    serverlog,
    settings,
    validity,
    workloads,
)
from samebytes.client import Batch, Client, Endpoint, RequestSpec
from samebytes.errors import EngineError, RecordError, UsageError, unknown
from samebytes.lock import locked
from samebytes.record import (
    ConfigInfo,
    Launch,
    MachineInfo,
    ModelInfo,
    Pass,
    PromptInfo,
    Record,
    Request,
    Sampling,
    Versions,
)
from samebytes.settings import Leg, Plan
from samebytes.stream import to_request
from samebytes.telemetry import Sampler, memory_watch
from samebytes.workloads import Prompt

WARMUP_TOKENS = 64
ATTEMPTS = 3
"""How often a pass that foreign load disturbed is measured before its last try is kept, load and all."""
DYING_S = 10.0
"""Seconds that a server whose engine is dead gets to end by itself, its reason in its log."""

Say = Callable[[str], None]


def measure(plan: Plan, say: Say = print) -> Record:
    """Measure one config and leave its record.

    A complete record of the same settings is returned as it is; an interrupted one is resumed.

    Parameters
    ----------
    plan : Plan
        Validated parameters.
    say : callable
        Takes one line of progress.

    Returns
    -------
    Record
        The record as written to ``plan.record_path``.

    Raises
    ------
    UsageError
        Before anything starts: an unknown name, a wrong prompt or check, a busy port, a missing model, too little disk
        or memory.
    RecordError
        Where a record of other settings lies at the same place.
    EngineError
        Where the engine refused the config or died; a record with ``status: failed`` and the reason is left.
    """
    with _lock(plan.record_path):
        return _Run(plan, say).measure()


def _lock(path: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the record's lock: two runs never write one record."""
    return locked(
        path.with_name(f".{path.stem}.lock"),
        f"another run is writing {path}; wait for it, or give this one another label",
    )


class _Run:
    """State of one run; `measure` is its whole life."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self.plan = plan
        self.say = say
        self.prompts, self.leg_prompts, self.warmups = load_prompts(plan)
        self.engine = None if plan.base_url else engine.resolve()
        self.machine = machine.info()
        self.served_name = f"samebytes-{secrets.token_hex(4)}"
        self.port = 0
        self.running: server.ConnectedServer | None = None
        self.record: Record
        self.api_key = os.environ.get("OPENAI_API_KEY")

    # -- before the server --------------------------------------------------------------------------------------------

    def measure(self) -> Record:
        self.record, argv, env = self._prepare()
        kept = self._kept()
        if kept is not None and is_complete(kept, self.plan):
            self.say(f"{self.plan.record_path} is complete; nothing to measure (another label measures again)")
            return kept
        if kept is not None:
            self._resume(kept)
        todo = self._todo()
        needs_leg = self.plan.leg is not None and self.record.concurrent() is None
        if not todo and not needs_leg:
            return self._completed()  # it was interrupted between its last request and its last word
        self._preflight()
        try:
            with (
                self._launch(argv, env) as (launch, base_url, alive, pids),
                Client(self._endpoint(base_url), timeout_s=self.plan.study.request_timeout_s) as client,
            ):
                ours = [*pids, os.getpid()]
                self._warm_up(client, launch, 1)
                if todo:
                    self._repeat_disturbed(lambda: self._sequential(client, base_url, alive, todo, ours))
                if needs_leg and self.plan.leg is not None:
                    leg = self.plan.leg
                    self._warm_up(client, None, leg.concurrency)
                    self._repeat_disturbed(lambda: self._concurrent(client, base_url, alive, leg, ours))
        except EngineError as error:
            self.record.status = "failed"
            self.record.reason = paths.neutral(error.reason)
            self._save()
            raise
        return self._completed()

    def _completed(self) -> Record:
        self.record.status = "complete"
        self.record.reason = None
        self._save()
        return self.record

    def _prepare(self) -> tuple[Record, list[str], dict[str, str]]:
        """Return an empty record of this run's settings, and the server's command and environment."""
        plan = self.plan
        if self.engine is None:
            chosen = plan.model if plan.model != plan.study.model else None
            self.running = server.connect(plan.base_url or "", chosen, self.api_key)
            info = ModelInfo(id=self.running.served_model_name)
            self.served_name = self.running.served_model_name
            argv: list[str] = []
            env: dict[str, str] = {}
            version = _version(self.running.base_url, self.api_key)
        else:
            self.port = plan.port or server.free_port()
            server.check_port(self.port)
            resolved = model.resolve(plan.model)
            info = identity(resolved)
            ours = ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", self.served_name]
            argv = self.engine.argv(resolved.path_or_id, [*settings.arguments(plan.flags), *ours])
            env = plan.env
            version = None
        return (
            Record(
                status="partial",
                label=plan.label,
                study=plan.study.name,
                note=plan.study.note,
                config=ConfigInfo(
                    name=plan.config.name, why=plan.config.why, argv=[paths.neutral(word) for word in argv], env=env
                ),
                model=info,
                machine=self.machine,
                versions=machine.versions(self.engine, version),
                sampling=Sampling(max_tokens=plan.max_tokens),
                prompts=_identify(self.prompts),
                leg_prompts=_only_there(self.prompts, self.leg_prompts),
                warmup_sha256=[p.sha256 for p in self.warmups],
            ),
            argv,
            env,
        )

    def _kept(self) -> Record | None:
        """Return the record that lies there already if it is of the same settings, None where there is none."""
        path = self.plan.record_path
        if not path.exists():
            return None
        kept = record.load(path)
        changed = [*differences(kept, self.plan), *self._elsewhere(kept)]
        if changed and kept.passes:
            raise _other_settings(path, changed)
        if changed:
            return None
        return kept

    def _elsewhere(self, kept: Record) -> list[str]:
        """Return how a record's model, machine and engine differ from those here."""
        return _differing(
            {
                "model": (kept.model.model_dump(), self.record.model.model_dump()),
                "machine": ((kept.machine.gpu, kept.machine.cpu), (self.machine.gpu, self.machine.cpu)),
                "vLLM version": (kept.versions.vllm, self.record.versions.vllm),
            }
        )

    def _resume(self, kept: Record) -> None:
        """Go on with an interrupted record: finished prompts stay, this server start is a further launch."""
        kept.versions = self.record.versions
        kept.config = self.record.config
        kept.status, kept.reason = "partial", None
        for launch in kept.launches:
            if launch.stopped is None and launch.started_by == "samebytes":
                launch.log_excerpt = [*launch.log_excerpt, "samebytes: this launch was cut short"]
        for measured in kept.passes:
            if not measured.complete and measured.voided is None:
                measured.voided = self._disturbance(measured)
        self.record = kept
        done = sum(request.status == "ok" for request in kept.sequential())
        if done or kept.concurrent():
            left = len(self.record.prompts) - done
            self.say(
                f"resuming {self.plan.record_path}: {done} of {len(kept.prompts)} prompts are kept"
                + (f", {left} left" if left else ", only the concurrent leg is left")
            )

    def _todo(self) -> list[Prompt]:
        # What failed is asked again: it may have been the dying server's fault.
        done = {request.id for request in self.record.sequential() if request.status == "ok"}
        return [prompt for prompt in self.prompts if prompt.id not in done]

    def _preflight(self) -> None:
        if self.engine is not None:
            check_machine(self.plan, self.machine, self.record.versions, self.record.model)

    # -- the server ---------------------------------------------------------------------------------------------------

    def _endpoint(self, base_url: str) -> Endpoint:
        return Endpoint(base_url=base_url, api_key=self.api_key, model=self.served_name)

    @contextlib.contextmanager
    def _launch(
        self, argv: list[str], env: dict[str, str]
    ) -> Iterator[tuple[Launch, str, Callable[[], None], list[int]]]:
        """Start the server (or join a running one) and keep its launch in the record up to date."""
        if self.running is not None:
            base_url = self.running.base_url
            launch = self._new_launch("base_url", base_url)
            launch.ready, launch.ready_mono = launch.started, launch.started_mono
            self._describe(launch, base_url, "")
            yield launch, base_url, self.running.check_alive, []
            return
        log = self.plan.record_path.parent / "logs" / f"{self.plan.label}-{len(self.record.launches)}.log"
        spec = server.ServerSpec(argv=argv, env=env, port=self.port, served_model_name=self.served_name, log_path=log)
        self.say(f"starting vLLM {self.record.versions.vllm} with config {self.plan.config.name!r} (log: {log})")
        launch = self._new_launch("samebytes", f"http://127.0.0.1:{self.port}")
        self._save()
        last = 0.0

        def waiting(elapsed: float) -> None:
            nonlocal last
            if elapsed - last >= 15:
                last = elapsed
                self.say(f"  loading for {elapsed:.0f} s")

        try:
            with server.serve(
                spec,
                ready_timeout_s=self.plan.study.ready_timeout_s,
                on_wait=waiting,
                memory_is_back=memory_watch(),
            ) as running:
                launch.started = running.started or launch.started
                launch.started_mono = running.started_mono or launch.started_mono
                launch.ready, launch.ready_mono = running.ready, running.ready_mono
                self.say(f"  ready after {time.monotonic() - launch.started_mono:.0f} s")
                self.record.versions.vllm = _version(running.base_url, self.api_key) or self.record.versions.vllm
                try:
                    self._describe(launch, running.base_url, _read(log))
                    yield launch, running.base_url, lambda: _check(running), running.pids()
                    self._describe(launch, running.base_url, _read(log))
                except metrics.CounterReset:
                    raise
                except EngineError:
                    _await_death(running)
                    raise
        finally:
            launch.stopped, launch.stopped_mono = server.utc_now(), time.monotonic()
            launch.log_excerpt = [paths.neutral(line) for line in serverlog.excerpt(_read(log))]
            self._save()

    def _new_launch(self, started_by: str, base_url: str) -> Launch:
        launch = Launch.model_validate(
            {
                "started_by": started_by,
                "served_model_name": self.served_name,
                "base_url": base_url,
                "started": server.utc_now(),
                "started_mono": time.monotonic(),
            }
        )
        self.record.launches.append(launch)
        return launch

    def _describe(self, launch: Launch, base_url: str, log: str) -> None:
        describe(launch, serverlog.facts(log), _scrape(base_url, self.api_key))

    # -- passes -------------------------------------------------------------------------------------------------------

    def _spec(self, prompt: Prompt, copy_index: int = 0, max_tokens: int | None = None) -> RequestSpec:
        return RequestSpec(
            id=prompt.id,
            workload=prompt.workload,
            copy_index=copy_index,
            messages=[{"role": "user", "content": prompt.text}],
            max_tokens=max_tokens or self.plan.max_tokens,
            temperature=self.record.sampling.temperature,
            seed=self.record.sampling.seed,
        )

    def _warm_up(self, client: Client, launch: Launch | None, concurrency: int) -> None:
        """Send unrecorded requests at the pass's own concurrency; the first finds out what the server can tell."""
        tokens = min(self.plan.max_tokens, WARMUP_TOKENS)
        specs = [self._spec(prompt, max_tokens=tokens) for prompt in self.warmups]
        if launch is not None:
            features = client.negotiate(specs[0].messages, max_tokens=tokens)
            self.record.sampling.token_ids = features.token_ids
            self.record.sampling.chunk_usage = features.chunk_usage
            specs = specs[1:]
        specs = [specs[i % len(specs)] for i in range(concurrency)]
        for result in client.send(specs, concurrency=concurrency).results:
            if result.status != "ok":
                raise EngineError(f"the warm-up request {result.id} failed: {result.status}: {result.error}")
        if launch is not None:
            launch.warmed, launch.warmed_mono = server.utc_now(), time.monotonic()
            self._save()

    def _repeat_disturbed(self, attempt: Callable[[], Pass]) -> None:
        """Measure a pass again while other load disturbed it; the last try stays, its load in the record."""
        for left in reversed(range(ATTEMPTS)):
            measured = attempt()
            disturbance = self._disturbance(measured)
            if disturbance is None:
                return
            if left == 0:
                self.say(f"  {disturbance}; kept after {ATTEMPTS} tries")
                return
            self.say(f"  {disturbance}; measuring this pass again")
            measured.voided = disturbance
            self._save()

    def _disturbance(self, measured: Pass) -> str | None:
        """Return what disturbed a pass, None where the study allows it."""
        allowed = self.plan.study.max_foreign_load
        load, steal = measured.host.load or 0.0, measured.host.steal or 0.0
        if allowed is None or (load <= allowed and steal <= allowed):
            return None
        return f"disturbed: foreign load {load:.2f} cores, steal {steal:.0%}; allowed: {allowed:g}"

    def _new_pass(self, kind: str, concurrency: int, dup: int) -> Pass:
        measured = Pass.model_validate(
            {
                "kind": kind,
                "launch": len(self.record.launches) - 1,
                "concurrency": concurrency,
                "dup": dup,
                "started": server.utc_now(),
                "started_mono": time.monotonic(),
            }
        )
        self.record.passes.append(measured)
        return measured

    def _sequential(
        self, client: Client, base_url: str, alive: Callable[[], None], todo: list[Prompt], pids: list[int]
    ) -> Pass:
        """Send the prompts one by one; scrape between them, so that counters belong to a prompt."""
        first = before = _settle(base_url, self.api_key)
        measured = self._new_pass("sequential", 1, 1)
        host = machine.HostMeter(pids)
        batches: list[Batch] = []
        with Sampler(measured.started_mono) as sampler:
            for number, prompt in enumerate(todo, 1):
                batch = client.send([self._spec(prompt)], concurrency=1)
                result = batch.results[0]
                if result.status != "ok":
                    alive()
                after = _settle(base_url, self.api_key)
                request = to_request(result, measured.started_mono)
                with _voiding(measured):
                    _attribute(request, before, after)
                before = after
                batches.append(batch)
                with interrupt.afterwards():  # a request is in the record together with what the counters say of it
                    measured.requests.append(request)
                    measured.telemetry = sampler.samples
                    self._tally(measured, first, after, host, batches)
                self.say(f"  [{number}/{len(todo)}] {_line(request)}")
        self._finish(measured)
        return measured

    def _concurrent(self, client: Client, base_url: str, alive: Callable[[], None], leg: Leg, pids: list[int]) -> Pass:
        """Send every prompt of the leg ``dup`` times in a fixed order, ``concurrency`` in flight."""
        specs = [self._spec(prompt, copy) for copy in range(leg.dup) for prompt in self.leg_prompts]
        self.say(f"  concurrent leg: {len(specs)} requests, {leg.concurrency} in flight")
        first = _settle(base_url, self.api_key)
        measured = self._new_pass("concurrent", leg.concurrency, leg.dup)
        host = machine.HostMeter(pids)
        with Sampler(measured.started_mono) as sampler, _Gauges(base_url, self.api_key) as gauges:
            batch = client.send(specs, concurrency=leg.concurrency)
        if any(result.status != "ok" for result in batch.results):
            alive()
        after = _settle(base_url, self.api_key)
        measured.requests = [to_request(result, measured.started_mono) for result in batch.results]
        measured.telemetry = sampler.samples
        measured.peak_kv_usage, measured.peak_running = gauges.peak_kv_usage, gauges.peak_running
        self._tally(measured, first, after, host, [batch])
        self._finish(measured)
        return measured

    def _tally(
        self,
        measured: Pass,
        first: metrics.Snapshot | None,
        last: metrics.Snapshot | None,
        host: machine.HostMeter,
        batches: list[Batch],
    ) -> None:
        """Sum up a pass so far: a pass that is cut short keeps counters that agree with its requests."""
        measured.host = host.read()
        measured.client = clients.load(batches)
        measured.makespan_s = definitions.makespan(
            (r.sent_s for r in measured.requests), (r.finish_s for r in measured.requests)
        )
        if first is not None and last is not None:
            with _voiding(measured):
                measured.metrics = metrics.delta(first, last)
        self._save()

    def _finish(self, measured: Pass) -> None:
        measured.finished = server.utc_now()
        measured.complete = True
        self._save()

    def _save(self) -> None:
        record.save(self.record, self.plan.record_path)


@contextlib.contextmanager
def _voiding(measured: Pass) -> Iterator[None]:
    """Void the pass where a counter fell or the server restarted within it."""
    try:
        yield
    except metrics.CounterReset as error:
        measured.voided = error.reason
        raise


def check_machine(plan: Plan, here: MachineInfo, versions: Versions, the_model: ModelInfo) -> None:
    """Refuse a machine on which a plan cannot run, before any model loads.

    Raises
    ------
    UsageError
        Where the study needs a GPU and none is usable, or disk or memory cannot suffice.
    """
    gpu = here.gpu is not None and "cpu" not in (versions.torch or "")
    if plan.study.device == "gpu" and not gpu:
        raise UsageError(
            f"study {plan.study.name!r} needs a GPU and none is usable here; "
            f"studies for any machine: {', '.join(_studies_without_gpu())}"
        )
    kv_gib = float(plan.env.get("VLLM_CPU_KVCACHE_SPACE", "0")) if not gpu else 0.0
    machine.check_room(plan.results_dir, the_model.weight_bytes, kv_bytes=int(kv_gib * 2**30), needs_gpu=gpu)


def describe(launch: Launch, facts: serverlog.LogFacts, snapshot: metrics.Snapshot | None) -> None:
    """Put the KV pool, the graphs, the kernels and the scheduling of a ready server into its launch."""
    launch.kv_cache_tokens = _pool(snapshot) or (sum(facts.kv_cache_tokens) if facts.kv_cache_tokens else None)
    launch.max_concurrency = sum(facts.max_concurrency) if facts.max_concurrency else None
    launch.kv_cache_bytes = facts.kv_cache_bytes
    launch.graph_bytes = facts.graph_bytes
    launch.model_bytes = facts.model_bytes
    launch.linear_kernel = facts.linear_kernel
    launch.attention_backend = facts.attention_backend
    launch.async_scheduling = facts.async_scheduling
    if snapshot is not None:
        launch.prefix_caching = snapshot.prefix_caching
        launch.process_start_time = snapshot.value("process_start_time")


def identity(resolved: model.ResolvedModel) -> ModelInfo:
    """Return what a record says of a model."""
    return ModelInfo(
        id=resolved.id,
        revision=resolved.revision,
        sha256=resolved.sha256,
        weight_bytes=resolved.weight_bytes,
        n_params=resolved.n_params,
    )


def load_prompts(plan: Plan) -> tuple[list[Prompt], list[Prompt], list[Prompt]]:
    """Return the prompts that a plan sends one by one, those of its concurrent leg and those of the warm-up.

    Raises
    ------
    UsageError
        As `workloads.load`, `workloads.warmup` and `leg_prompts`, and for a check that is wrong or does not fit its
        prompt: `samebytes summary` would refuse it when all is measured.
    """
    folder = paths.workloads()
    own, leg, warmups = workloads.load(folder, plan.workloads, plan.limit), leg_prompts(plan), workloads.warmup(folder)
    validity.refuse_wrong(folder, dict.fromkeys([*own, *leg]))
    return own, leg, warmups


def leg_prompts(plan: Plan) -> list[Prompt]:
    """Return the prompts of a plan's concurrent leg, none where it has no leg (see `samebytes.settings.Leg`).

    Raises
    ------
    UsageError
        For an unknown workload, and where the leg's workloads are not among those of the run.
    """
    if plan.leg is None:
        return []
    folder = paths.workloads()
    known = workloads.names(folder)
    for name in plan.leg.workloads:
        if name not in known:
            raise unknown("workload of the concurrent leg", name, known)
    here = plan.workloads or workloads.defaults(folder)
    listed = plan.study.workloads or workloads.defaults(folder)
    shared = [name for name in plan.leg.workloads if name in here]
    alone = [name for name in plan.leg.workloads if name not in here and name not in listed]
    if not shared and not alone:
        raise UsageError(
            f"the concurrent leg takes {', '.join(plan.leg.workloads)}, but this run has only {', '.join(sorted(here))}"
        )
    chosen = workloads.load(folder, shared, plan.limit) if shared else []
    return [*chosen, *(workloads.load(folder, alone) if alone else [])]


def _identify(prompts: Sequence[Prompt]) -> list[PromptInfo]:
    return [PromptInfo(id=p.id, workload=p.workload, sha256=p.sha256) for p in prompts]


def _only_there(prompts: Sequence[Prompt], leg: Sequence[Prompt]) -> list[PromptInfo] | None:
    """Return the leg's prompts where it has any that the sequential pass has not."""
    ids = {prompt.id for prompt in prompts}
    return _identify(leg) if any(prompt.id not in ids for prompt in leg) else None


def is_complete(kept: Record, plan: Plan) -> bool:
    """Return whether a record holds all that a plan asks for."""
    return kept.status == "complete" and (plan.leg is None or kept.concurrent() is not None)


def check(plan: Plan) -> None:
    """Refuse what `measure` would refuse for port, prompts and the record that lies there; asks no engine or model.

    Raises
    ------
    UsageError
        Where the port is busy, a prompt or its check is wrong, or another run is writing that record.
    RecordError
        Where it was measured with other settings.
    """
    if plan.port and not plan.base_url:
        server.check_port(plan.port)
    load_prompts(plan)
    if not plan.record_path.exists():
        return
    with _lock(plan.record_path):
        kept = record.load(plan.record_path)
        changed = differences(kept, plan)
        if changed and kept.passes:
            raise _other_settings(plan.record_path, changed)


def _other_settings(path: Path, changed: Sequence[str]) -> RecordError:
    return RecordError(
        f"{path} was measured with other settings ({'; '.join(changed)}). "
        "Give this run another label, or move that record away"
    )


def differences(kept: Record, plan: Plan) -> list[str]:
    """Return which of a plan's settings a record was not measured with; asks neither engine nor model."""
    flags = [] if plan.base_url else settings.arguments(plan.flags)
    prompts = workloads.load(paths.workloads(), plan.workloads, plan.limit)
    pairs: dict[str, tuple[object, object]] = {
        "config": (kept.config.name, plan.config.name),
        "flags": (_by_flag(kept.config.argv), _by_flag([paths.neutral(word) for word in flags])),
        "environment": (kept.config.env, {} if plan.base_url else plan.env),
        "max_tokens": (kept.sampling.max_tokens, plan.max_tokens),
        "prompts": ([f"{p.id} {p.sha256[:8]}" for p in kept.prompts], [f"{p.id} {p.sha256[:8]}" for p in prompts]),
    }
    leg = kept.concurrent()
    if leg is not None and plan.leg is not None:
        ours = leg_prompts(plan)
        measured = (leg.concurrency, leg.dup, [r.id for r in leg.requests])
        pairs["concurrent leg"] = (measured, (plan.leg.concurrency, plan.leg.dup, [p.id for p in ours] * plan.leg.dup))
        pairs["prompts of the concurrent leg"] = (kept.leg_prompts, _only_there(prompts, ours))
    return _differing(pairs)


def _by_flag(argv: Sequence[str]) -> list[str]:
    """Return a server's options, one entry each, without what each run sets for itself."""
    return [f"{name} {value}".strip() for name, value in fairness.options(argv).items()]


def _differing(pairs: Mapping[str, tuple[object, object]]) -> list[str]:
    found = []
    for name, (there, here) in pairs.items():
        if there != here:
            if isinstance(there, list) and isinstance(here, list):
                there, here = [x for x in there if x not in here], [x for x in here if x not in there]
            words = f"{there!r} there, {here!r} here"
            found.append(f"{name}: {words}" if len(words) <= 300 else name)
    return found


def _studies_without_gpu() -> list[str]:
    return [name for name in settings.names(paths.studies()) if settings.study(name).device != "gpu"]


def _check(running: server.Server) -> None:
    """Make sure that the server runs and that its engine lives: the one outlives the other by seconds."""
    running.check_alive()
    server.check_health(running.base_url)


def _await_death(running: server.Server) -> None:
    """Where the engine is dead wait for its server's end, which raises the root cause; else do nothing."""
    deadline = time.monotonic() + DYING_S
    while time.monotonic() < deadline:
        running.check_alive()
        with contextlib.suppress(EngineError):
            server.check_health(running.base_url)
            return
        time.sleep(0.1)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _scrape(base_url: str, api_key: str | None) -> metrics.Snapshot | None:
    try:
        return metrics.fetch(base_url, api_key)
    except metrics.MetricsUnavailable:
        return None


def _version(base_url: str, api_key: str | None) -> str | None:
    """Return the engine version that a server states, None where it states none."""
    try:
        answer = httpget.get(f"{base_url}/version", api_key)
        return str(json.loads(answer.body)["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _pool(snapshot: metrics.Snapshot | None) -> int | None:
    """Return the KV pool in tokens by the server's own label, None before vLLM 0.23 or so."""
    tokens = snapshot.cache_config.get("kv_cache_size_tokens", "") if snapshot else ""
    return int(tokens) if tokens.isdigit() else None


def _settle(base_url: str, api_key: str | None) -> metrics.Snapshot | None:
    """Return the counters once they stand still; None where the server exports none."""
    try:
        return metrics.settle(base_url, api_key=api_key)
    except metrics.MetricsUnavailable:
        return None


def _attribute(request: Request, before: metrics.Snapshot | None, after: metrics.Snapshot | None) -> None:
    """Give a prompt what the counters rose by while it was alone on the server."""
    if before is None or after is None:
        return
    rise = metrics.delta(before, after)
    for name in ("drafts", "draft_tokens", "accepted_tokens", "preemptions"):
        value = rise.get(name)
        setattr(request, name, None if value is None else int(value))
    positions = metrics.delta_per_pos(before, after)
    request.accepted_per_pos = None if positions is None else [int(n) for n in positions]


def _line(request: Request) -> str:
    if request.status != "ok":
        return f"{request.id}: {request.status}: {request.error}"
    speed = "" if request.decode_tok_s is None else f", {request.decode_tok_s:.1f} tok/s"
    return f"{request.id}: {request.completion_tokens} tokens{speed}"


class _Gauges:
    """Peaks of gauges during a concurrent leg, scraped twice a second in a thread."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        self.peak_kv_usage: float | None = None
        self.peak_running: float | None = None
        self._base_url = base_url
        self._api_key = api_key
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gauges", daemon=True)

    def __enter__(self) -> _Gauges:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            try:
                snapshot = _scrape(self._base_url, self._api_key)
            except EngineError:
                continue  # busy, or dying: the pass itself finds out
            if snapshot is None:
                return
            self.peak_kv_usage = _max(self.peak_kv_usage, snapshot.value("kv_cache_usage"))
            self.peak_running = _max(self.peak_running, snapshot.value("requests_running"))


def _max(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)
