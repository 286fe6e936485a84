"""Blocks of the page about the method."""

from __future__ import annotations

from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from recordfactory import a_pass, a_record, answer
from samebytes.pages import method
from samebytes.record import ClientLoad, MachineInfo


def test_differences_leave_out_the_projects_own_version(house: Path) -> None:
    other = a_record("ngram", ids=IDS, flags=["--speculative-config", "{}"])
    other.versions.git_commit = "abcdef"
    other.versions.torch = "2"
    block = text(method.differences(measured(house, [*baselines(), other])))
    assert "ngram argv --speculative-config – {}" in block
    assert "ngram versions torch – 2" in block
    assert "git_commit" not in block


def test_what_else_differs_is_counted_and_named(house: Path) -> None:
    other = a_record("ngram", ids=IDS, machine=MachineInfo(cpu="another", cpu_cores=2, memory_bytes=2**33))
    found = measured(house, [*baselines(), other, a_record("fp8", ids=IDS)])
    said = text(method.fair([found]))
    assert said.startswith("2 configs are compared with a baseline. In 1 of them something other")
    assert said.endswith("ngram in toy : cpu")
    assert text(method.fair([])).startswith("0 configs")


def test_a_client_bound_pass_is_marked_beside_its_numbers(house: Path) -> None:
    busy = a_record("ngram", ids=IDS)
    busy.passes[0].client = ClientLoad(cpu_share=0.1, lag_p99_s=0.006)
    block = text(method.checks(measured(house, [*baselines(), busy])))
    assert "ngram client-bound sequential 9 of 9" in block
    assert block.count("client-bound") == 1


def test_each_pass_says_how_it_was_checked(house: Path) -> None:
    broken = a_record("ngram", ids=IDS)
    broken.passes[0].metrics["generation_tokens"] = 1.0
    voided = a_record("fp8", ids=IDS, passes=[a_pass([answer(key) for key in IDS], voided="<the server restarted>")])
    block = text(method.checks(measured(house, [*baselines(), broken, voided])))
    assert "baseline sequential 9 of 9 3 of 3 0.10 0.0 % – – –" in block
    assert "ngram sequential 9 of 9 2 of 3" in block
    assert "&lt;the server restarted&gt;" in block
    said = text(method.conclusion([measured(house, [])]))
    assert said.startswith("4 passes over the prompts were measured in the 1 studies that are compared here. Of")
    assert "Of the sums over their requests, 11 of 12 agree" in said
    assert "Passes that were voided: 1 . Other processes used at most 0.10 CPU cores" in said
    assert method.conclusion([]) == ""


def test_a_machine_has_a_column_for_each_stack(house: Path) -> None:
    newer = a_record("ngram", ids=IDS)
    newer.versions.vllm = "0.33.0"
    block = text(method.machines([measured(house, [*baselines(), newer])]))
    assert "toy toy" in block
    assert "vLLM 0.32.0 0.33.0" in block or "vLLM 0.33.0 0.32.0" in block
    assert method.machines([]) == ""
