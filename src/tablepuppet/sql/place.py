"""Where in the analyst's SQL something stands, so that an error can underline it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sqlglot import Token, Tokenizer, TokenType, exp

from tablepuppet.errors import QueryError


@dataclass(frozen=True)
class SqlText:
    """The SQL as the analyst wrote it."""

    text: str

    @cached_property
    def tokens(self) -> list[Token]:
        """The words and signs of the SQL, without comments."""
        return list(Tokenizer(dialect="duckdb").tokenize(self.text))

    def error(self, message: str, at: exp.Expr | None = None, keyword: str = "") -> QueryError:
        """A QueryError that underlines a node of the parsed SQL, from the ``keyword`` before it if one is given."""
        return QueryError(message, sql=self.text, span=self._from_keyword(keyword, at) if keyword else self.span(at))

    def span(self, node: exp.Expr | None) -> tuple[int, int]:
        """Start and end of ``node``: all tokens below it, with the brackets that they open or close."""
        places = [part.meta for part in node.walk() if "start" in part.meta] if node is not None else []
        if not places:  # some keywords carry no place: underline what they stand in
            return self.span(node.parent) if node is not None and node.parent else self._all
        start, end = min(place["start"] for place in places), max(place["end"] for place in places) + 1
        depth = lowest = 0
        for token in self.tokens:
            if start <= token.start < end:
                depth += _BRACKETS.get(token.token_type, 0)
                lowest = min(lowest, depth)
        for _ in range(depth - lowest):
            end = next((t.end + 1 for t in self.tokens if t.start >= end and t.token_type is TokenType.R_PAREN), end)
        for _ in range(-lowest):
            opening = [t.start for t in self.tokens if t.start < start and t.token_type is TokenType.L_PAREN]
            start = opening[-1] if opening else start
        return start, end

    def _from_keyword(self, word: str, node: exp.Expr | None) -> tuple[int, int]:
        """From the last token spelled ``word`` that stands before the node, to the node's end."""
        start, end = self.span(node)
        found = [token for token in self.tokens if token.text.upper().split()[:1] == [word]]
        before = [token for token in found if token.start < start]
        if before:
            return before[-1].start, end
        return (found[-1].start, found[-1].end + 1) if found else (start, end)

    @property
    def _all(self) -> tuple[int, int]:
        return (self.tokens[0].start, self.tokens[-1].end + 1) if self.tokens else (0, len(self.text))


_BRACKETS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}
