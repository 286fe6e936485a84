from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from samebytes import paths, settings
from samebytes.errors import UsageError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project of its own: one config, one study."""
    for folder in ("configs", "studies", "workloads"):
        (tmp_path / folder).mkdir()
    (tmp_path / "_config.yml").write_text("title: test\n")
    (tmp_path / "configs" / "baseline.yaml").write_text("why: base\n")
    (tmp_path / "studies" / "quick.yaml").write_text(
        "title: t\nmodel: m\nmax_tokens: 8\nflags: {seed: 0, dtype: bfloat16}\nruns: [{config: baseline}]\n"
    )
    monkeypatch.setenv("SAMEBYTES_ROOT", str(tmp_path))
    return tmp_path


def test_every_committed_config_and_study_is_valid() -> None:
    for name in settings.names(paths.configs()):
        assert settings.config(name).why
    for name in settings.names(paths.studies()):
        assert settings.study(name).runs


def test_ngram_has_the_articles_flags() -> None:
    assert settings.arguments(settings.config("ngram").flags) == [
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}',
    ]
    assert settings.arguments(settings.config("fp8").flags) == ["--kv-cache-dtype", "fp8"]


def test_the_articles_study_has_the_articles_flags() -> None:
    study = settings.study("rtx5090-qwen3-32b-awq")
    assert study.model == "Qwen/Qwen3-32B-AWQ"
    assert settings.arguments(study.flags) == [
        *["--gpu-memory-utilization", "0.9", "--max-model-len", "16384", "--max-num-seqs", "32", "--seed", "0"],
        *["--no-enable-prefix-caching", "--no-enable-log-requests"],
    ]


@pytest.mark.parametrize("name", ["baseline_batch_invariant", "ngram_batch_invariant"])
def test_batch_invariant_configs_also_switch_async_scheduling_off(name: str) -> None:
    config = settings.config(name)
    assert config.env == {"VLLM_BATCH_INVARIANT": "1"}
    assert config.flags["no-async-scheduling"] is True


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"config": "ngramm"}, ["unknown config 'ngramm'", "Did you mean 'ngram'?", "baseline", "fp8"]),
        ({"confg": "ngram"}, ["unknown parameter 'confg'", "Did you mean 'config'?", "max_tokens"]),
        ({"study": "qick"}, ["unknown study 'qick'", "Did you mean 'quick'?", "cpu-smollm2-135m"]),
        ({"limit": "abc"}, ["'limit' must be a whole number, got 'abc' of type str"]),
        ({"limit": 1000.0}, ["'limit' must be a whole number, got 1000.0 of type float"]),
        ({"limit": True}, ["'limit' must be a whole number, got True"]),
        ({"label": 20261129}, ["'label' must be text, got 20261129", "-r label"]),
        ({"limit": -1}, ["limit must not be negative, got -1"]),
        ({"port": 70000}, ["port must be at most 65535"]),
        ({"label": "a/b"}, ["label 'a/b' must be letters"]),
        ({"label": "ngram", "config": "baseline"}, ["label 'ngram' belongs to config 'ngram'"]),
        ({"base_url": "localhost:80"}, ["base_url must start with http://"]),
        ({"dup": 4}, ["dup needs a concurrent leg"]),
        ({"workloads": "code_edt,rag"}, ["unknown workload 'code_edt'", "Did you mean 'code_edit'?", "creative"]),
        ({"config": "../studies/quick"}, ["unknown config"]),
    ],
)
def test_a_wrong_parameter_is_named_with_the_valid_choices(parameters: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        settings.plan(parameters)
    for word in words:
        assert word in str(caught.value)


def test_a_plan_takes_what_is_left_out_from_the_study() -> None:
    plan = settings.plan({"config": "fp8", "study": "h200-smollm2-135m"})
    assert (plan.label, plan.max_tokens, plan.limit, plan.port) == ("fp8", 1024, None, None)
    assert plan.leg == settings.Leg(concurrency=16, dup=4, workloads=["code_edit", "rag"])
    assert plan.record_path == paths.results() / "h200-smollm2-135m" / "fp8.json"
    assert settings.plan({"config": "fp8", "study": "h200-smollm2-135m", "concurrency": 1}).leg is None
    repeat = settings.plan({"config": "fp8", "study": "h200-smollm2-135m", "label": "fp8-2"})
    assert repeat.leg is None


def test_base_url_may_name_the_api_or_the_server() -> None:
    assert settings.plan({"base_url": "http://h:1/v1/"}).base_url == "http://h:1"
    assert settings.plan({"base_url": "http://h:1"}).base_url == "http://h:1"


def test_repeats_get_labels_and_may_have_their_own(project: Path) -> None:
    (project / "studies" / "s.yaml").write_text(
        "title: t\nmodel: m\nmax_tokens: 8\nruns: [{config: baseline}, {config: baseline}, "
        "{config: baseline, label: third}]\n"
    )
    assert [run.label for run in settings.study("s").runs] == ["baseline", "baseline-2", "third"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title: t\nmodel: m\nmax_tokens: 8\nrun: []\nruns: [{config: baseline}]\n", ["unknown key 'run'", "'runs'"]),
        (
            "title: t\nmodel: m\nmax_tokens: 8\nruns: [{config: baseline, concurency: 4}]\n",
            ["unknown key 'runs.0.concurency'. Did you mean 'concurrent'? Valid: concurrent, config, label"],
        ),
        (
            "title: t\nmodel: m\nmax_tokens: 8\nruns: [{config: baseline}, {confg: baseline}]\n",
            ["unknown key 'runs.1.confg'. Did you mean 'config'? Valid: concurrent, config, label"],
        ),
        (
            "title: t\nmodel: m\nmax_tokens: 8\nruns: [{config: baseline, concurrent: {concurency: 4}}]\n",
            ["'runs.0.concurrent.concurency'. Did you mean 'concurrency'? Valid: concurrency, dup, workloads"],
        ),
        ("title: t\nmodel: m\nmax_tokens: 8\nruns: [{config: base}]\n", ["unknown config 'base'", "baseline"]),
        ("title: t\nmodel: m\nmax_token: 8\nruns: [{config: baseline}]\n", ["'max_token'", "mean 'max_tokens'"]),
        ("title: t\nmodel: m\nmax_tokens: 8\nruns: []\n", ["runs"]),
        (
            "title: t\nmodel: m\nmax_tokens: 8\nworkloads: []\nruns: [{config: baseline}]\n",
            ["s.yaml: workloads: names none", "Valid: code_edit, rag"],
        ),
        (
            "title: t\nmodel: m\nmax_tokens: 8\nworkloads: [rag, code_edit, rag]\nruns: [{config: baseline}]\n",
            ["s.yaml: workloads: names 'rag' twice", "Valid: code_edit, rag"],
        ),
        (
            "title: t\nmodel: m\nmax_tokens: 8\nruns: [{config: ngram, concurrent: {concurrency: 2, workloads: []}}]\n",
            ["s.yaml: runs.0.concurrent.workloads: names none", "Valid: code_edit, rag"],
        ),
        (
            "title: t\nmodel: m\nmax_tokens: 8\nlimit: 1\nlimit: 2\nruns: [{config: baseline}]\n",
            ["s.yaml is not valid YAML: key 'limit' is given twice, in line 4 and in line 5"],
        ),
        ("title: t\nmodel: m\nmax_tokens: eight\nruns: [{config: baseline}]\n", ["max_tokens", "integer"]),
        ("title: t\nmodel: m\nmax_tokens: 8\nflags: {port: 1}\nruns: [{config: baseline}]\n", ["'port' is set by"]),
        ("title: t\nmodel: m\nmax_tokens: 8\nflags: {max_model_len: 1}\nruns: [{config: baseline}]\n", ["dashes"]),
        ("title: t\nmodel: m\nmax_tokens: 8\nflags: {x: false}\nruns: [{config: baseline}]\n", ["no-x"]),
        ("title: [\n", ["not valid YAML"]),
        ("title: 2026-13-45\n", ["s.yaml is not valid YAML", "month"]),
        ("just text\n", ["must be a mapping"]),
        (
            "title: t\nmodel: m\nmax_tokens: 8\nruns: [{config: baseline, label: a}, {config: baseline, label: a}]\n",
            ["two runs have the label a"],
        ),
    ],
)
def test_a_wrong_study_names_the_file_the_key_and_the_choices(project: Path, text: str, words: list[str]) -> None:
    for name in ("code_edit", "rag"):
        (project / "workloads" / name).mkdir()
    (project / "studies" / "s.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        settings.study("s")
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_key_in_a_config_lists_the_valid_ones(project: Path) -> None:
    (project / "configs" / "x.yaml").write_text("why: w\nflag: {}\n")
    with pytest.raises(UsageError, match=r"x\.yaml: unknown key 'flag'.*Valid: env, flags, why"):
        settings.config("x")


def test_a_key_that_a_config_gives_twice_is_refused(project: Path) -> None:
    (project / "configs" / "x.yaml").write_text("why: w\nflags: {seed: 0, 'seed': 1}\n")
    with pytest.raises(UsageError, match=r"x\.yaml is not valid YAML: key 'seed' is given twice, in line 2"):
        settings.config("x")


def test_a_file_whose_name_is_none_says_which_characters_may_stand_there(project: Path) -> None:
    (project / "configs" / "Bad Name.yaml").write_text("why: w\n")
    with pytest.raises(UsageError) as caught:
        settings.config("Bad Name")
    assert str(caught.value).startswith("Bad Name.yaml: a config's name has letters, digits, '.', '_' and '-'")
    with pytest.raises(UsageError, match="unknown config '../studies/quick'"):
        settings.config("../studies/quick")


def test_a_studys_plans_are_those_of_its_runs() -> None:
    found = settings.plans("quick")
    assert [(plan.label, plan.config.name) for plan in found] == [
        (run.label, run.config) for run in settings.study("quick").runs
    ]


def test_the_notebooks_parameters_are_those_of_a_run() -> None:
    nb = load_notebook_node(str(paths.notebooks() / "run_config.ipynb"))
    cell = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))
    expected = []
    for name, (kind, default, text) in settings.PARAMETERS.items():
        value = f'"{default}"' if kind is str else str(default)
        expected.append(f"{name}: {kind.__name__} = {value}  # {text}")
    assert cell.source.splitlines() == expected


def test_committed_notebooks_hold_no_outputs_and_run_on_python3() -> None:
    found = sorted(paths.notebooks().glob("*.ipynb"))
    assert found
    for path in found:
        nb = nbformat.read(path, as_version=4)
        assert nb.metadata.kernelspec.name == "python3"
        assert all(not c.get("outputs") and c.get("execution_count") is None for c in nb.cells if c.cell_type == "code")


def test_a_notebook_variable_that_is_no_parameter_stops_the_run() -> None:
    namespace: dict[str, object] = {"config": "ngram", "In": [], "Out": {}, "_": 1, "settings": settings}
    assert settings.from_namespace(namespace).config.name == "ngram"
    nb = load_notebook_node(str(paths.notebooks() / "run_config.ipynb"))
    injected = parameterize_notebook(nb, {"confg": "ngram"})
    exec(injected.cells[2].source, namespace)
    with pytest.raises(UsageError, match="unknown parameter 'confg'.*Did you mean 'config'"):
        settings.from_namespace(namespace)
