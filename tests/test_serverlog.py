"""Facts and root causes out of real logs, and the forms that other versions write."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebytes.serverlog import GIB, LINE_LIMIT, excerpt, facts, neutral, root_cause, tail

FIXTURES = Path(__file__).parent / "fixtures"


def log(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


GPU_BASELINE = log("vllm-0.20.0-h200/baseline.log")
GPU_NGRAM = log("vllm-0.20.0-h200/ngram.log")
GPU_FP8 = log("vllm-0.20.0-h200/fp8.log")
GPU_REFUSED = log("vllm-0.20.0-h200/fp8-float16-refused.log")
CPU_BASELINE = log("vllm-0.32.0-cpu/baseline.log")
CPU_NGRAM = log("vllm-0.32.0-cpu/ngram.log")
CPU_REFUSED = log("vllm-0.32.0-cpu/fp8-unsupported.log")


def test_facts_of_a_gpu_baseline() -> None:
    found = facts(GPU_BASELINE)
    assert found.kv_cache_tokens == [1_919_312]
    assert found.max_concurrency == [468.58]
    assert found.kv_cache_bytes == round(41.18 * GIB)
    assert found.graph_bytes == round(0.10 * GIB)
    assert found.attention_backend == "FLASH_ATTN (FlashAttention 3)"
    assert found.async_scheduling is True
    assert found.vllm_version == "0.20.0"
    assert found.max_num_scheduled_tokens is None
    assert found.model_bytes == round(0.25 * GIB)


def test_facts_that_a_config_changes() -> None:
    assert facts(GPU_NGRAM).async_scheduling is False
    assert facts(GPU_NGRAM).graph_bytes == round(0.24 * GIB)
    assert facts(GPU_FP8).kv_cache_tokens == [3_838_640]
    assert facts(GPU_FP8).kv_cache_bytes == facts(GPU_BASELINE).kv_cache_bytes


def test_facts_of_a_cpu_server() -> None:
    found = facts(CPU_BASELINE)
    assert (found.kv_cache_tokens, found.max_concurrency) == ([93_184], [22.75])
    assert found.kv_cache_bytes == 2 * GIB
    assert found.vllm_version == "0.32.0"
    # its log says nothing of these
    assert found.async_scheduling is None
    assert found.attention_backend is None
    assert found.graph_bytes is None
    assert found.model_bytes is None


def test_a_cpu_server_that_speculates_says_that_scheduling_is_synchronous() -> None:
    assert facts(CPU_NGRAM).async_scheduling is False
    assert facts(CPU_NGRAM).max_num_scheduled_tokens == 2048


def test_scheduling_flag_among_the_arguments() -> None:
    line = "(APIServer pid=1) INFO 11-29 18:38:13 [api_utils.py:286] non-default args: {{'port': 1, {}'x': 2}}"
    assert facts(line.format("'async_scheduling': False, ")).async_scheduling is False
    assert facts(line.format("'async_scheduling': True, ")).async_scheduling is None  # wanted is not granted


def test_no_facts() -> None:
    empty = facts("")
    assert set(vars(empty).values()) == {None}


@pytest.mark.parametrize(
    ("text", "tokens", "concurrency"),
    [
        (
            (
                "INFO 02-25 10:00:00 [kv_cache_utils.py:537] GPU KV cache size: 2,042,016 tokens\n"
                "INFO 02-25 10:00:00 [kv_cache_utils.py:540] Maximum concurrency for 2,048 tokens per request: 997.08x"
            ),
            [2_042_016],
            [997.08],
        ),
        (
            "GPU KV cache size: 456,320 tokens, Maximum concurrency for 16,384 tokens per request: 27.85x",
            [456_320],
            [27.85],
        ),
        ("CPU KV cache size: 65,536 tokens, Maximum concurrency for 8,192 tokens per request: 8.00x", [65_536], [8.0]),
        ("GPU KV cache size: 33760 tokens", [33_760], None),
        (
            (
                "INFO 01-10 10:00:00 executor_base.py:110] # GPU blocks: 1952, # CPU blocks: 2048\n"
                "INFO 01-10 10:00:00 executor_base.py:115] Maximum concurrency for 20000 tokens per request: 1.56x"
            ),
            [31_232],
            [1.56],
        ),
        ("Multiplying the GPU KV cache size by the cp_world_size 2.", None, None),
        ("Engine 000: Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.4%", None, None),
        ("", None, None),
    ],
    ids=["two lines", "one line", "cpu", "no commas", "v0", "context parallel", "usage", "none"],
)
def test_kv_pool_in_every_form(text: str, tokens: list[int] | None, concurrency: list[float] | None) -> None:
    found = facts(text)
    assert (found.kv_cache_tokens, found.max_concurrency) == (tokens, concurrency)


def test_v0_blocks_of_another_size() -> None:
    assert facts("# GPU blocks: 100, # CPU blocks: 5", block_size=32).kv_cache_tokens == [3200]


def test_two_engines_are_a_list_and_two_ranks_of_one_are_not() -> None:
    line = "({} pid={}) INFO 11-29 18:57:08 [kv_cache_utils.py:1] GPU KV cache size: {} tokens\n"
    engines = line.format("EngineCore_DP0", 1, "1,000") + line.format("EngineCore_DP1", 2, "2,000")
    assert facts(engines).kv_cache_tokens == [1000, 2000]
    ranks = line.format("EngineCore_0", 1, "2,000") + line.format("EngineCore_0", 1, "1,990")
    assert facts(ranks).kv_cache_tokens == [1990]


def test_colours_do_not_hide_a_line() -> None:
    coloured = (
        "\x1b[0;36m(EngineCore pid=9)\x1b[0;0m INFO 11-29 18:57:08 [k.py:1] \x1b[1mGPU KV cache size: 5,000 tokens"
    )
    assert facts(coloured).kv_cache_tokens == [5000]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].", "FLASH_ATTN"),
        ("Using FLASHINFER attention backend out of potential backends: ['FLASHINFER'].", "FLASHINFER"),
        ("Using AttentionBackendEnum.TRITON_ATTN backend.", "TRITON_ATTN"),
        ("Using Flash Attention backend on V1 engine.", "Flash Attention"),
        ("Using FLASH_ATTN MLA prefill backend.", None),
        ("Using AttentionBackendEnum.TORCH_SDPA for MMEncoderAttention.", None),
        ("Using 'MARLIN' WNA16 MoE backend.", None),
    ],
)
def test_attention_backend(line: str, name: str | None) -> None:
    assert facts(line).attention_backend == name


def test_excerpt_keeps_what_the_facts_came_from() -> None:
    for text in (GPU_BASELINE, GPU_NGRAM, GPU_FP8, CPU_BASELINE, CPU_NGRAM):
        kept = excerpt(text)
        assert facts("\n".join(kept)) == facts(text)
        assert len(kept) < 40
        assert max(map(len, kept)) <= LINE_LIMIT
        assert len(set(kept)) == len(kept)
        assert not any("Route:" in line or "pid=" in line for line in kept)
    assert any(line.startswith("WARNING [vllm.py:815] Async scheduling not supported") for line in excerpt(GPU_NGRAM))


def test_excerpt_of_a_failed_start() -> None:
    assert "INFO [cuda.py:368] Using FLASH_ATTN attention backend" in "\n".join(excerpt(GPU_REFUSED))


def test_neutral() -> None:
    roots = "/" + "root"  # the home of root, on any machine
    assert neutral(f"cache /home/anna/.cache/vllm and {roots}/x, '/Users/bob'") == "cache ~/.cache/vllm and ~/x, '~'"
    assert neutral("/rooted/home") == "/rooted/home"
    assert neutral("{'api_key': ['pass'], 'x': 1} hf_abcdefghijk") == "{'api_key': ***, 'x': 1} ***"
    long = neutral("x" * 1000)
    assert len(long) == LINE_LIMIT
    assert long.endswith("…")


def test_tail() -> None:
    assert tail("a\n\n 10%\r 20%\rb\n", 2) == "20%\nb"


# -- root causes -------------------------------------------------------------------------------------------------------


def test_the_worker_knows_why_and_the_other_three_tracebacks_do_not() -> None:
    assert root_cause(CPU_REFUSED) == "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX."


def test_the_engine_core_knows_why() -> None:
    assert root_cause(GPU_REFUSED) == (
        "RuntimeError: For FP16/BF16 input, output must have the same dtype as inputs. "
        "For FP8 input, output must have dtype BF16"
    )


def test_the_cause_is_found_wherever_the_log_was_cut() -> None:
    """The log may be read while the tail of it is still being written."""
    lines = CPU_REFUSED.split("\n")
    told = next(i for i, line in enumerate(lines) if "NotImplementedError:" in line)
    for end in range(told + 1, len(lines) + 1):
        assert root_cause("\n".join(lines[:end])).startswith("NotImplementedError: FP8 KV cache"), end


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n'


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "usage: api_server.py [options]\napi_server.py: error: unrecognized arguments: --foo\n",
            "api_server.py: error: unrecognized arguments: --foo",
        ),
        (
            (
                "usage: vllm serve [model_tag] [options]\n"
                "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', 'fp8')\n"
            ),
            "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', 'fp8')",
        ),
        ("/env/bin/python: No module named vllm\n", "/env/bin/python: No module named vllm"),
        (
            (
                "/env/bin/python3: Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
                "(ModuleNotFoundError: No module named 'vllm')\n"
            ),
            (
                "/env/bin/python3: Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
                "(ModuleNotFoundError: No module named 'vllm')"
            ),
        ),
        (TRACEBACK + "ModuleNotFoundError: No module named 'torch'\n", "ModuleNotFoundError: No module named 'torch'"),
        (TRACEBACK + "OSError: [Errno 98] Address already in use\n", "OSError: [Errno 98] Address already in use"),
        (
            (
                "INFO:     Started server process [1]\n"
                "ERROR:    [Errno 98] error while attempting to bind on address ('::', 81): address already in use\n"
            ),
            "[Errno 98] error while attempting to bind on address ('::', 81): address already in use",
        ),
        (
            TRACEBACK
            + "ValueError: Free memory on device cuda:0 (34.34/121.63 GiB) on startup is less than desired GPU "
            "memory utilization (0.8, 97.3 GiB). Decrease GPU memory utilization.\n",
            (
                "ValueError: Free memory on device cuda:0 (34.34/121.63 GiB) on startup is less than desired GPU "
                "memory utilization (0.8, 97.3 GiB). Decrease GPU memory utilization."
            ),
        ),
        (
            "(EngineCore pid=7) ERROR 11-29 19:15:07 [core.py:1136] Traceback (most recent call last):\n"
            '(EngineCore pid=7) ERROR 11-29 19:15:07 [core.py:1136]   File "x.py", line 1, in f\n'
            "(EngineCore pid=7) ERROR 11-29 19:15:07 [core.py:1136] torch.OutOfMemoryError: CUDA out of memory. "
            "Tried to allocate 2.00 GiB.\n"
            "(APIServer pid=6) " + TRACEBACK.replace("\n", "\n(APIServer pid=6) ") + "RuntimeError: Engine core "
            "initialization failed. See root cause above. Failed core proc(s): {}\n",
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ),
        (
            (
                "(APIServer pid=6) Traceback (most recent call last):\n"
                '(APIServer pid=6)   File "x.py", line 1, in f\n'
                "(APIServer pid=6) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
                "(APIServer pid=6)   Value error, Invalid repository ID or local directory specified: 'nowhere'.\n"
                "(APIServer pid=6) Please verify the following requirements: [type=value_error, "
                "input_value=ArgsKwargs((), {'model': 'x', 'y': [1]}), input_type=ArgsKwargs]\n"
                "(APIServer pid=6)     For further information visit https://errors.pydantic.dev/2.12/v/value_error\n"
            ),
            (
                "ValidationError: 1 validation error for ModelConfig Value error, Invalid repository ID or local "
                "directory specified: 'nowhere'. Please verify the following requirements:"
            ),
        ),
        (TRACEBACK + "AssertionError\n", "AssertionError"),
    ],
    ids=["argument", "choice", "module", "spec", "import", "port", "uvicorn", "memory", "oom", "pydantic", "bare"],
)
def test_root_cause(text: str, cause: str) -> None:
    assert root_cause(text, 1) == cause


def test_of_a_chain_the_last_is_the_one_to_tell() -> None:
    chain = (
        TRACEBACK
        + "HTTPError: 404 Client Error\n\nThe above exception was the direct cause of the following exception:\n\n"
        + TRACEBACK
        + "OSError: no/model is not a local folder and is not a valid model identifier\n"
    )
    assert root_cause(chain) == "OSError: no/model is not a local folder and is not a valid model identifier"


def test_of_a_chain_that_ends_in_a_wrapper_the_one_before() -> None:
    chain = (
        TRACEBACK
        + "ValueError: the reason\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + TRACEBACK
        + "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert root_cause(chain) == "ValueError: the reason"


def test_a_worker_counts_before_an_earlier_engine_core() -> None:
    text = (
        "(EngineCore pid=1) Traceback (most recent call last):\n(EngineCore pid=1)   File\n"
        "(EngineCore pid=1) TimeoutError: no answer\n"
        "(Worker_TP1 pid=2) Traceback (most recent call last):\n(Worker_TP1 pid=2)   File\n"
        "(Worker_TP1 pid=2) ValueError: the reason\n"
    )
    assert root_cause(text) == "ValueError: the reason"


def test_a_warning_with_a_traceback_is_not_the_cause() -> None:
    text = (
        "WARNING 11-29 19:15:07 [x.py:1] Traceback (most recent call last):\n"
        "WARNING 11-29 19:15:07 [x.py:1]   File\nWARNING 11-29 19:15:07 [x.py:1] ImportError: no flashinfer\n"
    )
    assert root_cause(text + TRACEBACK + "ValueError: the reason\n") == "ValueError: the reason"
    assert "ImportError" not in root_cause(text, 1).splitlines()[0]


def test_only_wrappers_are_better_than_nothing() -> None:
    text = TRACEBACK + "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore_0': -9}\n"
    assert root_cause(text, 1) == (
        "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore_0': -9}"
    )


def test_a_worker_killed_from_outside() -> None:
    text = (
        "(EngineCore pid=1) ERROR 11-29 19:04:40 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
        "unexpectedly (exit code: -9), shutting down executor.\n"
        + TRACEBACK
        + "RuntimeError: Engine core initialization failed.\n"
    )
    assert root_cause(text, 1) == "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"


def test_a_crash_of_the_interpreter() -> None:
    assert root_cause("Fatal Python error: Illegal instruction\n\nThread 0x1:\n", -4) == (
        "Fatal Python error: Illegal instruction"
    )


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        (-9, "was killed by SIGKILL"),
        (-4, "was killed by SIGILL"),
        (3, "exited with code 3"),
        (None, "stopped"),
        (-99, "was killed by signal 99"),
    ],
)
def test_without_a_cause_the_ending_and_the_last_lines(code: int | None, ending: str) -> None:
    cause = root_cause("INFO one\nINFO two\n", code)
    assert cause == f"the engine {ending} without naming a cause; last log lines:\nINFO one\nINFO two"
    assert root_cause("", code) == f"the engine {ending} without naming a cause; its log is empty"


def test_an_ordinary_end_is_no_crash() -> None:
    assert root_cause(GPU_BASELINE, -15).startswith("the engine was killed by SIGTERM without naming a cause")
    assert "EngineDeadError" in root_cause(CPU_BASELINE, 0)


def test_an_engine_killed_while_it_streams_is_dead_and_not_a_stream_that_failed() -> None:
    # vLLM 0.32.0 on the CPU, SIGKILL of the engine core
    where = "(APIServer pid=1) ERROR 11-29 21:49:54"
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)"
    trace = "Traceback (most recent call last):"
    log = "\n".join(
        f"{where} [{source}] {text}"
        for source, head in (
            ("async_llm.py:906", "AsyncLLM output_handler failed."),
            ("serving.py:929", "Error in chat completion stream generator."),
        )
        for text in (head, trace, '  File "a.py", line 1, in f', dead)
    )
    assert root_cause(log, 0) == dead.rpartition(".exceptions.")[2]


def test_the_kernel_of_packed_weights_and_a_pool_of_a_given_size() -> None:
    found = facts(GPU_REFUSED)
    assert found.linear_kernel == "MacheteLinearKernel"
    assert found.model_bytes == round(18.47 * GIB)
    assert any("Using MacheteLinearKernel for AWQMarlinLinearMethod" in line for line in excerpt(GPU_REFUSED))
    # the words of vLLM 0.20.0, gpu_worker.py
    given = "Initial free memory 139.2 GiB, reserved 8.24 GiB memory for KV Cache as specified by kv_cache_memory_bytes"
    assert facts(f"INFO 11-29 19:13:32 [gpu_worker.py:361] {given} config").kv_cache_bytes == round(8.24 * GIB)
    assert facts("").linear_kernel is None
