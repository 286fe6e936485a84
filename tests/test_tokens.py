"""What tokens spell: against the tokenizers library, and against every committed answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from bookhouse import make
from recordfactory import a_record, answer
from samebytes import analysis, model, paths, record, tokens
from samebytes.errors import UsageError

STUDIES = sorted(path.parent.name for path in paths.results().glob(f"*/{tokens.FILE}") if path.parent.name != "quick")


def trained(folder: Path) -> tuple[tokenizers.Tokenizer, Path]:
    """Return a small byte-level BPE with a special and a plain added token, and its file."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(["def read(rows): return rows", "naïve “quotes” and 🙂"] * 4, trainer)
    library.add_special_tokens(["<|end|>"])
    library.add_tokens(["<think>"])
    path = folder / "tokenizer.json"
    library.save(str(path))
    return library, path


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[tokenizers.Tokenizer, tokens.Vocabulary]:
    library, path = trained(tmp_path_factory.mktemp("tokenizer"))
    return library, tokens.read_tokenizer(path)


def test_the_byte_table_is_the_librarys() -> None:
    assert sorted(tokens.byte_of()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(tokens.byte_of().values()) == list(range(256))


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_tokens_spell_what_the_library_decodes(both: tuple[tokenizers.Tokenizer, tokens.Vocabulary], text: str) -> None:
    library, vocabulary = both
    ids = library.encode(text).ids
    assert vocabulary.covers(ids)
    assert vocabulary.text(ids) == library.decode(ids) == text
    assert "".join(vocabulary.pieces(ids)) == text


def test_special_tokens_are_named_and_stand_in_no_text(
    both: tuple[tokenizers.Tokenizer, tokens.Vocabulary],
) -> None:
    library, vocabulary = both
    ids = library.encode("<think>a<|end|>").ids
    assert vocabulary.text(ids) == library.decode(ids, skip_special_tokens=True) == "<think>a"
    assert vocabulary.pieces(ids) == ["<think>", "a", "<|end|>"]


def test_a_character_split_over_tokens_belongs_to_the_last_of_them() -> None:
    vocabulary = tokens.Vocabulary({0: b"a\xe2", 1: b"\x80", 2: b"\x9cb", 3: b"\xff"}, frozenset())
    assert vocabulary.pieces([0, 1, 2, 3]) == ["a", "", "“b", "\ufffd"]
    assert vocabulary.text([0, 1, 2, 3]) == "a“b\ufffd"
    assert [vocabulary.name(i) for i in range(4)] == ["a\\xe2", "\\x80", "\\x9cb", "\\xff"]


def test_the_file_holds_what_is_used_and_nothing_else(tmp_path: Path) -> None:
    whole = tokens.Vocabulary({0: b"a", 1: b"\x80", 2: b"<|end|>", 3: b"b"}, frozenset([2]))
    (tmp_path / tokens.FILE).write_text(tokens.to_json(whole, [2, 0, 1, 0], model="m"), encoding="utf-8")
    found = tokens.load(tmp_path)
    assert found == tokens.Vocabulary({0: b"a", 1: b"\x80", 2: b"<|end|>"}, frozenset([2]))
    assert not found.covers([0, 3])
    assert tokens.load(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("content", ["[]", "{", '{"text": {"a": "b"}, "bytes": {}, "special": []}', '{"text": []}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / tokens.FILE).write_text(content)
    with pytest.raises(UsageError, match=r"tokens\.json is not a file of tokens"):
        tokens.load(tmp_path)


def test_other_tokenizers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UsageError, match="no tokenizer.json"):
        tokens.read_tokenizer(path)
    path.write_text(
        json.dumps({"decoder": {"type": "Metaspace"}, "model": {"type": "Unigram", "vocab": []}, "added_tokens": []})
    )
    with pytest.raises(UsageError, match="no byte-level BPE: Unigram, decoder Metaspace"):
        tokens.read_tokenizer(path)


def test_a_study_gets_its_file_from_a_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = make(tmp_path)
    monkeypatch.setenv("SAMEBYTES_ROOT", str(house))
    library, path = trained(tmp_path)
    said = "naïve “quotes”"
    ids, prompt = library.encode(said).ids, library.encode("read").ids
    spoken = answer("rag/0", said, token_ids=[*ids, library.token_to_id("<|end|>")], prompt_token_ids=prompt)
    record.save(a_record("ngram", ids=["rag/0"], replace={"rag/0": spoken}), house / "results/toy/ngram.json")

    (tmp_path / "config.json").write_text("{}")
    tokens.main(["toy", str(tmp_path)])
    found = tokens.load(house / "results/toy")
    assert found is not None
    assert found.text(spoken.token_ids or ()) == said
    assert [f.label for f in analysis.load(house / "results/toy")] == ["ngram"], "the file is no record"

    changed = spoken.model_copy(update={"text": "other"})
    record.save(a_record("ngram", ids=["rag/0"], replace={"rag/0": changed}), house / "results/toy/ngram.json")
    with pytest.raises(UsageError, match="does not spell the answers of results/toy: see rag/0"):
        tokens.render("toy", path)
    beyond = spoken.model_copy(update={"token_ids": [100_000]})
    record.save(a_record("ngram", ids=["rag/0"], replace={"rag/0": beyond}), house / "results/toy/ngram.json")
    with pytest.raises(UsageError, match=r"lacks tokens of results/toy: \[100000\]"):
        tokens.render("toy", path)
    with pytest.raises(UsageError, match="STUDY"):
        tokens.main([])


def test_committed_studies_have_their_tokens() -> None:
    assert STUDIES


@pytest.mark.parametrize("study", STUDIES)
def test_every_committed_answer_is_its_tokens_byte_for_byte(study: str) -> None:
    folder = paths.results() / study
    vocabulary = tokens.load(folder)
    assert vocabulary is not None
    seen: set[int] = set()
    for request in (r for found in analysis.load(folder) for r in found.sequential()):
        prompt, said = request.prompt_token_ids or [], request.token_ids or []
        assert said
        assert vocabulary.text(said).encode() == request.text.encode(), (study, request.id)
        seen |= {*prompt, *said}
    assert seen == set(vocabulary.spelt), f"python -m samebytes.tokens {study}"


@pytest.mark.engine
@pytest.mark.parametrize("study", STUDIES)
def test_the_committed_tokens_are_the_tokenizers(study: str) -> None:
    (name,) = {found.model.id for found in analysis.load(paths.results() / study)}
    committed = (paths.results() / study / tokens.FILE).read_text(encoding="utf-8")
    assert tokens.render(study, model.tokenizer(name)) == committed, f"python -m samebytes.tokens {study}"
