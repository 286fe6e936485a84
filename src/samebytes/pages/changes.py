"""From one study to another: what changed between two runs of the same study."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import combinations

from samebytes import diff, exhibit, prose
from samebytes.bookdata import Measured
from samebytes.diff import Changes, ConfigChange, Effect, Side
from samebytes.errors import UsageError
from samebytes.exhibit import Origin
from samebytes.findings import ALL
from samebytes.pages import common
from samebytes.prose import Html, between, code, count, given, html, join, number, of, paragraph, times
from samebytes.stats import RatioEstimate


def pairs(found: Sequence[Measured]) -> list[tuple[Measured, Measured]]:
    """Return the studies that are runs of the same study: of one model, with prompts and configs in common.

    A study on a CPU comes first of its pair: what a card changes reads that way round.
    """
    both = []
    for one, two in combinations(sorted(found, key=lambda study: study.gpu), 2):
        if one.records[0].model.id == two.records[0].model.id:
            try:
                diff.shared(_side(one), _side(two))
            except UsageError:
                continue
            both.append((one, two))
    return both


def _side(study: Measured) -> Side:
    return Side(study.name, study.records, study.summary)


class Blocks:
    """The blocks of one pair of studies.

    Parameters
    ----------
    a, b : Measured
        The studies; ``b`` is compared with ``a``.
    """

    def __init__(self, a: Measured, b: Measured) -> None:
        self.found: Changes = diff.compute(_side(a), _side(b))
        self.command = f"samebytes diff {a.name} {b.name}"
        self.name = f"{a.name}-{b.name}"
        self.origin: Origin = exhibit.together(
            [exhibit.origin(study, *(c.config for c in self.found.configs)) for study in (a, b)], command=self.command
        )
        self.sides = (a, b)
        self.a = common.machine(a)
        self.b = common.machine(b)

    def heading(self, section: str) -> Html:
        """Return who is A and who is B as a heading that can be linked to, for a section of the page."""
        title = html("{} (A) and {} (B)", code(self.found.a), code(self.found.b))
        return prose.heading(f"{section}-{self.name}", title, 3)

    def lead(self) -> Html:
        """Return what the two runs share, and what has to be known before any figure."""
        found = self.found
        shared = paragraph(
            "A is {}: {}. B is {}: {}. Both sent {} prompts, byte for byte the same, to {} configs of the same names. "
            "Again with {}.",
            code(found.a),
            given(found.setup_a, source=f"results/{found.a}"),
            code(found.b),
            given(found.setup_b, source=f"results/{found.b}"),
            count(len(found.prompts), source=self.command),
            count(len(found.configs), source=self.command),
            code(self.command),
        )
        return join(
            [
                shared,
                self.conclusion(),
                prose.bullets([given(caution, source=self.command) for caution in found.cautions]),
            ]
        )

    def conclusion(self) -> Html:
        """Return how many answers changed without any flag, and how many each flag changes on either side."""
        baseline = next((c for c in self.found.configs if c.config == "baseline"), None)
        if baseline is None:
            return Html()
        total = next(n for n in baseline.bytes if n.workload == ALL)
        source = self._records(baseline)
        return paragraph(
            "With no flag at all, {} answers came out the same on {} as on {}; {} more are the same up to where the "
            "one that was allowed fewer tokens ends. {}",
            of(total.counts["same"], total.judged, source=source),
            self.b,
            self.a,
            count(total.counts[diff.UP_TO_THE_LIMIT], source=source),
            join((self._kept(study) for study in self.sides), " "),
        )

    def _kept(self, study: Measured) -> Html:
        """Return how many of the baseline's answers each flag keeps on one side, for scale."""
        kept = []
        for pair in study.pairs("baseline"):
            total = common.byte_count(pair)
            if total is not None:
                share = of(total.counts["same"], total.judged, source=common.pair_source(study, pair))
                kept.append(html("{} {}{}", code(pair.candidate), share, common.uncontrolled(pair)))
        where = common.machine(study)
        return (
            html("On {} alone, these keep the bytes of the baseline: {}.", where, join(kept, ", ")) if kept else Html()
        )

    def _table(
        self,
        what: str,
        caption: str,
        header: Sequence[object],
        rows: Sequence[Sequence[object]],
        data: exhibit.Rows,
        words: Container[int] = (),
        nothing: str = "Nothing.",
    ) -> Html:
        """Return a table of this pair, which its caption names; a sentence where it has no rows."""
        if not rows:
            return paragraph("{}", nothing)
        named = html("{} A is {}, B is {}.", caption, code(self.found.a), code(self.found.b))
        return exhibit.table(f"changes-{what}-{self.name}", named, header, rows, self.origin, data=data, words=words)

    def differences(self) -> Html:
        """Return what differs besides the figures."""
        rows = [(c, c.difference) for c in self.found.changed]
        return self._table(
            "setup",
            "What differs besides the figures, between the first runs of both. Each may be the cause of any change.",
            ["what", "kind", "A", "B", "configs"],
            [
                [
                    code(d.name),
                    d.kind,
                    *(given(diff.value(v), source=self.command) for v in (d.a, d.b)),
                    join((code(name) for name in c.configs), ", ") or ALL,
                ]
                for c, d in rows
            ],
            [
                {"kind": d.kind, "name": d.name, "a": d.a, "b": d.b, "configs": " ".join(c.configs) or ALL}
                for c, d in rows
            ],
            words=(1, 2, 3, 4),
            nothing="Nothing: the first runs of both have the same machine, versions, settings and flags on record.",
        )

    def speeds(self) -> Html:
        """Return decode throughput on both sides, paired by prompt."""
        rows: list[list[object]] = []
        data: list[dict[str, object]] = []
        for config in self.found.configs:
            for (workload, a, b), ratio in zip(config.speeds, config.ratios, strict=True):
                source = f"decode tok/s ({workload}): {self._records(config)}"
                rows.append(
                    [
                        code(config.config),
                        common.workload_name(workload),
                        number(a, source=source),
                        number(b, source=source),
                        self._ratio(ratio.decode, source),
                        times(ratio.drift, source=source, missing="started once on both sides"),
                        ratio.called,
                        self._ratio(ratio.ttft, source.replace("decode tok/s", "TTFT")),
                    ]
                )
                data.append(
                    {"config": config.config, "workload": workload, "a_tok_s": a, "b_tok_s": b}
                    | _flat("decode", ratio.decode)
                    | {"drift": ratio.drift, "called": ratio.called}
                    | _flat("ttft", ratio.ttft)
                )
        return self._table(
            "speed",
            "Decode throughput in tok/s (medians) and B over A, paired by prompt, with its interval. Drift: the "
            "largest such ratio between two server starts on one side. Under one, the first token comes sooner on B.",
            ["config", "workload", "A", "B", "B over A", "drift", "B is", "TTFT, B over A"],
            rows,
            data,
            words=(1, 6),
        )

    def _records(self, config: ConfigChange) -> str:
        sides = ((self.found.b, config.labels_b), (self.found.a, config.labels_a))
        return " against ".join(", ".join(f"results/{name}/{label}.json" for label in labels) for name, labels in sides)

    def _ratio(self, found: RatioEstimate | None, source: str) -> Html:
        if found is None:
            return times(None, source=source, missing="no prompt is timed on both sides")
        interval = between(found.t_interval, source=source, missing="a single prompt has no interval")
        return html("{} <small>{}</small>", times(found.geometric_mean, source=source), interval)

    def effects(self) -> Html:
        """Return what each flag gains on either side."""
        return self._table(
            "gain",
            "What the flag gains: decode throughput over that of the reference on the same side, paired by prompt; "
            "and B's gain over A's, paired again.",
            ["config", "against", "workload", "on A", "on B", "B over A", "on B the flag"],
            [self._effect(effect) for effect in self.found.effects],
            [
                {"config": e.config, "reference": e.reference, "workload": e.workload}
                | _flat("a", e.a)
                | _flat("b", e.b)
                | _flat("change", e.change)
                for e in self.found.effects
            ],
            words=(1, 2, 6),
            nothing="Nothing to compare: no config stands against a reference on both sides.",
        )

    def _effect(self, effect: Effect) -> list[object]:
        source = f"{effect.config} against {effect.reference} ({effect.workload}): {self.command}"
        ratios = [self._ratio(found, source) for found in (effect.a, effect.b, effect.change)]
        names = [code(effect.config), code(effect.reference), common.workload_name(effect.workload)]
        return [*names, *ratios, diff.gains(effect)]

    def bytes(self) -> Html:
        """Return how many answers kept their bytes, by config."""
        totals = [(c, next(n for n in c.bytes if n.workload == ALL)) for c in self.found.configs]
        return self._table(
            "bytes",
            "Answers of B against those of A, by config. Same up to the limit: the shorter one was cut off at its own "
            "token limit and is how the longer one begins. Not attributable: A disagrees with itself. Intermittent: B "
            "does.",
            ["config", "judged", *diff.OUTCOMES],
            [
                [
                    code(c.config),
                    of(n.judged, n.prompts, source=self._records(c)),
                    *(count(k, source=f"{outcome}: {self._records(c)}") for outcome, k in n.counts.items()),
                ]
                for c, n in totals
            ],
            [{"config": c.config, "judged": n.judged, "prompts": n.prompts} | n.counts for c, n in totals],
        )

    def prompts(self) -> Html:
        """Return the outcome of each prompt under each config."""
        configs = self.found.configs
        by = [{p.id: p for p in c.prompts} for c in configs]
        return self._table(
            "prompts",
            "Each prompt under each config; the number is the first character at which the two part.",
            ["prompt", *(code(c.config) for c in configs)],
            [
                [code(key), *(self._outcome(found[key].outcome, found[key].comparison.char_index) for found in by)]
                for key in self.found.prompts
            ],
            [
                {
                    "prompt": key,
                    "config": c.config,
                    "outcome": found[key].outcome,
                    "char_index": found[key].comparison.char_index,
                    "token_index": found[key].comparison.token_index,
                }
                for key in self.found.prompts
                for c, found in zip(configs, by, strict=True)
            ],
            words=range(1, len(configs) + 1),
        )

    def _outcome(self, outcome: str, at: int | None) -> Html:
        return prose.safe(outcome) if at is None else html("{}, {}", outcome, count(at, source=self.command))

    def memory(self) -> Html:
        """Return what the servers said about KV pool and kernels."""
        rows = [
            {"config": c.config, "what": what, "a": a, "b": b}
            for c in self.found.configs
            for what, a, b in _both(diff.memory(c.memory_a), diff.memory(c.memory_b))
        ]
        return self._table(
            "memory",
            "KV pool and kernels, as the servers told it; several values are those of several starts.",
            ["config", "what", "A", "B"],
            [[code(r["config"]), r["what"], *(given(r[key], source=self.command) for key in ("a", "b"))] for r in rows],
            rows,
            words=(1,),
            nothing="Nothing: the servers told neither side’s.",
        )


def _both(a: Mapping[str, str], b: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(what, a[what], b[what]) for what in a if (a[what], b[what]) != (prose.NONE, prose.NONE)]


def _flat(name: str, found: RatioEstimate | None) -> dict[str, object]:
    interval = found.t_interval if found else None
    return {
        f"{name}_ratio": found.geometric_mean if found else None,
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
        f"{name}_prompts": found.n if found else 0,
    }


def blocks(found: Sequence[Measured]) -> list[Blocks]:
    """Return the blocks of each pair of studies."""
    return [Blocks(a, b) for a, b in pairs(found)]


def none_yet() -> Html:
    """Return what stands where no two studies can be compared."""
    return paragraph("No two studies share a model, prompts and a config yet.")
