"""The relation as a matrix, against SciPy, NumPy and scikit-learn on the materialised join.

Run with ``python -m benchmarks.algebra``. Ratios are measured side by side in one process, ours and the other in turn;
the best of several runs counts. Tables are open, and the join is materialised, before the clock starts on either side.
Writes ``benchmarks/results/algebra.json``. MovieLens-1M is skipped where it is absent (benchmarks/data.py).

- products: X @ V and X.T @ U for 1 and 32 vectors against SciPy's CSR, by duplication: joined rows over base rows.
- movielens: k-means and principal components.
- pooled: 500,000 x 50, cut by rows into two shards, and by columns into two tables.
- plans: an L2-SVM with a line search (Table 1 of the SystemDS paper) over one table in three shards: in one process,
  where cells are not collected by cost, and behind services. Trips and bytes are measured; what they take on a line
  from the US to the UK is computed from them, and measured through a proxy that delays them as such a line does. Then
  `tp.linalg.l2svm` over the services where no policy lets cells be collected.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsmr
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.svm import LinearSVC

import tablepuppet as tp
from benchmarks.data import DATA, ROOT, is_there
from benchmarks.proxy import US_UK, Proxy
from benchmarks.turns import best
from tablepuppet.algebra.placement import PLANS
from tablepuppet.party.config import Limits
from tablepuppet.party.policy import EVERY_USE, ColumnRule, Policy, TableRule, Use
from tablepuppet.wire.traffic import communication_seconds
from tests.wire.services import calling, served

Tables = dict[str, dict[str, pa.Table]]
CLOSED = Policy(others=TableRule(others=ColumnRule(EVERY_USE & ~Use.VALUE)))  # no cells are collected
NUMBERS, CATEGORIES = 8, 20  # columns of a table of the products, and categories of its last one


def written(folder: Path, tables: Tables) -> dict[str, str]:
    """URLs of new databases, by party."""
    for party, listed in tables.items():
        (folder / party).mkdir()
        for name, table in listed.items():
            pyarrow.parquet.write_table(table, folder / party / f"{name}.parquet")
    return {party: f"parquet://{folder / party}" for party in tables}


@contextmanager
def opened(tables: Tables, **settings: Any) -> Iterator[tp.Federation]:
    """A federation of databases in this process."""
    with tempfile.TemporaryDirectory() as folder:
        yield tp.Federation(written(Path(folder), tables), **settings)


def many_to_many(rows: int, duplication: int) -> tuple[Tables, str]:
    """Two tables whose rows each occur ``duplication`` times in their join of so many rows, and the query."""
    rng, tables = np.random.default_rng(0), {}
    base = rows // duplication
    keys = np.repeat(np.arange(base // duplication), duplication)
    for name in ("a", "b"):
        columns: dict[str, Any] = {"k": rng.permutation(keys)}
        columns |= {f"{name}{number}": rng.normal(size=len(keys)) for number in range(NUMBERS)}
        columns[f"{name}c"] = rng.integers(0, CATEGORIES, len(keys)).astype(str)
        tables[name] = {f"t{name}": pa.table(columns)}
    listed = [f"t{name}.{name}{end}" for name in tables for end in (*range(NUMBERS), "c")]
    return tables, f"SELECT {', '.join(listed)} FROM ta JOIN tb USING (k)"


def products(rows: int, repeats: int) -> list[dict[str, Any]]:
    """Products against CSR, by duplication and vectors."""
    found = []
    for duplication in (1, 5, 20):
        tables, sql = many_to_many(rows, duplication)
        with opened(tables) as fed:
            x = fed.sql(sql).matrix()
            joined = csr_array(x @ np.eye(x.shape[1]))
            rng = np.random.default_rng(1)
            for vectors in (1, 32):
                v, u = rng.normal(size=(x.shape[1], vectors)), rng.normal(size=(x.shape[0], vectors))
                v, u = (v[:, 0], u[:, 0]) if vectors == 1 else (v, u)
                for name, ours, theirs in (
                    ("X @ V", lambda x=x, v=v: x @ v, lambda joined=joined, v=v: joined @ v),
                    ("X.T @ U", lambda x=x, u=u: x.T @ u, lambda joined=joined, u=u: joined.T @ u),
                ):
                    line = {"product": name, "duplication": duplication, "vectors": vectors, "rows": x.shape[0]}
                    found.append(line | best(ours, theirs, repeats))
                    print(found[-1], flush=True)
    return found


def movielens(repeats: int) -> dict[str, Any]:
    """K-means and principal components of the joined ratings, users and movies, from the same first clusters."""
    fed = tp.Federation({"owner": f"parquet://{DATA / 'movielens-1m'}"})
    sql = (
        "SELECT r.rating, u.age, u.occupation, u.gender, m.year, m.genre FROM ratings r JOIN users u USING (user_id) "
        "JOIN movies_genres m USING (movie_id)"
    )
    x = fed.sql(sql).matrix()
    joined = x @ np.eye(x.shape[1])
    first = joined[np.random.default_rng(0).choice(len(joined), 10, replace=False)]
    return {
        "rows": x.shape[0],
        "columns": x.shape[1],
        "kmeans, k = 10, one run, 20 rounds": best(
            lambda: tp.linalg.kmeans(x, k=10, runs=1, max_iter=20),
            lambda: KMeans(10, init=first, n_init=1, max_iter=20, tol=0).fit(joined),
            repeats,
        ),
        "pca, 10 components": best(
            lambda: tp.linalg.pca(x, components=10), lambda: PCA(10, svd_solver="covariance_eigh").fit(joined), repeats
        ),
    }


def cut(x: np.ndarray[Any, Any], by: str) -> tuple[Tables, str]:
    """The numbers as two shards of a table, or as two tables that are joined one to one."""
    names = [f"x{number}" for number in range(x.shape[1])]
    half = len(x) // 2 if by == "rows" else x.shape[1] // 2
    if by == "rows":
        parts = {"a": x[:half], "b": x[half:]}
        return {
            party: {"t": pa.table(dict(zip(names, part.T, strict=True)))} for party, part in parts.items()
        }, f"SELECT {', '.join(names)} FROM t"
    keys = np.arange(len(x))
    tables = {
        "a": {"ta": pa.table({"k": keys} | dict(zip(names[:half], x.T[:half], strict=True)))},
        "b": {"tb": pa.table({"k": keys} | dict(zip(names[half:], x.T[half:], strict=True)))},
    }
    return tables, f"SELECT {', '.join(names)} FROM ta JOIN tb USING (k)"


def pooled(rows: int, repeats: int) -> dict[str, Any]:
    """Programs on 50 columns against NumPy and scikit-learn on the array itself."""
    values = np.random.default_rng(0).normal(size=(rows, 50))
    found: dict[str, Any] = {"rows": rows}
    for by in ("rows", "columns"):
        tables, sql = cut(values, by)
        with opened(tables) as fed:
            found[f"cut by {by}"] = {}
            for name, (ours, theirs) in programs(fed.sql(sql).matrix()).items():
                found[f"cut by {by}"][name] = best(ours, theirs, repeats)
                print(by, name, found[f"cut by {by}"][name], flush=True)
    return found


def programs(x: Any) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Ours and theirs by name, with a label that depends on all columns."""
    joined = x @ np.eye(x.shape[1])
    rng = np.random.default_rng(1)
    y = joined @ rng.normal(size=x.shape[1]) + rng.normal(size=len(joined))
    classes = y + 10 * rng.normal(size=len(y)) > 0
    return {
        "colMeans": (lambda: x.mean(axis=0), lambda: joined.mean(axis=0)),
        "t(X)X": (lambda: x.T @ x, lambda: joined.T @ joined),
        "lmCG": (lambda: lsmr(x, y, atol=1e-8, btol=1e-8), lambda: lsmr(joined, y, atol=1e-8, btol=1e-8)),
        "pca": (lambda: tp.linalg.pca(x, 10), lambda: PCA(10, svd_solver="covariance_eigh").fit(joined)),
        "kmeans, k = 4, 20 rounds": (
            lambda: tp.linalg.kmeans(x, k=4, runs=1, max_iter=20),
            lambda: KMeans(4, n_init=1, max_iter=20, tol=0, init="random", random_state=0).fit(joined),
        ),
        "l2svm": (
            lambda: tp.linalg.l2svm(x, classes, l2=1e-3, tol=1e-4),
            lambda: LinearSVC(C=1 / (2 * 1e-3 * len(y)), dual=False, tol=1e-4).fit(joined, classes),
        ),
    }


def l2svm(x: Any, y: np.ndarray[Any, Any], l2: float = 1.0, rounds: int = 20) -> np.ndarray[Any, Any]:
    """A support vector machine by nonlinear conjugate gradients, whose line search is made of small vector steps."""
    w = np.zeros(x.shape[1])
    old = x.T @ y
    s, xw = old, np.zeros(x.shape[0])
    for _ in range(rounds):
        xd, wd, dd = x @ s, l2 * (w @ s), l2 * (s @ s)
        step = 0.0
        for _ in range(20):  # Newton's method along the line
            out = 1 - y * (xw + step * xd)
            support = out > 0
            slope = wd + step * dd - np.sum(out * y * xd * support)
            bend = dd + np.sum(xd * xd * support)
            step -= slope / bend
            if slope * slope / bend < 1e-12:
                break
        w, xw = w + step * s, xw + step * xd
        out = 1 - y * xw
        new = x.T @ (np.where(out > 0, out, 0) * y) - l2 * w
        if new @ new < 1e-8 * (old @ old):
            break
        s, old = (new @ new) / (old @ old) * s + new, new
    return w


def plans(rows: int, repeats: int) -> dict[str, Any]:
    """The support vector machine by each plan: in one process, over three services, and over a line from US to UK."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(rows, 20))
    signs = np.where(values.sum(axis=1) + 5 * rng.normal(size=rows) > 0, 1.0, -1.0)
    names = [*(f"x{number}" for number in range(20)), "y"]
    thirds = np.array_split(np.column_stack([values, signs]), 3)
    tables = {f"p{i}": {"t": pa.table(dict(zip(names, part.T, strict=True)))} for i, part in enumerate(thirds)}
    sql = f"SELECT {', '.join(names)} FROM t"
    found: dict[str, Any] = {"rows": rows}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        urls = written(Path(folder), tables)
        servers = stack.enter_context(served(urls, limits=Limits()))
        closed = calling(stack.enter_context(served(urls, limits=Limits(), policy=CLOSED)))
        proxies = {name: stack.enter_context(Proxy("127.0.0.1", each.port, **US_UK)) for name, each in servers.items()}
        far = {name: f"grpc://127.0.0.1:{proxy.port}" for name, proxy in proxies.items()}
        for where, fed, times in (
            ("in one process", tp.Federation(urls), repeats),
            ("services", calling(servers), repeats),
            ("services behind a US-UK line", tp.Federation(far), 1),
        ):
            found[where] = {plan: trained(l2svm, fed, sql, plan, times) for plan in PLANS}
            print(where, json.dumps(found[where], indent=1), flush=True)
        allowed = [plan for plan in PLANS if plan != "collect"]
        found["tp.linalg.l2svm"] = {plan: trained(tp.linalg.l2svm, closed, sql, plan, repeats) for plan in allowed}
        print(json.dumps(found["tp.linalg.l2svm"], indent=1), flush=True)
    return found


def trained(program: Callable[..., Any], fed: tp.Federation, sql: str, plan: Any, repeats: int) -> dict[str, Any]:
    """Seconds, trips and bytes of a support vector machine by a plan, the best of several runs."""
    lines: list[dict[str, Any]] = []
    for _ in range(repeats):
        relation = fed.sql(sql, label="y")
        y, x = relation.label(), relation.matrix(plan=plan)
        traffic = fed.engine.traffic
        trips, size, began = traffic.trips, traffic.bytes, time.perf_counter()
        program(x, y)
        seconds = round(time.perf_counter() - began, 3)
        lines.append({"seconds": seconds, "trips": traffic.trips - trips, "bytes": traffic.bytes - size})
    line = min(lines, key=lambda each: each["seconds"])
    away = communication_seconds(line["trips"], line["bytes"])
    return line | {f"computed seconds of {name}": round(value, 2) for name, value in away.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="joined rows of the products")
    parser.add_argument("--pooled-rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["products", "movielens", "pooled", "plans"])
    asked = parser.parse_args()
    file = ROOT / "benchmarks" / "results" / "algebra.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    parts: dict[str, Callable[[], Any]] = {
        "plans": lambda: plans(asked.pooled_rows // 5, asked.repeats),
        "products": lambda: products(asked.rows, asked.repeats),
        "movielens": lambda: movielens(max(asked.repeats // 2, 1)) if is_there("movielens-1m") else {},
        "pooled": lambda: pooled(asked.pooled_rows, max(asked.repeats // 2, 1)),
    }
    for name, run in parts.items():
        if asked.only in (None, name):
            found[name] = run()
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
