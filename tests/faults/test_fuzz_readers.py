"""Every reader of strangers' text under inputs made to break it: it reads, refuses in one short message, and ends.

The inputs are the same every time; ANMI_FUZZ_SEED takes others, ANMI_FUZZ_INPUTS says how many there are.
"""

from __future__ import annotations

import json
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from anmi_ray import corpus
from anmi_ray.api import written_queries
from anmi_ray.api.runs import Run
from anmi_ray.cli import show
from anmi_ray.config import load
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core.errors import AnmiError, ConfigError
from anmi_ray.corpus import lookup, pydocs
from anmi_ray.corpus.counts import counted
from anmi_ray.judging import parse_reply, writer
from anmi_ray.models import pooling
from anmi_ray.models.loading import ModelSource
from anmi_ray.tables import trec
from anmi_ray.tables.preferences import ANSWERS, GAMES, read_preferences

pytestmark = pytest.mark.faults

INPUTS = int(os.environ.get("ANMI_FUZZ_INPUTS", "50000"))
LONGEST_S = 10.0  # of one input: a thousandth of it is usual
LONGEST_MESSAGE = ConfigError.most + 300  # with the place
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
SHOWN = 20

# What strangers write, and what they write to break a reader.
# fmt: off
PIECES = [
    *(b"\x00", b"\x1d", b"\x1b[31m", b"\x85", b"\xe2\x80\xa8", b"\xff", b"\xfe\xff", b"\xff\xfe", b"\xef\xbb\xbf"),
    *(b"\r", b"\n", b"\r\n", b"\t", b" ", b",", b";", b"|", b'"', b"'", b'""', b"\\", b"\\ud800", b"\\u0000", b"{",
      b"}"),
    *(b"[", b"]", b"[[", b"]]", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"<!DOCTYPE ", b"<", b">", b"</", b"<DOC>",
      b"</DOC>"),
    *(b"<DOCNO>", b"</DOCNO>", b"<top>", b"</top>", b"<num>", b"<title>", b"&#", b"&#x110000;", b"&#xD800;", b"&amp;",
      b"&"),
    *(b"1e400", b"-1e400", b"nan", b"inf", b"1_0.5", b"0x10", b"1,5", b"9" * 30, b"9" * 5000, b"-0", b"1.", b".5",
      b"+"),
    *("٣½é\u00a0\u200b\u202e👩\u200d🔬ﬁ＜".encode(), b"null", b"true", b"NaN", b"Infinity", b"{}", b"[]", b"~", b"&a",
      b"*a"),
    *(b"!!python/object/apply:os.system", b"<<: *a", b"---", b"...", b"%YAML 1.1", b"%s", b"{{ x }}", b"{% raw %}"),
    *(b"<think>", b"</think>", b"boxed{", b"Score:", b"A", b"B", b"yes", b"no", b"```json", b"final answer"),
    *(b"_id", b"text", b"query_id", b"doc_a", b"preference", b"query-id\tcorpus-id\tscore", b"d1", b"q1", b"Q0", b"0"),
    *(b"def f(", b"class A:", b'"""', b"lambda: ", b"if a: pass\nel", b"x = -", b"(", b")", b"\\N{x}", b"f'{"),
    *(b"[" * 3000, b'{"a":' * 3000, b"(" * 300),
]
# fmt: on
DOCUMENTS = b"".join(b'{"_id": "d%d", "title": "t", "text": "words of it"}\n' % i for i in range(3))
QUERIES = b"".join(b'{"_id": "q%d", "text": "words asked for"}\n' % i for i in range(3))
QRELS = b"query-id\tcorpus-id\tscore\n" + b"".join(b"q%d\td%d\t1\n" % (i, i) for i in range(3))
TABLE = b"id,title,text\n" + b"".join(b'd%d,t,"words, and more"\n' % i for i in range(3))
SGML = b"".join(b"<DOC>\n<DOCNO>d%d</DOCNO>\n<TEXT>words &amp; more</TEXT>\n</DOC>\n" % i for i in range(3))
TOPICS = b"".join(b"<top>\n<num> Number: q%d\n<title> words asked for\n</top>\n" % i for i in range(3))
PREFERENCES = b"query_id,doc_a,doc_b,preference,judge,order\nq,a,b,1,j,ab\nq,b,c,0.5,j,ba\n"
ANSWER = {"query_id": "q", "doc_a": "a", "doc_b": "b", "preference": 0.5, "games": 2, "error": None}
MODULE = b'"""A module of some use.\n\nMore of it."""\ndef area(r=1):\n    """Return the area of it.\n\n    In cm."""\n'
CONFIG = b"name: mine\ncorpus:\n  reader: beir\n  path: here\njudge:\n  preset: small\ntrain:\n  learning_rate: 1e-5\n"
Read = Callable[[Path, bytes], object]
Readers = dict[str, tuple[Read, bytes, int]]


def mutated(draw: random.Random, seed: bytes) -> bytes:
    """A seed with some mutations, each of a kind that files suffer or that somebody thinks of."""
    data = seed
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        at = draw.randrange(len(data) + 1)
        to = min(len(data), at + draw.choice((0, 1, 3, 10, 40)))
        piece = draw.choice(PIECES)
        kind = draw.randrange(10)
        if kind < 5:
            data = data[:at] + piece + data[to:]
        elif kind == 5:
            data = data[:at] + piece * draw.choice((2, 9, 300 if len(piece) < 100 else 2)) + data[to:]
        elif kind == 6:
            data = data[:at] + data[at:to] * draw.choice((0, 2, 50)) + data[to:]
        elif kind == 7:
            data = data.replace(
                *draw.choice(((b"\n", b"\r"), (b"\n", b"\r\n"), (b",", b";"), (b'"', b""), (b",", b"\t")))
            )
        elif kind == 8:
            lines = data.split(b"\n")
            draw.shuffle(lines)
            data = b"\n".join(lines)
        else:
            data = draw.choice((data[:at], data[at:], bytes(draw.randbytes(8)) + data, encoded(draw, data)))
    return data


def encoded(draw: random.Random, data: bytes) -> bytes:
    """The same text in another encoding."""
    return data.decode("utf-8", "replace").encode(draw.choice(("utf-16", "utf-16-be", "utf-32", "utf-8-sig")))


def collection(files: dict[str, bytes], settings: dict[str, object], changed: str, folder: Path, data: bytes) -> None:
    """Read a small collection of which one file is changed, as ingest does."""
    for name, content in (files | {changed: data}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    places = {
        key: {split: str(folder / name) for split, name in value.items()}
        if isinstance(value, dict)
        else str(folder / str(value))
        for key, value in settings.items()
        if key != "reader"
    }
    reader = corpus.read(CorpusConfig.model_validate({"reader": settings["reader"], **places}))
    documents = sum(table.num_rows for table in reader.documents())
    queries, qrels = reader.queries(), reader.qrels()
    counted(reader, documents, queries, qrels, reader.hidden_qrels())
    for row in reader.rejects().to_pylist():
        if CONTROL.search("".join(row.values())):
            raise AssertionError(f"a reject holds control characters: {row}")


def answers(_: Path, data: bytes) -> None:
    """Read it as each form of an answer."""
    text = data.decode("utf-8", "surrogateescape")
    for form in ("scale", "letters", "yes-no"):
        p = parse_reply.read(text, form)
        assert isinstance(p, str) or 0.0 <= p <= 1.0
    writer.read_queries(text)


def own_queries(_: Path, data: bytes) -> None:
    """Read it as a file of a user's own queries."""
    list(written_queries._texts(data.decode("utf-8", "replace").splitlines(), "own"))


def written(name: str, read: Callable[[Path], object]) -> Read:
    """What writes a file of this name and reads it."""

    def fill_and_read(folder: Path, data: bytes) -> None:
        (folder / name).write_bytes(data)
        read(folder / name)

    return fill_and_read


def record(folder: Path, data: bytes) -> None:
    """Read it as the record of a run, as what shows runs does."""
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "mine.json").write_bytes(data)
    Run("mine", root=str(folder))
    list(show.described("mine", str(folder), 3))


def model(name: str, folder: Path, data: bytes) -> None:
    """Read it as one of the files that say what a folder of weights is."""
    for kind, content in MODEL.items():
        (folder / kind).parent.mkdir(exist_ok=True)
        (folder / kind).write_bytes(data if kind == name else content)
    source = ModelSource("m", str(folder), "", is_local=True)
    reads = (pooling.read_pooling, pooling.read_token_vectors, pooling.activations, pooling.markers)
    for read in (*reads, pooling.is_bi_encoder, pooling.is_colbert):
        read(source)
    pooling.draws_head(source, "cross-encoder", "cls")


def module(folder: Path, data: bytes) -> None:
    """Read it as a module of Python."""
    (folder / "m.py").write_bytes(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pydocs, "source_files", lambda _: [("m", folder / "m.py")])
        reader = corpus.read(CorpusConfig())
    list(reader.documents())
    reader.queries()
    reader.qrels()


BEIR = {"corpus.jsonl": DOCUMENTS, "queries.jsonl": QUERIES, "qrels/test.tsv": QRELS}
TABLES = {"d.csv": TABLE, "q.jsonl": QUERIES, "r.tsv": QRELS}
TREC = {"d.sgml": SGML, "t.topics": TOPICS, "r.qrels": b"q0 0 d0 1\nq1 0 d1 2\n"}
MARCO = TREC | {"d.tsv": b"d0\twords\nd1\tmore words\n", "q.tsv": b"q0\tasked\nq1\tfor\n"}
AS_BEIR: dict[str, object] = {"reader": "beir", "path": "."}
AS_TABLES: dict[str, object] = {
    "reader": "table",
    "documents": "d.csv",
    "queries": "q.jsonl",
    "qrels": {"test": "r.tsv"},
}
AS_TREC: dict[str, object] = {
    "reader": "trec",
    "documents": "d.sgml",
    "queries": "t.topics",
    "qrels": {"test": "r.qrels"},
}
AS_MARCO = AS_TREC | {"documents": "d.tsv", "queries": "q.tsv"}
RECORD = json.dumps(
    {
        "name": "mine",
        "corpus": "f00",
        "corpus_name": "mine",
        "config": {"seed": 0, "corpus": {}, "judge": {}},
        "stages": {name: {"fingerprint": "f00", "inputs": {}, "settings": {}} for name in ("ingest", "judge")},
        "environment": {"git": None, "cores": 2, "processor": "one", "memory_gb": 8, "python": "3.11", "versions": {}},
    }
).encode()
MODULES = [{"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
           for at, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))]  # fmt: skip
MODEL = {
    "modules.json": json.dumps(MODULES).encode(),
    "config.json": b'{"architectures": ["BertForSequenceClassification"]}',
    "config_sentence_transformers.json": b'{"prompts": {"query": "q: ", "document": ""}, "query_prefix": "[Q]"}',
    "sentence_bert_config.json": b'{"max_seq_length": 128, "do_lower_case": false}',
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true, "pooling_mode": "mean", "include_prompt": true}',
}
JSONL = b"".join(json.dumps(ANSWER | {"doc_a": name}).encode() + b"\n" for name in "acd")
# By reader, the text that is mutated and how much of all inputs it gets.
READERS: Readers = {
    "answers": (answers, b"I think document A is better.\nFinal answer: A\nScore: 0.5", 25),
    "answer in JSON": (answers, b'```json\n{"keyword": ["slow leak"], "score": 0.5, "answer": "B"}\n```', 15),
    "run": (written("r.trec", trec.read_run), b"q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 1.5 t\nq2 Q0 d1 1 0.5 t\n", 10),
    "qrels": (written("q.trec", lookup.read_qrels), b"q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n", 8),
    "qrels of BEIR": (written("b.tsv", lookup.read_qrels), QRELS, 6),
    "preferences": (written("p.csv", partial(read_preferences, reading=GAMES)), PREFERENCES, 6),
    "preferences in JSON": (written("p.jsonl", partial(read_preferences, reading=GAMES)), JSONL, 5),
    "audited": (written("a.csv", partial(read_preferences, reading=ANSWERS)), PREFERENCES, 4),
    "configuration": (written("c.yaml", load.load), CONFIG, 4),
    "own queries": (own_queries, b'how do I write a query\n{"text": "as JSON"}\n{"query": "as well"}\n', 8),
    "module": (module, MODULE, 3),
    "record of a run": (record, RECORD, 6),
    **{f"model's {name}": (partial(model, name), content, 1) for name, content in MODEL.items()},
    **{f"beir {name}": (partial(collection, BEIR, AS_BEIR, name), BEIR[name], 1) for name in BEIR},
    **{f"table {name}": (partial(collection, TABLES, AS_TABLES, name), TABLES[name], 1) for name in TABLES},
    **{f"trec {name}": (partial(collection, TREC, AS_TREC, name), TREC[name], 1) for name in TREC},
    **{f"trec {name}": (partial(collection, MARCO, AS_MARCO, name), MARCO[name], 1) for name in ("d.tsv", "q.tsv")},
}


def wrong(read: Read, folder: Path, data: bytes) -> str | None:
    """What a reader did that it must not, if anything."""
    start = time.monotonic()
    try:
        read(folder, data)
    except AnmiError as error:
        said = str(error)
        if len(said) > LONGEST_MESSAGE:
            return f"a message of {len(said)} characters: {said[:300]}"
        if CONTROL.search(said):
            return f"control characters in {said!r}"
    except Exception as error:  # whatever else comes out is what is looked for
        return f"{type(error).__name__}: {str(error)[:200]}"
    took = time.monotonic() - start
    return f"took {took:.0f} s" if took > LONGEST_S else None


def drawn(readers: Readers, seed: int, inputs: int) -> Iterator[tuple[str, bytes]]:
    """Readers by their shares, each with what it is to read."""
    draw = random.Random(seed)
    shares = [share for _, _, share in readers.values()]
    for name in draw.choices(list(readers), shares, k=inputs):
        yield name, mutated(draw, readers[name][1])


def fuzzed(readers: Readers, inputs: int) -> None:
    """Give readers the inputs of a seed, and tell of each kind of failure once."""
    seed = int(os.environ.get("ANMI_FUZZ_SEED", "739949"))
    print(f"ANMI_FUZZ_SEED={seed}")
    failures: dict[tuple[str, str], tuple[str, bytes]] = {}
    seen = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="f", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        folders = {name: Path(folder) / str(number) for number, name in enumerate(readers)}
        for place in folders.values():
            place.mkdir()
        for name, data in drawn(readers, seed, inputs):
            seen[name] += 1
            if fault := wrong(readers[name][0], folders[name], data):
                failures.setdefault((name, fault[:40]), (fault, data))
    print(dict(seen))
    told = [f"{name}: {fault}\n    {data[:400]!r}" for (name, _), (fault, data) in list(failures.items())[:SHOWN]]
    assert not failures, f"{len(failures)} kinds of failure, seed {seed}:\n" + "\n".join(told)
    assert len(seen) == len(readers)


@pytest.mark.timeout(600)
def test_readers_of_strangers_text_end_in_a_message_or_in_rows() -> None:
    fuzzed(READERS, INPUTS)
