"""What token ids spell: a study's tokens and their bytes, written once from the model's tokenizer.

    python -m samebytes.tokens STUDY [MODEL]    writes results/STUDY/tokens.json

A record holds an answer's text and its token ids, but not which token spells which part of the text. The article is
built where no model is, so the tokens that a study's records use are kept beside them. Byte-level BPE only (GPT-2's
scheme, which Qwen, Llama 3 and SmolLM use): there a token is a string of bytes, and an answer's bytes are those of its
tokens put together, special tokens left out. So the file can be held against the records with no tokenizer at hand.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebytes.errors import UsageError

FILE = "tokens.json"
"""The file's name in ``results/STUDY``."""


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of tokens.

    Attributes
    ----------
    spelt : mapping of int to bytes
        Bytes by token id; those of a special token are its name.
    special : frozenset of int
        Tokens that stand in no text: ends of turns and the like.
    """

    spelt: Mapping[int, bytes]
    special: frozenset[int]

    def covers(self, ids: Iterable[int]) -> bool:
        """Return whether all of these tokens are known."""
        return self.spelt.keys() >= set(ids)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text that an answer's tokens spell, special tokens left out."""
        return b"".join(self.spelt[i] for i in ids if i not in self.special).decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return what each token adds to a text, special tokens by their names.

        A character whose bytes several tokens share belongs to the last of them. Put together and without the special
        tokens' pieces this is `text`, but for a character that ends unfinished.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return [self.spelt[i].decode() if i in self.special else decoder.decode(self.spelt[i]) for i in ids]

    def name(self, token: int) -> str:
        """Return a token alone: its text, ``\\xe2\\x80`` for bytes that are no whole character, ``#7`` if unknown."""
        return self.spelt[token].decode("utf-8", "backslashreplace") if token in self.spelt else f"#{token}"


def byte_of() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    GPT-2's table: a printable Latin-1 character is its own byte, the others follow from U+0100 on.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def read_tokenizer(path: Path) -> Vocabulary:
    """Read a whole ``tokenizer.json``.

    Raises
    ------
    UsageError
        Where it cannot be read, or is no byte-level BPE.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        decoder, vocabulary, added = content["decoder"]["type"], content["model"]["vocab"], content["added_tokens"]
        if (content["model"]["type"], decoder) != ("BPE", "ByteLevel"):
            raise UsageError(f"{path} is no byte-level BPE: {content['model']['type']}, decoder {decoder}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no tokenizer.json: {type(error).__name__}: {error}") from None
    names = {token["id"]: token["content"].encode() for token in added}
    table = byte_of()
    plain = {i: bytes(table[c] for c in token) for token, i in vocabulary.items() if i not in names}
    return Vocabulary(plain | names, frozenset(token["id"] for token in added if token["special"]))


def to_json(vocabulary: Vocabulary, used: Iterable[int], **about: str) -> str:
    """Return the file of the tokens that are used, with what it was made from."""
    ids = sorted(set(used))
    text: dict[str, str] = {}
    other: dict[str, str] = {}
    for i in ids:
        try:
            text[str(i)] = vocabulary.spelt[i].decode()
        except UnicodeDecodeError:
            other[str(i)] = vocabulary.spelt[i].hex()
    content = {**about, "special": sorted(vocabulary.special & set(ids)), "text": text, "bytes": other}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def load(folder: Path) -> Vocabulary | None:
    """Read the tokens of the study whose records lie in ``folder``; None where there is no such file.

    Raises
    ------
    UsageError
        Where the file cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        spelt = {int(i): token.encode() for i, token in content["text"].items()}
        spelt |= {int(i): bytes.fromhex(token) for i, token in content["bytes"].items()}
        return Vocabulary(spelt, frozenset(content["special"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a file of tokens: {type(error).__name__}: {error}") from None


def render(study: str, tokenizer: Path) -> str:
    """Return the file of a study's tokens: those of every prompt and every answer of its sequential passes.

    Raises
    ------
    UsageError
        Where the study has no records, or they hold tokens that the tokenizer does not have.
    """
    from samebytes import analysis, paths

    records = analysis.load(paths.results() / study)
    requests = [request for found in records for request in found.sequential()]
    used = {i for r in requests for ids in (r.prompt_token_ids, r.token_ids) for i in ids or ()}
    vocabulary = read_tokenizer(tokenizer)
    if not vocabulary.covers(used):
        raise UsageError(f"{tokenizer} lacks tokens of results/{study}: {sorted(used - vocabulary.spelt.keys())[:5]}")
    for request in requests:
        if request.token_ids and vocabulary.text(request.token_ids) != request.text:
            raise UsageError(f"{tokenizer} does not spell the answers of results/{study}: see {request.id}")
    digest = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    return to_json(vocabulary, used, model=records[0].model.id, tokenizer_sha256=digest)


def main(arguments: Sequence[str]) -> None:
    """Write one study's file; the model is the records' own where none is named."""
    from samebytes import analysis, model, paths
    from samebytes.record import write_atomic

    if len(arguments) not in (1, 2):
        raise UsageError("python -m samebytes.tokens STUDY [MODEL]")
    study = arguments[0]
    folder = paths.results() / study
    name = arguments[1] if len(arguments) == 2 else analysis.load(folder)[0].model.id
    write_atomic(folder / FILE, render(study, model.tokenizer(name)))


if __name__ == "__main__":
    main(sys.argv[1:])
