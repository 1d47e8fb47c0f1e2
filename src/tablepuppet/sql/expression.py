"""One-table expressions: the part of DuckDB's SQL that a party will evaluate.

An expression is arithmetic, comparisons, CASE, casts and listed functions over the columns of one table.
The planner checks what the analyst wrote; a party checks again what it was sent, with the same function,
since an expression is the only text that ever reaches its DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tablepuppet.errors import QueryError
from tablepuppet.sql.advice import AGGREGATING_VIEW, AS_JOIN, IN_SUBQUERY, NO_WAY, VIEW
from tablepuppet.sql.dialect import AsWritten
from tablepuppet.sql.growth import MOST_LETTERS, Unbounded, letters
from tablepuppet.sql.reading import Unread, aggregates, are_read_alike

# Scalar, deterministic, and unable to see anything but their arguments.
FUNCTIONS = frozenset(
    """
    abs acos acosh asin asinh atan atan2 atanh cbrt ceil ceiling cos cosh cot degrees even exp factorial floor
    gamma gcd greatest isfinite isinf isnan lcm least lgamma ln log log10 log2 mod nextafter pi pow power radians
    round sign signbit sin sinh sqrt tan tanh trunc xor
    ascii bar bit_length char_length character_length chr concat concat_ws contains damerau_levenshtein editdist3
    ends_with format hamming instr jaccard jaro_similarity jaro_winkler_similarity lcase left len length levenshtein
    lower lpad ltrim md5 ord position
    prefix printf regexp_extract regexp_full_match regexp_matches regexp_replace repeat replace reverse right rpad rtrim
    starts_with strip_accents strlen strpos substr substring suffix translate trim ucase unicode upper
    century date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth
    dayofweek dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear julian last_day make_date
    make_timestamp microsecond millennium millisecond minute month monthname quarter second strftime strptime
    time_bucket to_timestamp try_strptime week weekday weekofyear year yearweek
    """.split()
)
# Written like a call, but DuckDB's grammar or a macro that it brings along.
FORMS = frozenset("cast coalesce date extract if ifnull nullif split_part try_cast".split())
MOST_TEXT = 200_000  # letters of an expression
MOST_PARTS = 30_000  # columns, values and operators of one: DuckDB takes kilobytes of memory to read each
SQLGLOT_FAULTS = (AttributeError, LookupError, TypeError, ValueError)
"""What sqlglot raises, beside its own errors, on SQL that it does not expect."""

MOST_KEPT_LETTERS = 1 << 20  # of expressions that are not checked again: a wide table has thousands of columns
_TIMES = frozenset("age get_current_time get_current_timestamp now today transaction_timestamp".split())
_RANDOM = frozenset("gen_random_uuid nextval rand random setseed uuid uuidv4 uuidv7".split())
_TYPES = frozenset(
    """
    BIGINT BOOLEAN CHAR DATE DECIMAL DOUBLE FLOAT INT INT128 INTERVAL SMALLINT TEXT TIME TIMESTAMP TIMESTAMPNTZ
    TIMESTAMPTZ TIMESTAMP_MS TIMESTAMP_NS TIMESTAMP_S TINYINT UBIGINT UINT USMALLINT UTINYINT UUID VARCHAR
    """.split()
)
_SYNTAX: tuple[type[exp.Expr], ...] = (
    exp.Column, exp.Identifier, exp.Literal, exp.RawString, exp.ByteString, exp.Boolean, exp.Null, exp.Paren, exp.Var,
    exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ,
    exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.SimilarTo, exp.Glob, exp.Escape,
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe,
    exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift,
    exp.Pow, exp.RegexpLike, exp.StartsWith, exp.Trim, exp.Substring, exp.StrPosition,
    exp.Case, exp.If, exp.Cast, exp.DataType, exp.DataTypeParam, exp.Interval, exp.AtTimeZone,
)  # fmt: skip
_OPERATORS = exp.Binary | exp.Unary | exp.Between | exp.In
_CHAINS = (exp.And, exp.Or, exp.DPipe, exp.Add | exp.Sub, exp.Mul | exp.Div | exp.IntDiv | exp.Mod)
_KEYWORDS = frozenset(
    word.upper()
    for words in (
        AsWritten.Tokenizer.KEYWORDS, AsWritten.Parser.NO_PAREN_FUNCTION_PARSERS,
        AsWritten.Generator.RESERVED_KEYWORDS, ["IF"],
    )
    for word in words
)  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,9999}")  # a longer one is read as any expression, which has a limit
_SUBQUERY = f"a subquery inside an expression is not supported yet; {AS_JOIN}"
_LONG_LIST = f"put a long list of values into a table and join it, or {VIEW}"
_AGGREGATE = f"aggregates are not supported: the learner works on rows; {IN_SUBQUERY}"
_CHANGES = "the value must be the same whenever it is read; write the date, time or name itself"
_BY_CHANCE = f"the value must be the same whenever it is read; for values by chance {NO_WAY}"
_REASONS = (
    (exp.Query, _SUBQUERY),
    (exp.Exists, _SUBQUERY),
    (exp.Filter, _AGGREGATE),
    (exp.Any, "ANY is not supported; write = ANY as IN, others as a comparison with the least or greatest value"),
    (exp.Window, f"window functions are not supported; {AGGREGATING_VIEW}"),
    (exp.Star, "a * is not supported inside an expression; name the column"),
    (exp.Placeholder, "a parameter needs a value: fed.sql(..., params={...})"),
    (exp.Parameter, "a parameter needs a value: fed.sql(..., params={...})"),
    (exp.Lambda, f"lambdas are not supported; {VIEW}"),
    (
        exp.Collate,
        "COLLATE is not supported; for NOCASE compare lower(...) of both sides, for NOACCENT strip_accents(...)",
    ),
    (exp.JSONExtract, f"JSON access is not supported yet; {VIEW}"),
    (exp.JSONExtractScalar, f"JSON access is not supported yet; {VIEW}"),
    (exp.Bracket, f"lists and [] are not supported yet; {VIEW}"),
    (exp.Array, f"lists and [] are not supported yet; {VIEW}"),
    (exp.Tuple, "row values are not supported; write (a, b) = (c, d) as a = c AND b = d, and several of them with OR"),
    (exp.Dot, "names with dots and method calls are not supported here; write function(column)"),
)


TWO_WAYS = "this could be read in two ways; write brackets around its parts, or a plainer operator for the same"


class Refused(Exception):  # noqa: N818 - not an error of ours: parse.py turns it into a QueryError with a place
    """Why an expression is refused, and the node at fault where there is one."""

    def __init__(self, reason: str, node: exp.Expr | None = None):
        super().__init__(reason)
        self.node = node


def render(node: exp.Expr, *, copy: bool = True) -> str:
    """DuckDB SQL of a tree: equal expressions have equal text. Without a ``copy``, the tree is of no use after it."""
    return node.sql(dialect=AsWritten, copy=copy, comments=False, normalize_functions="lower")


def bracketed(node: exp.Expr, *, copy: bool = True) -> str:
    """An expression with brackets around every operator, so that nothing depends on which of them binds first.

    Without a ``copy``, the tree is of no use after it.

    >>> bracketed(parse_one("NOT a IN (1) AND b % c ^ 2 > 0", dialect=AsWritten))
    '(NOT (a IN (1))) AND ((b % (power(c, 2))) > 0)'
    """
    whole = exp.Paren(this=node.copy() if copy else node)
    for part in reversed(list(whole.this.walk())):
        if isinstance(part, _OPERATORS) and not _needs_none(part):
            inner = exp.Paren()
            part.replace(inner)
            inner.set("this", part)
    return render(whole.this.pop(), copy=False)


def _needs_none(part: exp.Expr) -> bool:
    """Whether brackets cannot stand, or change nothing: operators of one kind are read from the left."""
    around = part.parent
    if isinstance(around, exp.Paren | exp.Escape):
        return True
    return part.arg_key == "this" and any(isinstance(part, kind) and isinstance(around, kind) for kind in _CHAINS)


def written(node: exp.Expr) -> str:
    """Canonical DuckDB SQL of an expression: without brackets, unless DuckDB would then read something else.

    Raises `Refused` for what DuckDB cannot read even with brackets.
    """
    text = render(node)
    if is_plain_column(node):
        return text
    safe = bracketed(node)
    try:
        return text if are_read_alike([safe, text]) else safe
    except Unread:
        raise Refused(TWO_WAYS, node) from None


def is_plain_column(node: exp.Expr) -> bool:
    """Whether it is a column, by a name that DuckDB cannot take for anything else."""
    inner = node.unnest()
    return isinstance(inner, exp.Column) and (inner.this.quoted or not is_reserved(inner.name))


def is_reserved(name: str) -> bool:
    """Whether a name must be in quotes: it is no plain word, or a word of SQL."""
    return not _PLAIN.fullmatch(name) or name.upper() in _KEYWORDS


def identifier(name: str) -> exp.Identifier:
    """A column name, quoted only where SQL needs it."""
    return exp.to_identifier(name, quoted=is_reserved(name))


def column_text(name: str) -> str:
    """The expression that is a column.

    >>> column_text("price"), column_text("order"), column_text('12" discs')
    ('price', '"order"', '"12"" discs"')
    """
    return '"' + name.replace('"', '""') + '"' if is_reserved(name) else name


def and_parts(node: exp.Expr) -> Iterator[exp.Expr]:
    """The parts of a condition that AND connects."""
    inner = node.unnest()
    if isinstance(inner, exp.And):
        for part in inner.flatten():
            yield from and_parts(part)
    else:
        yield inner


def check(node: exp.Expr) -> None:
    """Raise `Refused` unless ``node`` is an expression that a party may evaluate."""
    for number, part in enumerate(node.walk()):
        if number == MOST_PARTS:
            raise Refused(f"an expression has at most {MOST_PARTS:,} parts; {_LONG_LIST}", node)
        if isinstance(part, exp.Any | exp.All) and part.find(exp.Query):
            raise Refused(_SUBQUERY, part)
        for kind, reason in _REASONS:
            if isinstance(part, kind):
                raise Refused(reason, part)
        _check_part(part)
    _check_growth(node)


def _check_growth(node: exp.Expr) -> None:
    try:
        size = letters(node)
    except Unbounded as error:
        reason = f"the expression must state as a number how long the text becomes; write the number, or {VIEW}"
        raise Refused(reason, error.node) from None
    if size > MOST_LETTERS:
        raise Refused(
            f"the expression makes texts of up to {size:,} letters, more than the {MOST_LETTERS:,} that a party makes; "
            f"{VIEW}",
            node,
        )


def _check_part(part: exp.Expr) -> None:
    """One node of the tree: known syntax, or a call of a listed function under its plain name."""
    what = ""
    if isinstance(part, exp.In):
        if isinstance(part.args.get("query"), exp.Query):
            raise Refused(_SUBQUERY, part)
        what = "" if part.expressions else "IN without a list of values in brackets"
    elif isinstance(part, exp.Like | exp.ILike):
        what = "LIKE ANY or ALL" if isinstance(part.expression, exp.Any | exp.All) else ""
    elif isinstance(part, exp.DataType):
        what = "" if part.this.name in _TYPES else f"the type {render(part)}"
    elif isinstance(part, exp.Anonymous):
        what = "" if (name := part.name.lower()) in FUNCTIONS | FORMS else f"function {name}"
        if name in _TIMES | _RANDOM:
            raise Refused(_CHANGES if name in _TIMES else _BY_CHANCE, part)
        if name in aggregates():
            raise Refused(_AGGREGATE, part)
    elif isinstance(part, exp.Func) and part.sql_name().startswith(("CURRENT", "LOCALTIME", "SESSION")):
        raise Refused(_CHANGES, part)
    elif not isinstance(part, _SYNTAX):
        what = "this"
    if what:
        raise Refused(unsupported(what), part)


def unsupported(what: str) -> str:
    """The message about something that no party evaluates."""
    return f"{what} is not supported in an expression; {VIEW}"


def checked(text: str) -> exp.Expr:
    """The parsed expression of ``text``; QueryError unless it is one that a party may evaluate.

    >>> checked("amount > 100 AND upper(kind) = 'A'").sql()
    "amount > 100 AND UPPER(kind) = 'A'"
    >>> checked("getenv('HOME')")
    Traceback (most recent call last):
    tablepuppet.errors.QueryError: function getenv is not supported in an expression; compute the value in a view...
    """
    return _checked(text).node.copy()  # whoever asked may change it


@dataclass(frozen=True)
class _Read:
    """An expression that a party may evaluate; nobody may change its tree."""

    node: exp.Expr
    columns: tuple[str, ...]


class _Kept:
    """The last expressions that were read, up to a number of letters: trees take a thousand times that in bytes."""

    def __init__(self, letters: int) -> None:
        self._left, self._lock = letters, Lock()
        self._found: dict[str, _Read] = {}  # the one used last is the last

    def __call__(self, text: str) -> _Read:
        with self._lock:
            if text in self._found:
                found = self._found[text] = self._found.pop(text)
                return found
        found = _read(text)
        with self._lock:
            if text not in self._found:
                self._found[text], self._left = found, self._left - len(text)
            while self._left < 0:
                oldest = next(iter(self._found))
                del self._found[oldest]
                self._left += len(oldest)
        return found


def _read(text: str) -> _Read:
    if len(text) > MOST_TEXT:
        raise QueryError(
            f"an expression has {len(text):,} letters, more than the {MOST_TEXT:,} that a party reads; {_LONG_LIST}"
        )
    try:
        node = parse_one(text, dialect=AsWritten)
        check(node)
        names = {column.name for column in node.find_all(exp.Column)}
        if not is_plain_column(node) and not are_read_alike([text, bracketed(node), render(node)], names):
            if not are_read_alike([text, bracketed(node)], names):
                raise Refused(TWO_WAYS)
            node = parse_one(bracketed(node), dialect=AsWritten)
    except (SqlglotError, RecursionError, Unread, *SQLGLOT_FAULTS) as error:
        raise QueryError("an expression of the plan cannot be parsed") from error
    except Refused as refused:
        raise QueryError(str(refused)) from refused
    if any(column.table for column in node.find_all(exp.Column)):
        raise QueryError("an expression of the plan names its columns without a table")
    found = node.find_all(exp.Column, bfs=False)
    return _Read(node, tuple(dict.fromkeys(column.name for column in found)))


_checked = _Kept(MOST_KEPT_LETTERS)


def is_column(text: str) -> bool:
    """Whether an expression is a column, and nothing is computed.

    >>> is_column("(a)"), is_column("a + 0")
    (True, False)
    """
    return not is_reserved(text) or isinstance(_checked(text).node.unnest(), exp.Column)


def columns_of(text: str) -> tuple[str, ...]:
    """The columns that an expression reads, in order of first use.

    >>> columns_of("CASE WHEN a > 1 THEN b ELSE a END")
    ('a', 'b')
    """
    return _checked(text).columns if is_reserved(text) else (text,)  # a plain name need not be parsed


def never_failing(node: exp.Expr) -> str:
    """The expression with NULL for rows on which it fails. TRY takes long where it fails often, as casts may."""
    whole = exp.Paren(this=node.copy())
    for cast in [part for part in whole.find_all(exp.Cast) if type(part) is exp.Cast]:
        cast.replace(exp.TryCast(**cast.args))
    return f"TRY{render(whole)}"


def with_alias(text: str, alias: str) -> str:
    """An expression as a query has it, where a column may need its table's alias.

    >>> with_alias("price", "o"), with_alias("a = b", "o")
    ('o.price', '(o.a = o.b)')
    """
    node = _checked(text).node.copy()
    for column in node.find_all(exp.Column):
        column.set("table", identifier(alias))
    return render(node if isinstance(node, exp.Column) else exp.Paren(this=node))
