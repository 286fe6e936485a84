"""What changed between two runs of a study: figures worked out by hand, and the committed studies."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conftest import ROOT
from recordfactory import a_launch, a_pass, a_record, answer, digest, prompt_ids
from samebytes import diff, record
from samebytes.cli import app
from samebytes.diff import Changes, Side
from samebytes.errors import UsageError
from samebytes.record import MachineInfo, PromptInfo, Record, Sampling, Versions

IDS = prompt_ids(2)
EDIT, OTHER_EDIT = IDS[:2]


def side(name: str, *records: Record) -> Side:
    return Side(name, records)


def the_first(**changes: Any) -> Side:
    return side(
        "first",
        a_record("baseline", rate=10.0, **changes),
        a_record("baseline-2", "baseline", rate=11.0, **changes),
        a_record("ngram", rate=20.0, **changes),
    )


def the_second(**changes: Any) -> Side:
    """Another machine and engine: the baseline 4 times as fast on one edit and 9 times on the other."""
    there: dict[str, Any] = {
        "machine": MachineInfo(gpu="a card", cpu="a cpu", cpu_cores=2, memory_bytes=2**33),
        "versions": Versions(vllm="0.40.0", samebytes="0", client_python="3.11", openai="2.34"),
        "launches": [a_launch("there", kv_cache_tokens=5000)],
    }
    rates = {EDIT: 40.0, OTHER_EDIT: 90.0}
    return side(
        "second",
        a_record("baseline", rate=10.0, rates=rates, texts={EDIT: "another answer"}, **there | changes),
        a_record("ngram", rate=20.0, rates=rates, **there | changes),
    )


def speeds(found: Changes, config: str, workload: str) -> Any:
    (one,) = [c for c in found.configs if c.config == config]
    (ratio,) = [r for r in one.ratios if r.workload == workload]
    return ratio


def test_speeds_are_paired_by_prompt_and_config() -> None:
    found = diff.compute(the_first(), the_second())
    ratio = speeds(found, "baseline", "code_edit")
    ours = math.sqrt(10 * 11)  # geometric mean over two starts
    assert ratio.decode.n == 2
    assert ratio.decode.geometric_mean == pytest.approx(math.sqrt(40 * 90) / ours)
    assert ratio.drift == pytest.approx(1.1)
    assert speeds(found, "ngram", "code_edit").decode.geometric_mean == pytest.approx(3.0)  # sqrt(2 * 4.5)
    same = speeds(found, "ngram", "rag")
    assert (same.decode.geometric_mean, same.called) == (pytest.approx(1.0), "no clear change")
    by = {c.config: c.speeds for c in found.configs}
    assert by["ngram"][0] == ("code_edit", 20.0, 65.0)


def test_what_the_flag_gains_is_compared_between_the_sides() -> None:
    found = diff.compute(the_first(), the_second(), ["ngram"])
    (edit,) = [e for e in found.effects if e.workload == "code_edit"]
    assert (edit.config, edit.reference) == ("ngram", "baseline"), "the reference need not be asked for"
    assert edit.a is not None
    assert edit.b is not None
    assert edit.change is not None
    assert edit.a.geometric_mean == pytest.approx(20 / math.sqrt(110))
    assert edit.b.geometric_mean == pytest.approx(1.0), "as fast as the baseline there"
    assert edit.change.geometric_mean == pytest.approx(math.sqrt(110) / 20)
    assert diff.gains(edit) == "gains less"


def test_what_differs_is_named_once_for_all_configs() -> None:
    changes = diff.compute(the_first(), the_second()).changed
    found = {c.difference.name: (c.difference.a, c.difference.b, c.configs) for c in changes}
    assert found == {"vllm": ("0.32.0", "0.40.0", ()), "gpu": (None, "a card", ())}
    there = the_second()
    there.records[1].config.argv.append("--one-more")
    changes = diff.compute(the_first(), there).changed
    assert [(c.difference.a, c.difference.b, c.configs) for c in changes if c.difference.name == "--one-more"] == [
        (None, "", ("ngram",))
    ]


def test_another_model_or_sampling_is_among_the_differences() -> None:
    there = the_second(sampling=Sampling(max_tokens=128))
    found = {
        (c.difference.kind, c.difference.name): c.difference.fair for c in diff.compute(the_first(), there).changed
    }
    assert found["sampling", "max_tokens"] is False


def outcomes(found: Changes, config: str) -> dict[str, str]:
    (one,) = [c for c in found.configs if c.config == config]
    return {p.id: p.outcome for p in one.prompts}


def test_bytes_are_judged_by_prompt_with_the_first_as_the_reference() -> None:
    found = diff.compute(the_first(), the_second())
    assert outcomes(found, "baseline") == {key: "differs" if key == EDIT else "same" for key in IDS}
    (baseline,) = [c for c in found.configs if c.config == "baseline"]
    (of_all,) = [n for n in baseline.bytes if n.workload == "all"]
    assert (of_all.judged, of_all.counts["same"], of_all.counts["differs"]) == (6, 5, 1)
    assert of_all.same_rate is not None
    assert of_all.same_rate.low == pytest.approx(0.4365, abs=1e-3)  # Wilson, 5 of 6
    unsteady = side("first", *the_first().records[:1], a_record("baseline-2", "baseline", texts={EDIT: "or so"}))
    assert outcomes(diff.compute(unsteady, the_second()), "baseline")[EDIT] == "not attributable"


@pytest.mark.parametrize(
    ("short", "reason", "outcome"),
    [("another", "length", diff.UP_TO_THE_LIMIT), ("another", "stop", "differs"), ("other", "length", "differs")],
)
def test_an_answer_cut_at_its_limit_is_the_same_up_to_there(short: str, reason: str, outcome: str) -> None:
    cut = {EDIT: answer(EDIT, short, finish_reason=reason)}
    first = side("first", *(a_record(label, "baseline", replace=cut) for label in ("baseline", "baseline-2")))
    assert outcomes(diff.compute(first, the_second()), "baseline")[EDIT] == outcome
    # the other way round the long one is cut off, and that says nothing
    long = {EDIT: answer(EDIT, "another answer", finish_reason="length")}
    first = side("first", *(a_record(label, "baseline", replace=long) for label in ("baseline", "baseline-2")))
    second = side("second", a_record("baseline", replace={EDIT: answer(EDIT, short, finish_reason=reason)}))
    assert outcomes(diff.compute(first, second), "baseline")[EDIT] == outcome


def test_only_what_both_sent_is_compared_and_the_rest_is_named() -> None:
    there = the_second()
    for found in there.records:
        found.prompts[1] = PromptInfo(id=OTHER_EDIT, workload="code_edit", sha256=digest("other bytes"))
    changes = diff.compute(the_first(), there)
    assert changes.prompts == (EDIT, *IDS[2:])
    assert speeds(changes, "ngram", "code_edit").decode.n == 1
    assert f"first sent 1 prompts that second did not: {OTHER_EDIT}" in changes.cautions


def test_a_config_that_failed_on_one_side_is_named_with_its_reason() -> None:
    failed = a_record("ngram", status="failed", reason="NotImplementedError: not here", passes=[], launches=[])
    here = the_first()
    changes = diff.compute(here, side("second", the_second().records[0], failed))
    assert [c.config for c in changes.configs] == ["baseline"]
    assert "ngram is complete in first only; second: NotImplementedError: not here" in changes.cautions


def test_the_concurrent_legs_are_compared_where_they_have_one_shape() -> None:
    def with_leg(name: str, end: float, copies: int = 1) -> Side:
        found = a_record("baseline")
        requests = [answer(key, rate=63 / (end - 0.2)) for key in IDS * copies]
        return side(name, found.model_copy(update={"passes": [*found.passes, a_pass(requests, kind="concurrent")]}))

    (one,) = diff.compute(with_leg("first", 10.0), with_leg("second", 5.0)).configs
    assert one.aggregate_tok_s == (pytest.approx(6 * 64 / 10), pytest.approx(6 * 64 / 5))
    (other,) = diff.compute(with_leg("first", 10.0), with_leg("second", 5.0, copies=2)).configs
    assert other.aggregate_tok_s is None


@pytest.mark.parametrize(
    ("there", "configs", "words"),
    [
        ([a_record("fp8")], [], "no config with a complete run in common: first has baseline, ngram; second has fp8"),
        ([a_record("ngram", ids=["rag/9"])], [], "no prompt in common (same name, same bytes): first sent code_edit/0"),
        ([a_record("ngram")], ["ngramm"], "unknown config that both have 'ngramm'. Did you mean 'ngram'? Valid: ngram"),
        (the_first().records, [], "first and second are the same records"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(there: Sequence[Record], configs: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        diff.compute(the_first(), side("second", *there), configs)
    assert words in str(caught.value)


# -- the command -------------------------------------------------------------------------------------------------------


def invoke(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["diff", *(str(word) for word in arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stdout, done.stderr


def test_the_command_reads_studies_and_folders(tmp_path: Path) -> None:
    for found in the_second().records:
        record.save(found, tmp_path / "again" / f"{found.label}.json")
    for found in the_first().records:
        record.save(found, tmp_path / "then" / f"{found.label}.json")
    code, out, _ = invoke(tmp_path / "then", tmp_path / "again", "--config", "ngram")
    assert code == 0
    assert "# again against then" in out
    assert "| ngram | code_edit | 2/2 | 20.0 | 65.0 | 3.00 |" in out
    assert "| ngram | KV pool tokens | 1,000 | 5,000 |" in out
    assert "| versions | vllm | 0.32.0 | 0.40.0 | all |" in out
    code, out, _ = invoke(tmp_path / "then", tmp_path / "again", "--json")
    assert code == 0
    assert json.loads(out)["configs"][0]["ratios"][0]["drift"] == pytest.approx(1.1)


def test_the_committed_studies_have_prompts_and_configs_in_common() -> None:
    code, out, _ = invoke("cpu-smollm2-135m", "h200-smollm2-135m")
    assert code == 0
    assert "24 prompts and 4 configs in common" in out
    assert "| versions | vllm | 0.32.0 | 0.20.0 | all |" in out
    assert "| sampling | max_tokens | 192 | 1024 | all |" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cpu-smollm2-135", "h200-smollm2-135m"], "unknown study with records 'cpu-smollm2-135'. Did you mean"),
        (["cpu-smollm2-135m", "configs"], "no records in configs"),
        (["cpu-smollm2-135m", "./results/cpu-smollm2-135m"], "are the same records"),
    ],
)
def test_a_mistake_is_one_message(arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = invoke(*arguments)
    assert (code, out) == (1, "")
    assert words in err
