"""Where in the analyst's SQL something stands, so that an error can underline it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sqlglot import Token, TokenType, exp

from tablepuppet.errors import QueryError
from tablepuppet.sql.dialect import AsWritten


@dataclass(frozen=True)
class SqlText:
    """The SQL as the analyst wrote it."""

    text: str

    @cached_property
    def tokens(self) -> list[Token]:
        """The words and signs of the SQL, without comments."""
        return list(AsWritten().tokenize(self.text))

    def error(self, message: str, at: exp.Expr | None = None, keyword: str = "") -> QueryError:
        """A QueryError that underlines a node of the parsed SQL, from the ``keyword`` before it if one is given."""
        return QueryError(message, sql=self.text, span=self._from_keyword(keyword, at) if keyword else self.span(at))

    def error_at(self, message: str, span: tuple[int, int]) -> QueryError:
        """A QueryError that underlines what stands between two letters, with the brackets that belong to it."""
        return QueryError(message, sql=self.text, span=self._balanced(*span))

    def span(self, node: exp.Expr | None) -> tuple[int, int]:
        """Start and end of ``node``; of what it stands in, if it has no place of its own."""
        if node is None:
            return (self.tokens[0].start, self.tokens[-1].end + 1) if self.tokens else (0, len(self.text))
        return self._own_span(node) or self.span(node.parent)

    def _own_span(self, node: exp.Expr) -> tuple[int, int] | None:
        """All tokens below ``node``, with the name of a function and the brackets that they open or close."""
        places = [part.meta for part in node.walk() if "start" in part.meta]
        if not places:  # sqlglot gives some keywords no place: look for their text
            text = node.sql(dialect="duckdb").removesuffix("()").upper()
            found = (t.start for t in self.tokens if self.text[t.start : t.start + len(text)].upper() == text)
            return next(((start, start + len(text)) for start in found), None)
        start, end = min(place["start"] for place in places), max(place["end"] for place in places) + 1
        if isinstance(node, exp.Func):
            before, after = self._around(start, end)
            names = [token.text.upper() for token in before[-2:]]
            if len(names) == 2 and names[1] == "(" and names[0] in node.sql_names():
                start = before[-2].start
            elif after and after[0].start == end and after[0].text == "(":
                end = after[0].end + 1
        return self._balanced(start, end)

    def _around(self, start: int, end: int) -> tuple[list[Token], list[Token]]:
        return [t for t in self.tokens if t.start < start], [t for t in self.tokens if t.start >= end]

    def _balanced(self, start: int, end: int) -> tuple[int, int]:
        """The span, made longer until every bracket in it has its partner."""
        depth = lowest = 0
        for token in self.tokens:
            if start <= token.start < end:
                depth += _BRACKETS.get(token.token_type, 0)
                lowest = min(lowest, depth)
        before, after = self._around(start, end)
        closing = [token.end + 1 for token in after if token.token_type is TokenType.R_PAREN]
        opening = [token.start for token in before if token.token_type is TokenType.L_PAREN]
        missing = min(depth - lowest, len(closing)), min(-lowest, len(opening))
        return opening[-missing[1]] if missing[1] else start, closing[missing[0] - 1] if missing[0] else end

    def _from_keyword(self, word: str, node: exp.Expr | None) -> tuple[int, int]:
        """From the last token spelled ``word`` that stands before the node, to the node's end."""
        found = [token for token in self.tokens if token.text.upper().split()[:1] == [word]]
        own = self._own_span(node) if node is not None else None
        before = [token for token in found if own and token.start < own[0]]
        if own and before:
            return self._balanced(before[-1].start, own[1])
        return (found[-1].start, found[-1].end + 1) if found else self.span(node)


_BRACKETS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}
