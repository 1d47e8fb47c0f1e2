"""Which views make one row of several, by the words of their definitions; no row is read.

Such a view at one party sums up the rows of that party only. Where its table has other shards, a group with rows at
several parties is there several times, each with a part: the coordinator warns of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlglot import Token, TokenType, tokenize
from sqlglot.errors import SqlglotError

from tablepuppet.sql.reading import aggregates

_WORDS = frozenset("GROUP HAVING OVER LIMIT FETCH QUALIFY INTERSECT EXCEPT".split())


def aggregating(definitions: Mapping[str, str], dialect: str, names: Collection[str] | None = None) -> frozenset[str]:
    """The names of views that aggregate, or read one that does; ``definitions`` are by name.

    With ``names``, no other views are looked at than these and those that they read.

    >>> views = {"plain": "SELECT a FROM t", "sums": "SELECT a, sum(b) FROM t GROUP BY a", "both": "SELECT a FROM Sums"}
    >>> sorted(aggregating(views, "duckdb"))
    ['both', 'sums']
    """
    spelled = {name.lower(): name for name in definitions}
    tokens: dict[str, list[Token]] = {}
    left = [name for name in definitions if names is None or name in names]
    while left:
        if (name := left.pop()) not in tokens:
            tokens[name] = _tokens(definitions[name], dialect)
            left += [spelled[word.text.lower()] for word in tokens[name] if word.text.lower() in spelled]
    found = {name for name, words in tokens.items() if _aggregates(words)}
    while more := {
        name
        for name, words in tokens.items()
        if name not in found and {word.text.lower() for word in words} & {each.lower() for each in found}
    }:
        found |= more
    return frozenset(found)


def _tokens(text: str, dialect: str) -> list[Token]:
    try:
        return list(tokenize(text, read=dialect))
    except SqlglotError:  # of a dialect that sqlglot does not know well: split as DuckDB's would be
        return [Token(TokenType.VAR, word) for word in text.replace("(", " ( ").split()]


def _aggregates(tokens: list[Token]) -> bool:
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        word, following = token.text.upper(), "" if after is None else after.text.upper()
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER) and following != "(":
            continue
        if word.split()[:1] and word.split()[0] in _WORDS and (before is None or before.text != "."):
            return True
        if word == "DISTINCT" and following != "FROM":  # IS DISTINCT FROM compares two values
            return True
        if word == "UNION" and following not in ("ALL", "BY"):
            return True
        if following == "(" and word.lower() in aggregates():
            return True
    return False
