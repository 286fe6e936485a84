from __future__ import annotations

from recordfactory import a_record
from samebytes.fairness import Difference, differences, options
from samebytes.record import MachineInfo, Versions


def test_options_without_what_each_run_sets() -> None:
    module = [
        "python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "cache/model",
        "--port=8123",
        "--seed",
        "0",
    ]
    console = [
        "vllm",
        "serve",
        "org/model",
        "--seed=0",
        "--served-model-name",
        "sb-1",
        "--port",
        "9",
        "--enforce-eager",
    ]
    assert options(module) == {"--seed": "0"}
    assert options(console) == {"--seed": "0", "--enforce-eager": ""}


def test_options_take_several_values_and_the_last_of_two() -> None:
    assert options(["--lora-modules", "a=b", "c=d", "--seed", "1", "--seed", "2"]) == {
        "--lora-modules": "a=b c=d",
        "--seed": "2",
    }


def test_two_starts_of_one_config_do_not_differ() -> None:
    assert differences(a_record("baseline"), a_record("baseline-2", "baseline")) == ()


def test_the_flag_under_test_is_the_only_difference() -> None:
    found = differences(a_record("baseline"), a_record("fp8", flags=["--kv-cache-dtype", "fp8"], env={"A": "1"}))
    assert found == (
        Difference("argv", "--kv-cache-dtype", None, "fp8", fair=True),
        Difference("env", "A", None, "1", fair=True),
    )


def test_another_machine_or_version_is_not_fair_and_another_commit_is() -> None:
    a = a_record("baseline", versions=Versions(vllm="0.20.0", samebytes="0", client_python="3.11", openai="2.34"))
    b = a_record(
        "ngram",
        machine=MachineInfo(cpu="a cpu", cpu_cores=2, memory_bytes=2**33, gpu="a gpu", cpu_isa=["avx2", "avx512f"]),
        versions=Versions(vllm="0.20.1", samebytes="0", client_python="3.11", openai="2.34", git_commit="abc"),
    )
    assert {(d.kind, d.name, d.b, d.fair) for d in differences(a, b)} == {
        ("versions", "vllm", "0.20.1", False),
        ("versions", "git_commit", "abc", True),
        ("machine", "gpu", "a gpu", False),
        ("machine", "cpu_isa", "avx2 avx512f", False),
    }
