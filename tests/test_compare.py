from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recordfactory import a_launch, a_pass, a_record, answer, failed, prompt_ids, resumed
from samebytes import compare
from samebytes.errors import RecordError
from samebytes.record import ModelInfo, PromptInfo, Record, Sampling

# Any text that UTF-8 can hold, with much of what breaks naive comparisons.
TRICKY = ["\r\n", "\n", "\r", "e\u0301", "\u00e9", "👩‍🚀", "👩", "\u200d", "\u2028", "\x85", "\ufeff", "𝒳", "ﬁ", " "]
text = st.lists(
    st.sampled_from(TRICKY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=12
).map("".join)


def oracle(a: str, b: str) -> int | None:
    """The longest common prefix by trying every length."""
    if a == b:
        return None
    return max(i for i in range(min(len(a), len(b)) + 1) if a[:i] == b[:i])


@given(text, text, text)
@example("", "e\u0301", "\u00e9")
@example("line", "\r\n", "\n")
@example("👩", "\u200d🚀", "")
def test_divergence_is_the_oracles_on_any_unicode(shared: str, x: str, y: str) -> None:
    a, b = shared + x, shared + y
    found = compare.compare_answers(answer("rag/0", a or " "), answer("rag/0", b or " "))
    expected = oracle(a or " ", b or " ")
    assert compare.divergence(a or " ", b or " ") == expected
    assert found.char_index == expected
    if expected is None:
        assert found.cls == "same"
        assert found.byte_offset is None
        return
    raw = (a or " ").encode("utf-8")
    assert found.byte_offset is not None
    assert raw[: found.byte_offset].decode("utf-8") == (a or " ")[:expected]
    assert found.cls == ("length" if expected == min(len(a or " "), len(b or " ")) else "differs")
    assert found.token_index == expected  # the factory's tokens are code points


@given(text)
def test_an_answer_is_the_same_as_itself(a: str) -> None:
    one = answer("rag/0", a or " ")
    assert compare.compare_answers(one, one) == compare.Comparison("same", "same", "same")


def test_composed_and_decomposed_letters_differ() -> None:
    found = compare.compare_answers(answer("rag/0", "caf\u00e9"), answer("rag/0", "cafe\u0301"))
    assert (found.cls, found.char_index, found.byte_offset) == ("differs", 3, 3)


def test_byte_offset_counts_utf8_and_contexts_are_cut() -> None:
    a, b = "👩é" + "x" * 100 + "A" + "y" * 100, "👩é" + "x" * 100 + "B" + "z" * 100
    found = compare.compare_answers(answer("rag/0", a), answer("rag/0", b))
    assert (found.char_index, found.byte_offset) == (102, 106)
    assert found.context_a == "x" * 40 + "A" + "y" * 39
    assert found.context_b == "x" * 40 + "B" + "z" * 39


def test_a_strict_prefix_is_length() -> None:
    found = compare.compare_answers(answer("rag/0", "abc"), answer("rag/0", "abcd"))
    assert (found.cls, found.char_index, found.byte_offset, found.token_index) == ("length", 3, 3, 3)


def test_equal_text_from_other_tokens_is_a_class_of_its_own() -> None:
    one, two = answer("rag/0", "abc", token_ids=[1, 2, 3]), answer("rag/0", "abc", token_ids=[1, 23])
    found = compare.compare_answers(one, two)
    assert (found.cls, found.char_index, found.token_index, found.same_bytes) == (
        "same bytes, other tokens",
        None,
        1,
        True,
    )


def test_token_index_is_null_where_one_side_has_no_tokens() -> None:
    found = compare.compare_answers(answer("rag/0", "abc", token_ids=None), answer("rag/0", "abd"))
    assert found.token_index is None
    assert found.char_index == 2


def test_reasoning_is_compared_apart_from_text() -> None:
    one, two = answer("rag/0", "yes", reasoning="since A"), answer("rag/0", "yes", reasoning="since B")
    found = compare.compare_answers(one, two)
    assert (found.cls, found.text, found.reasoning, found.part, found.char_index) == (
        "differs",
        "same",
        "differs",
        "reasoning",
        6,
    )
    moved = compare.compare_answers(answer("rag/0", "bc", reasoning="a"), answer("rag/0", "c", reasoning="ab"))
    assert moved.cls == "differs", "the same characters, cut elsewhere, are not the same answer"


def test_where_both_parts_differ_the_reasoning_came_first() -> None:
    found = compare.compare_answers(answer("rag/0", "yes", reasoning="A"), answer("rag/0", "no", reasoning="B"))
    assert (found.part, found.context_a, found.text) == ("reasoning", "A", "differs")


def test_half_a_surrogate_pair_is_compared_too() -> None:
    one = answer("rag/0").model_copy(update={"text": "a\ud83d!"})
    found = compare.compare_answers(one, one.model_copy(update={"text": "a\ud83d?"}))
    assert (found.char_index, found.byte_offset) == (2, 4)


@pytest.mark.parametrize("status", ["error", "truncated", "timeout"])
def test_a_failure_is_missing_even_where_its_text_is_equal(status: str) -> None:
    one = answer("rag/0", "abc")
    assert compare.compare_answers(one, one.model_copy(update={"status": status})).cls == "missing"
    assert compare.compare_answers(None, one).cls == "missing"


def verdict(comparison: compare.RecordComparison, key: str) -> compare.PromptVerdict:
    return next(p for p in comparison.prompts if p.id == key)


def baselines(**second: str) -> tuple[Record, Record]:
    texts = {key.replace("__", "/"): t for key, t in second.items()}
    return a_record("baseline"), a_record("baseline-2", "baseline", texts=texts)


def test_control_agrees_and_config_differs() -> None:
    a, control = baselines()
    b = a_record("fp8", texts={"rag/1": "the answer to rag/2"})
    found = compare.compare_records(a, b, control)
    one = verdict(found, "rag/1")
    assert (one.verdict, one.control, one.repeat) == ("differs", "agrees", "none")
    assert one.comparison.char_index == len("the answer to rag/")
    assert found.counts["same"] == 5
    assert found.counts["differs"] == 1
    assert found.strict_code() == 10


def test_control_disagrees_so_the_prompt_is_not_attributable() -> None:
    a, control = baselines(rag__1="something else")
    for text in ("the answer to rag/1", "something else", "a third thing"):
        found = compare.compare_records(a, a_record("ngram", texts={"rag/1": text}), control)
        one = verdict(found, "rag/1")
        assert (one.verdict, one.control) == ("not attributable", "disagrees")
        assert one.control_comparison is not None
        assert one.control_comparison.char_index == 0
        assert found.strict_code() == 11


def test_candidates_repeat_disagrees_so_it_is_intermittent() -> None:
    a, control = baselines()
    runs = [a_record("ngram"), a_record("ngram-2", "ngram", texts={"creative/0": "once"})]
    found = compare.compare_groups([a, control], runs)
    one = verdict(found, "creative/0")
    assert (one.verdict, one.repeat) == ("intermittent", "disagrees")
    assert one.comparison.context_b == "once", "the pair shown is the one that differs"
    assert verdict(found, "creative/1").repeat == "agrees"
    assert found.strict_code() == 11


def test_without_a_control_a_difference_is_not_put_down_to_the_config() -> None:
    found = compare.compare_records(a_record("baseline"), a_record("fp8", texts={"rag/0": "x"}))
    assert verdict(found, "rag/0").verdict == "differs (no control)"
    assert found.baseline_starts == 1
    assert found.strict_code() == 11
    assert compare.compare_records(a_record("baseline"), a_record("ngram")).strict_code() == 0


def test_an_attributable_difference_outweighs_the_rest() -> None:
    a, control = baselines(rag__1="something else")
    found = compare.compare_records(a, a_record("fp8", texts={"rag/0": "x"}), control)
    assert found.counts["differs"] == 1
    assert found.counts["not attributable"] == 1
    assert found.strict_code() == 10


def test_a_resumed_baseline_is_no_control() -> None:
    a, cut = a_record("baseline"), resumed("baseline-2", "baseline")
    found = compare.compare_records(a, a_record("fp8", texts={"rag/0": "x"}), cut)
    assert found.baseline_starts == 1
    assert verdict(found, "rag/0").verdict == "differs (no control)"
    # but where it disagrees, that is seen
    cut = resumed("baseline-2", "baseline", texts={"rag/0": "y"})
    found = compare.compare_records(a, a_record("fp8", texts={"rag/0": "x"}), cut)
    assert verdict(found, "rag/0").verdict == "not attributable"


def test_a_copy_of_the_baseline_is_no_control() -> None:
    a = a_record("baseline")
    copy = a.model_copy(update={"label": "baseline-2"})
    found = compare.compare_records(a, a_record("fp8", texts={"rag/0": "x"}), copy)
    assert verdict(found, "rag/0").verdict == "differs (no control)"


@pytest.mark.parametrize(("one", "two", "control"), [(1.0, 2.0, "agrees"), (1.0, 1.0, "none"), (None, None, "none")])
def test_running_servers_are_told_apart_by_their_process(one: float | None, two: float | None, control: str) -> None:
    records = []
    for label, start in (("baseline", one), ("baseline-2", two)):
        launch = a_launch("m", started_by="base_url", base_url="http://127.0.0.1:8000", process_start_time=start)
        launch.started = f"2026-11-29T1{len(records)}:00:00Z"
        records.append(a_record(label, "baseline", launches=[launch]))
    found = compare.compare_groups(records, [a_record("ngram")])
    assert {p.control for p in found.prompts} == {control}


def test_a_voided_pass_counts_for_nothing() -> None:
    ids = prompt_ids()
    record = a_record("baseline-2", "baseline")
    bad = a_pass([answer(key, "noise") for key in ids], voided="the host was busy")
    record.passes = [record.passes[0], bad]
    found = compare.compare_records(a_record("baseline"), a_record("ngram"), record)
    assert found.counts["same"] == len(ids)


def test_one_failed_request_leaves_its_prompt_out_of_both_sides() -> None:
    ids = prompt_ids(8)
    a, control = a_record("baseline", ids=ids), a_record("baseline-2", "baseline", ids=ids)
    b = a_record("ngram", ids=ids, replace={"rag/3": failed("rag/3")})
    found = compare.compare_records(a, b, control)
    assert verdict(found, "rag/3").verdict == "missing"
    assert (found.judged, len(found.prompts), found.counts["same"]) == (23, 24, 23)
    assert found.strict_code() == 12
    assert found.strict_code(allow_failures=True) == 0
    # a failure on the baseline's side alike
    assert verdict(compare.compare_records(b, a, control), "rag/3").verdict == "missing"


def test_with_no_answer_left_there_is_nothing_to_allow() -> None:
    ids = ["rag/0"]
    b = a_record("ngram", ids=ids, replace={"rag/0": failed("rag/0")})
    assert compare.compare_records(a_record("baseline", ids=ids), b).strict_code(allow_failures=True) == 12


def test_a_prompt_that_was_never_sent_is_missing() -> None:
    b = a_record("ngram")
    b.passes = [a_pass(b.passes[0].requests[:-1])]
    assert verdict(compare.compare_records(a_record("baseline"), b), "creative/1").verdict == "missing"


def test_an_answer_belongs_to_the_server_start_that_gave_it() -> None:
    record = a_record("baseline", ids=["rag/0"])
    record.launches = [*record.launches, a_launch("second", 1)]
    record.passes = [*record.passes, a_pass([answer("rag/0")], launch=1, voided="the host was busy")]
    assert compare.sequential_answers(record)["rag/0"].start == compare.start_of(record, 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": ModelInfo(id="other/model")}, r"model\.id \(some/model / other/model\)"),
        ({"model": ModelInfo(id="some/model", revision="abd")}, r"model\.revision \(abc / abd\)"),
        ({"model": ModelInfo(id="some/model", sha256="01")}, r"model\.sha256 \(00 / 01\)"),
        ({"model": ModelInfo(id="some/model", weight_bytes=11)}, r"model\.weight_bytes \(10 / 11\)"),
        ({"sampling": Sampling(max_tokens=48)}, r"sampling\.max_tokens \(64 / 48\)"),
        ({"sampling": Sampling(max_tokens=64, temperature=0.7)}, r"sampling\.temperature \(0\.0 / 0\.7\)"),
        ({"sampling": Sampling(max_tokens=64, seed=1)}, r"sampling\.seed"),
        ({"sampling": Sampling(max_tokens=64, thinking=True)}, r"sampling\.thinking"),
        (
            {"prompts": [PromptInfo(id=key, workload=key.split("/")[0], sha256="0") for key in prompt_ids()]},
            r"prompt code_edit/0 \(sha256\).*prompt rag/1 \(sha256\)",
        ),
    ],
)
def test_records_that_asked_another_thing_are_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(RecordError, match=named):
        compare.compare_records(a_record("baseline"), a_record("ngram", **change))


def test_all_differing_fields_are_named_at_once() -> None:
    other = a_record("ngram", ids=prompt_ids(1), sampling=Sampling(max_tokens=1, seed=3))
    with pytest.raises(RecordError) as caught:
        compare.comparable(a_record("baseline"), other)
    for name in ("sampling.seed", "sampling.max_tokens", "prompt rag/1 (only in baseline)"):
        assert name in str(caught.value)


def test_what_a_record_does_not_say_is_unproved_not_different() -> None:
    unknown = a_record("ngram", model=ModelInfo(id="some/model", revision="abc"))
    assert compare.comparable(a_record("baseline"), unknown) == ("model.sha256", "model.weight_bytes")
    seen = a_record("ngram", sampling=Sampling(max_tokens=64, token_ids=True, chunk_usage=False))
    assert compare.comparable(a_record("baseline"), seen) == ()


def test_a_run_that_did_not_end_is_refused_with_its_reason() -> None:
    broken = a_record("fp8", status="failed", reason="FP8 KV cache on CPU requires x86 with AVX-512 or AMX.")
    with pytest.raises(RecordError, match="status is failed: FP8 KV cache"):
        compare.compare_records(a_record("baseline"), broken)
    with pytest.raises(RecordError, match="status is partial"):
        compare.compare_records(a_record("baseline", status="partial"), a_record("ngram"))


def test_concurrent_answers_are_compared_copy_by_copy_and_apart() -> None:
    def record(label: str, second: str) -> Record:
        made = a_record(label, ids=["rag/0", "creative/0"])
        copies = [answer("rag/0", copy_index=0), answer("rag/0", second, copy_index=1)]
        made.passes = [*made.passes, a_pass(copies, kind="concurrent", dup=2)]
        return made

    a, b = record("baseline", "under load"), record("ngram", "under the load")
    assert compare.compare_records(a, b).strict_code() == 0
    found = compare.compare_concurrent([a], [b])
    assert [(p.id, p.verdict) for p in found.prompts] == [("rag/0#0", "same"), ("rag/0#1", "differs (no control)")]
    with pytest.raises(RecordError, match="ngram cannot be compared: it has no such pass"):
        compare.compare_concurrent([a], [a_record("ngram", ids=["rag/0", "creative/0"])])
