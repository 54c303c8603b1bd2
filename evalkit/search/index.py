"""The hybrid index of a corpus of code: chunks along definitions, their vectors, BM25, and the graph that joins them.

It is one file in the user's cache, replaced in one step, so a build killed at any moment leaves what was there. An
embedder is "wordllama", static vectors out of a package, or MODEL@URL, an endpoint as OpenAI's. A query goes to the
vectors of that file, or with the store "chroma" to a copy of them in Chroma.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
import uuid
import zipfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache as once
from importlib import import_module
from pathlib import Path
from posixpath import dirname, join, normpath, splitext
from typing import Any

import numpy as np
from filelock import FileLock

from ..citations import overlap
from ..fetch import CorpusError, cache, entry, fetch
from ..models.offline import words
from ..records import Citation, Sample, redact
from ..tools import ToolError
from .code import LEGS, Hit, digest, files, lines, rg_keywords

WORDLLAMA = "wordllama"
VERSION, SIZE, SNIPPET, DEPTH, RRF = "1", 1_250, 400, 50, 60  # of the chunker, characters, characters, ranks, constant
GRAMMARS = dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), ("javascript", "language"))
GRAMMARS |= dict.fromkeys((".ts", ".mts", ".cts"), ("typescript", "language_typescript"))
GRAMMARS |= {".tsx": ("typescript", "language_tsx")}
WRAPS = {
    "export_statement",
    "ambient_declaration",
    "lexical_declaration",
    "variable_declaration",
    "expression_statement",
}
KIND = re.compile(r"(?!method_sig)(?:arrow_|generator_|abstract_)?(function|class|method|interface|type|enum)(?:_|$)")
IMPORT = re.compile(r"""(?:\brequire\s*\(|\bfrom|\bimport\s*\(?)\s*['"](\.[^'"\n]*)['"]""")
FOUND_AS = ("", ".js", ".ts", ".d.ts", ".mjs", "/index.js", "/index.ts", "/index.d.ts")
_lock = threading.Lock()
_loaded: dict[str, tuple[int, Index]] = {}


def chunks(path: str, text: str) -> list[Hit]:
    """A file in pieces of up to SIZE characters: no two definitions in one, the rest packed; other files by blocks."""
    rows, made, first = [row[:SIZE] for row in lines(text)], list[Hit](), 0
    grammar = GRAMMARS.get(splitext(path)[1])
    ends = syntax(grammar, text) if grammar else [(i, "") for i, row in enumerate(rows) if not row.strip()]
    for end, name in [*ends, (len(rows) - 1, "")]:
        part = rows[first : end + 1]
        for piece in ["\n".join(part)] if part and len("\n".join(part)) <= SIZE else part:
            count = piece.count("\n") + 1
            if made and made[-1].name == name and len(made[-1].snippet) + len(piece) < SIZE:
                made[-1] = made[-1]._replace(end=first + count, snippet=f"{made[-1].snippet}\n{piece}")
            else:
                made.append(Hit(path, first + 1, first + count, name, piece))
            first += count
    return [chunk for chunk in made if re.search(r"\w", chunk.snippet)]


def syntax(grammar: tuple[str, str], text: str) -> list[tuple[int, str]]:
    """(last row, definition around it) of each syntax node that fits into a chunk; a comment goes with what follows."""
    import tree_sitter

    language = tree_sitter.Language(getattr(import_module(f"tree_sitter_{grammar[0]}"), grammar[1])())
    root = tree_sitter.Parser(language).parse(text.encode()).root_node
    stack: list[tuple[Any, str]] = [(root, "")]
    ends = []
    while stack:
        node, name = stack.pop()
        if isinstance(node, int):
            ends.append((node, name))
        elif node.type != "comment":
            name = definition(node) or name
            stack.append((node.end_point.row, name))
            if node is root or node.end_byte - node.start_byte > SIZE:
                stack += [(child, name) for child in reversed(node.named_children)]
    return ends


def definition(node: Any) -> str:
    """Kind and name of the definition that a syntax node is, or empty."""
    while node.type in WRAPS and node.named_child_count == 1:
        node = node.named_children[0]
    for named, value in (("name", ""), ("name", "value"), ("left", "right"), ("key", "value")):
        label, body = node.child_by_field_name(named), node.child_by_field_name(value) if value else node
        if label and body and (kind := KIND.match(body.type)):
            return f"{kind[1]} {''.join(label.text.decode().split())}"
    return ""


def graph(made: Sequence[Hit]) -> list[list[int]]:
    """For each chunk, whom it names and who names it: definitions of its file and of files it imports, and by a call
    also what is defined only once."""
    paths, imports, first = {c.path for c in made}, defaultdict[str, set[str]](set), dict[tuple[str, str], int]()
    joined, defined = [set[int]() for _ in made], defaultdict[str, list[int]](list)
    for i, chunk in enumerate(made):
        if chunk.name and first.setdefault((chunk.path, chunk.name), i) == i:
            defined[re.split(r"[ .]", chunk.name)[-1]].append(i)
        for target in IMPORT.findall(chunk.snippet):
            stem = normpath(join(dirname(chunk.path), target))
            imports[chunk.path] |= {stem + end for end in FOUND_AS} & paths
    for i, chunk in enumerate(made):
        for name, call in set(re.findall(r"([\w$]+)(\s*\()?", chunk.snippet)):
            every = defined.get(name, [])
            near = [j for j in every if made[j].path in {chunk.path, *imports[chunk.path]}]
            for j in near or every * (bool(call) and len(every) == 1):
                joined[i].add(j)
                joined[j].add(i)
    return [sorted(others - {i}) for i, others in enumerate(joined)]


@once
def embedding(name: str) -> Callable[[list[str]], np.ndarray]:
    """The function from texts to unit vectors, a row each; raises CorpusError. An endpoint is sent COMPAT_API_KEY."""
    if name == WORDLLAMA:
        from safetensors.numpy import load
        from tokenizers import Tokenizer

        row = entry(name)
        with zipfile.ZipFile(fetch(name)) as wheel:
            (table,) = load(wheel.read(row["weights"])).values()
            tokens = Tokenizer.from_str(wheel.read(row["tokenizer"]).decode())

        def embed(texts: list[str]) -> list[Any]:
            coded = (code.ids for code in tokens.encode_batch(texts, add_special_tokens=False))
            return [table[ids].mean(0, dtype=np.float32) if ids else 0 * table[0] for ids in coded]
    else:
        import openai

        model, _, url = name.rpartition("@")
        if not re.match(r"https?://", url):
            raise CorpusError(
                f"embedder {redact(name)}: write wordllama, or MODEL@URL as in bge-m3@http://host:11434/v1"
            )
        client = openai.OpenAI(base_url=url, api_key=os.environ.get("COMPAT_API_KEY") or "none")

        def embed(texts: list[str]) -> list[Any]:
            parts = (texts[i : i + 64] for i in range(0, len(texts), 64))
            replies = (client.embeddings.create(model=model, input=part, encoding_format="float") for part in parts)
            return [row.embedding for reply in replies for row in sorted(reply.data, key=lambda row: row.index)]

    def units(texts: list[str]) -> np.ndarray:
        try:
            rows = np.array(embed(texts), np.float32)
            if rows.ndim != 2 or len(rows) != len(texts):
                raise ValueError("not one vector for each text")
            length = np.linalg.norm(rows, axis=1, keepdims=True)
            if not np.isfinite(rows).all() or (len(texts) > 1 and not length.any()):
                raise ValueError("its vectors are not finite, or all zeros")
            return rows / np.maximum(length, 1e-9)
        except Exception as error:
            raise CorpusError(f"embedder {name} gives no vectors: {redact(str(error))[:200]}") from None

    return units


def chroma() -> Any:
    """The client of Chroma: a server where CHROMA_HOST or CHROMA_PORT is set, else a folder in the cache."""
    host, port = os.environ.get("CHROMA_HOST", "127.0.0.1"), os.environ.get("CHROMA_PORT", "8000")
    try:
        import chromadb

        if {"CHROMA_HOST", "CHROMA_PORT"} & set(os.environ):
            return chromadb.HttpClient(host=host, port=int(port))
        return chromadb.PersistentClient(str(cache() / "index" / "chroma"))
    except ImportError:
        raise CorpusError("the store chroma needs a package: pip install 'evalkit[chroma]'") from None
    except ValueError:
        raise CorpusError(f"no Chroma server answers; start it: chroma run --host {host} --port {port}") from None


def place(name: str) -> Path:
    """The file of a corpus's index."""
    return cache() / "index" / f"{re.sub(r'[^a-zA-Z0-9.]+', '-', name)[-40:]}-{digest({name: ''})[:8]}.npz"


class Index:
    """An index as it lies in the cache; raises CorpusError where none can be read."""

    def __init__(self, name: str):
        import bm25s

        try:
            with np.load(place(name)) as data:
                self.vectors, self.meta = data["vectors"], json.loads(data["meta"].tobytes())
            self.chunks, self.bm25 = [Hit(*row) for row in self.meta["chunks"]], bm25s.BM25()
            told = [self.meta[name] for name in ("version", "sha", "embedder", "dim", "store")]
            if len(self.meta["joined"]) != len(self.chunks) or self.vectors.shape[1] != told[3]:
                raise ValueError("its parts do not fit together")
            self.bm25.index(self.meta["words"], show_progress=False)
            held = self.meta["collection"]
            self.collection = chroma().get_collection(held, embedding_function=None) if held else None
        except CorpusError:
            raise
        except Exception as error:
            raise CorpusError(f"there is no index that can be read ({type(error).__name__})") from None

    def nearest(self, query: str) -> list[int]:
        """The chunks whose vectors are nearest, in order."""
        vector = embedding(self.meta["embedder"])([query])
        if self.collection:
            found = self.collection.query(query_embeddings=vector, n_results=min(DEPTH, len(self.chunks)), include=[])
            return [int(i) for i in found["ids"][0]]
        return [int(i) for i in np.argsort(-(self.vectors @ vector[0]), kind="stable")[:DEPTH]]

    def lexical(self, query: str) -> list[int]:
        """The chunks with the query's words, by BM25."""
        scores = self.bm25.get_scores([word for word in words(query) if word in self.bm25.vocab_dict] or ["-"])
        return [int(i) for i in np.argsort(-scores, kind="stable")[:DEPTH] if scores[i] > 0]

    def named(self, query: str) -> list[int]:
        """The definitions whose names stand in the query, those with most of its words first."""
        terms = set(words(query))
        has = {i: len(terms & set(words(re.split(r"[ .]", c.name)[-1]))) for i, c in enumerate(self.chunks) if c.name}
        return sorted((i for i, n in has.items() if n), key=lambda i: (-has[i], i))[:DEPTH]


def said(chunk: Hit) -> str:
    """What is embedded of a chunk; its vector is used again as long as this is the same."""
    return f"{chunk.path} {chunk.name}\n{chunk.snippet}"


def build(name: str, embedder: str = WORDLLAMA, store: str = "numpy", rebuild: bool = False) -> dict[str, int]:
    """Make the index of a corpus and put it in place; how many files, chunks, and chunks that had to be embedded."""
    target = place(name)
    target.parent.mkdir(exist_ok=True)
    with FileLock(f"{target}.lock"):
        texts, embed, client = files(name), embedding(embedder), chroma() if store == "chroma" else None
        made, dim = [chunk for path, text in texts.items() for chunk in chunks(path, text)], embed(["-"]).shape[1]
        old, known = None, dict[str, Any]()
        with suppress(CorpusError):
            old = Index(name)
        if old and not rebuild and (old.meta["embedder"], old.meta["dim"]) == (embedder, dim):
            known = dict(zip(map(said, old.chunks), old.vectors, strict=False))
        new = list(dict.fromkeys(text for text in map(said, made) if text not in known))
        known |= dict(zip(new, embed(new), strict=True)) if new else {}
        vectors = np.array([known[said(chunk)] for chunk in made], np.float32).reshape(len(made), dim)
        meta = {"version": VERSION, "sha": digest(texts), "embedder": embedder, "dim": dim, "store": store}
        meta |= {"collection": f"evalkit-{uuid.uuid4().hex}" if client else "", "chunks": made, "joined": graph(made)}
        meta |= {"words": [words(said(chunk)) or ["-"] for chunk in made]}
        draft = target.with_suffix(f".draft-{meta['collection']}")
        with open(draft, "wb") as file:
            np.savez(file, vectors=vectors, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8))
        if client:
            shape = {"hnsw": {"space": "cosine"}}
            copy = client.create_collection(meta["collection"], embedding_function=None, configuration=shape)
            for i in range(0, len(made), 5_000):
                copy.add([str(n) for n in range(len(made))[i : i + 5_000]], embeddings=vectors[i : i + 5_000])
        if old:
            target.with_suffix(f".draft-{old.meta['collection']}").touch()
        draft.replace(target)
        for rest in target.parent.glob(f"{target.stem}.draft-*"):  # of the index before, and of builds that were killed
            with suppress(Exception):
                (client or chroma()).delete_collection(rest.suffix.removeprefix(".draft-"))
            rest.unlink()
    return {"files": len(texts), "chunks": len(made), "embedded": len(new)}


def health(
    name: str, embedder: str = WORDLLAMA, store: str = "numpy", min_chunks: int = 200,
    required: Sequence[str] = (), suffixes: Sequence[str] = (".js", ".ts"),
) -> list[str]:  # fmt: skip
    """What is wrong with the index of a corpus, a sentence each with the command that mends it; empty when sound."""
    options = [f"--embedder {embedder}"] * (embedder != WORDLLAMA) + [f"--store {store}"] * (store != "numpy")
    mend = " ".join(["python -m evalkit corpus build", shlex.quote(name), *options])
    try:
        texts, index, dim = files(name), load(name), embedding(embedder)(["-"]).shape[1]
        if index.collection:
            chroma()  # does it answer?
        count = index.collection.count() if index.collection else len(index.vectors)
    except (CorpusError, ToolError, OSError) as error:
        return [f"{name}: {error}; {mend}"]
    meta, size = index.meta, len(index.chunks)
    absent = [path for path in required if path not in texts]
    absent += [f"*{end}" for end in suffixes if not any(path.endswith(end) for path in texts)]
    faults = {
        f"the index is of chunker {meta['version']}, not {VERSION}": meta["version"] != VERSION,
        "the corpus is not the one that was indexed": meta["sha"] != digest(texts),
        f"the index is of embedder {meta['embedder']}, not {embedder}": meta["embedder"] != embedder,
        f"the index has vectors of {meta['dim']} numbers, {embedder} gives {dim}": meta["dim"] != dim,
        f"the index is in the store {meta['store']}, not {store}": meta["store"] != store,
        f"{size} chunks, but {count} vectors": size != count,
        f"{size} chunks, fewer than {min_chunks}": size < min_chunks,
        f"the corpus lacks {', '.join(absent)}": bool(absent),
    }
    return [f"{name}: {fault}; {mend}" for fault, found in faults.items() if found]


def load(name: str) -> Index:
    """The index of a corpus, read once a process and again when it was built anew."""
    with _lock:
        stamp = place(name).stat().st_mtime_ns if place(name).exists() else 0
        if not stamp or _loaded.get(name, (0,))[0] != stamp:
            _loaded[name] = stamp, Index(name)
        return _loaded[name][1]


def search(name: str, query: str, top_k: int = 10, legs: Sequence[str] = LEGS) -> list[Hit]:
    """The best places for a query: ranks of the legs fused, the graph's being of what is joined to the others' best."""
    if not legs or set(legs) - set(LEGS):
        raise ValueError(f"legs are some of {', '.join(LEGS)}, not {legs!r}")
    index, terms, spread = load(name), set(words(query)), defaultdict[int, float](float)
    joined = index.meta["joined"]
    ranks = [index.nearest(query)] * ("vector" in legs) + [index.lexical(query)] * ("bm25" in legs)
    ranks = ranks or [index.named(query)]  # the graph alone starts from what the query names
    scores = fuse(ranks)
    for i in best(scores) if "graph" in legs else []:
        for j in joined[i]:
            spread[j] += scores[i] / len(joined[i])
    scores = fuse([*ranks, best(spread)])
    hits = [(index.chunks[i], scores[i]) for i in best(scores)[:top_k]]
    return [chunk._replace(score=score, snippet=excerpt(chunk, terms)) for chunk, score in hits]


def fuse(ranks: Sequence[Sequence[int]]) -> dict[int, float]:
    """Reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""
    scores = defaultdict[int, float](float)
    for order in ranks:
        for rank, i in enumerate(order, start=1):
            scores[i] += 1 / (RRF + rank)
    return scores


def best(scores: dict[int, float]) -> list[int]:
    return sorted(scores, key=lambda i: (-scores[i], i))[:DEPTH]


def excerpt(chunk: Hit, terms: set[str]) -> str:
    """Numbered lines of a chunk, from where most of the query's words are."""
    rows = lines(chunk.snippet)
    has = [terms & set(words(row)) for row in rows]
    counts = [len(set().union(*has[i : i + 8])) for i in range(len(rows))]
    start = counts.index(max(counts))
    text = "\n".join(f"{n}: {row}" for n, row in enumerate(rows[start:], chunk.start + start))
    return text if len(text) <= SNIPPET else text[:SNIPPET].rsplit("\n", 1)[0]


def retrieval(name: str, samples: Sequence[Sample], top_k: int = 10) -> list[dict[str, Any]]:
    """How well each kind of search finds the gold places by the bare question: a tidy row a sample, system and metric.

    recall is the share of a sample's gold places that a hit among the first `top_k` overlaps, rank the place of the
    first such hit (null where there is none).
    """
    systems: dict[str, Callable[[str], list[Hit]]] = {"rg keywords": lambda query: rg_keywords(name, query, top_k)}
    for label, legs in {"bm25": ["bm25"], "vector": ["vector"], "graph": ["graph"], "hybrid": LEGS}.items():
        systems[label] = lambda query, legs=legs: search(name, query, top_k, legs)  # type: ignore[misc]
    rows = []
    for sample in (s for s in samples if s.gold.get("citations")):
        for system, find in systems.items():
            found = [Citation(path=h.path, start=h.start, end=h.end) for h in find(sample.prompt)]
            wanted = [Citation(path=c["path"], start=c["start"], end=c["end"]) for c in sample.gold["citations"]]
            recall = sum(any(overlap(w, f) for f in found) for w in wanted) / len(wanted)
            first = next((i for i, f in enumerate(found, 1) if any(overlap(w, f) for w in wanted)), None)
            same: dict[str, Any] = {"sample_id": sample.id, "cluster": sample.cluster, "condition": system}
            rows += [same | {"metric": "recall", "value": recall}, same | {"metric": "rank", "value": first}]
    return rows
