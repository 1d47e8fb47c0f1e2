"""One-table expressions: the part of DuckDB's SQL that a party will evaluate.

An expression is arithmetic, comparisons, CASE, casts and listed functions over the columns of one table.
The planner checks what the analyst wrote; a party checks again what it was sent, with the same function,
since an expression is the only text that ever reaches its DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from sqlglot import Token, Tokenizer, TokenType, exp, parse_one
from sqlglot.errors import SqlglotError

from tablepuppet.errors import QueryError
from tablepuppet.sql.growth import MOST_LETTERS, Unbounded, letters

# Scalar, deterministic, and unable to see anything but their arguments.
FUNCTIONS = frozenset(
    """
    abs acos acosh asin asinh atan atan2 atanh cbrt ceil ceiling cos cosh cot degrees even exp factorial floor
    gamma gcd greatest isfinite isinf isnan lcm least lgamma ln log log10 log2 mod nextafter pi pow power radians
    round sign signbit sin sinh sqrt tan tanh trunc xor
    ascii bar bit_length chr concat concat_ws contains damerau_levenshtein editdist3 ends_with format hamming instr
    jaccard jaro_similarity jaro_winkler_similarity left len length levenshtein lower lpad ltrim md5 ord position prefix
    printf regexp_extract regexp_full_match regexp_matches regexp_replace repeat replace reverse right rpad rtrim
    starts_with strip_accents strlen strpos substr substring suffix translate trim unicode upper
    century date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth
    dayofweek dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear julian last_day make_date
    make_timestamp microsecond millennium millisecond minute month monthname quarter second strftime strptime
    time_bucket to_timestamp try_strptime week weekday weekofyear year yearweek
    """.split()
)
# Written like a call, but DuckDB's grammar or a macro that it brings along; sqlglot writes date() and if() otherwise.
FORMS = frozenset("cast coalesce extract nullif split_part try_cast".split())
SQLGLOT_FAULTS = (AttributeError, LookupError, TypeError, ValueError)
"""What sqlglot raises, beside its own errors, on functions of other dialects with arguments it does not expect."""

_ALLOWED = FUNCTIONS | FORMS
_WRITTEN = _ALLOWED | frozenset("char_length character_length date if ifnull lcase ucase".split())
_VOLATILE = frozenset(
    """
    age gen_random_uuid get_current_time get_current_timestamp nextval now rand random setseed today
    transaction_timestamp uuid uuidv4 uuidv7
    """.split()
)
_TYPES = frozenset(
    """
    BIGINT BOOLEAN CHAR DATE DECIMAL DOUBLE FLOAT INT INT128 INTERVAL SMALLINT TEXT TIME TIMESTAMP TIMESTAMPNTZ
    TIMESTAMPTZ TIMESTAMP_MS TIMESTAMP_NS TIMESTAMP_S TINYINT UBIGINT UINT USMALLINT UTINYINT UUID VARCHAR
    """.split()
)
# Words of the grammar and types that may stand before a bracket; any other word there is the name of a function.
_GRAMMAR = frozenset(
    """
    all and between both case distinct else escape exclude for from glob ilike in interval is leading like not on or
    select then to trailing union using when where zone
    """.split()
)
_SIZED_TYPES = frozenset("char character dec decimal numeric string text varchar varying".split())
_SYNTAX: tuple[type[exp.Expr], ...] = (
    exp.Column, exp.Identifier, exp.Literal, exp.RawString, exp.ByteString, exp.Boolean, exp.Null, exp.Paren, exp.Var,
    exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ,
    exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.SimilarTo, exp.Glob, exp.Escape,
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe,
    exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift,
    exp.Case, exp.If, exp.Cast, exp.DataType, exp.DataTypeParam, exp.Interval, exp.AtTimeZone,
)  # fmt: skip
_REASONS = (
    (exp.Query, "a subquery inside an expression is not supported yet; join the table instead"),
    (exp.Exists, "a subquery inside an expression is not supported yet; join the table instead"),
    (exp.Filter, "aggregates are not supported: the learner works on rows; aggregate in a view at the party"),
    (exp.Any, "ANY is not supported; write IN with the values, or join the table"),
    (exp.All, "ALL is not supported; write NOT IN with the values"),
    (exp.AggFunc, "aggregates are not supported: the learner works on rows; aggregate in a view at the party"),
    (exp.Window, "window functions are not supported; compute the value in a view at the party"),
    (exp.Star, "a * is not supported inside an expression; name the column"),
    (exp.Placeholder, "query parameters are not supported; write the value"),
    (exp.Parameter, "query parameters are not supported; write the value"),
    (exp.Lambda, "lambdas are not supported; compute the value in a view at the party"),
    (exp.Collate, "COLLATE is not supported; compare lower(...) of both sides, or what else the collation means"),
    (exp.JSONExtract, "JSON access is not supported yet; extract the value in a view at the party"),
    (exp.JSONExtractScalar, "JSON access is not supported yet; extract the value in a view at the party"),
    (exp.Bracket, "lists and [] are not supported yet; compute the value in a view at the party"),
    (exp.Array, "lists and [] are not supported yet; compute the value in a view at the party"),
    (exp.Tuple, "row values are not supported; compare one column at a time, with AND"),
    (exp.Dot, "names with dots and method calls are not supported here; write function(column)"),
)


class Refused(Exception):  # noqa: N818 - not an error of ours: parse.py turns it into a QueryError with a place
    """Why an expression is refused, and the node at fault where there is one."""

    def __init__(self, reason: str, node: exp.Expr | None = None):
        super().__init__(reason)
        self.node = node


def render(node: exp.Expr) -> str:
    """Canonical DuckDB SQL of an expression: equal expressions have equal text."""
    return node.sql(dialect="duckdb", comments=False, normalize_functions="lower")


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
    for part in node.walk():
        for kind, reason in _REASONS:
            if isinstance(part, kind):
                raise Refused(reason, part)
        _check_part(part)
    _check_growth(node)


def _check_growth(node: exp.Expr) -> None:
    try:
        size = letters(node)
    except Unbounded as error:
        reason = "the expression must state as a number how long the text becomes, so that a party can limit it"
        raise Refused(reason, error.node) from None
    if size > MOST_LETTERS:
        raise Refused(
            f"the expression makes texts of up to {size:,} letters, more than the {MOST_LETTERS:,} that a party makes; "
            "compute the value in a view at the party",
            node,
        )


def _check_part(part: exp.Expr) -> None:
    """One node of the tree: known syntax, or a call of a listed function under its plain name."""
    what = ""
    if isinstance(part, exp.In):
        if isinstance(part.args.get("query"), exp.Query):
            raise Refused("a subquery inside an expression is not supported yet; join the table instead", part)
        what = "" if part.expressions else "IN without a list in brackets"
    elif isinstance(part, exp.Like | exp.ILike):
        what = "LIKE ANY or ALL" if isinstance(part.expression, exp.Any | exp.All) else ""
    elif isinstance(part, exp.DataType):
        what = "" if part.this.name in _TYPES else f"the type {render(part)}"
    elif isinstance(part, exp.Func) and not isinstance(part, _SYNTAX):
        name = _called(part)
        if part.sql_name().startswith(("CURRENT", "LOCALTIME", "SESSION")) or name in _VOLATILE:
            raise Refused("the value must be the same whenever it is read; write the date, time or number itself", part)
        what = "" if name in _ALLOWED else f"function {name or part.sql_name().lower()}"
    elif not isinstance(part, _SYNTAX):
        what = "this"
    if what:
        raise Refused(unsupported(what), part)


def unsupported(what: str) -> str:
    """The message about something that no party evaluates."""
    return f"{what} is not supported in an expression; compute the value in a view at the party"


def unlisted_call(tokens: Sequence[Token]) -> Token | None:
    """The first name before a bracket that is no function of the list: sqlglot knows those of every dialect."""
    for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False):
        word = token.token_type not in (TokenType.STRING, TokenType.NUMBER) and token.text[:1].isidentifier()
        if after.token_type is not TokenType.L_PAREN or not (word or token.token_type is TokenType.IDENTIFIER):
            continue
        name = token.text.lower().split()[-1] if word else token.text.lower()
        cast = before is not None and before.token_type in (TokenType.ALIAS, TokenType.DCOLON, TokenType.CHAR)
        if name in _WRITTEN or (name in _SIZED_TYPES and cast):
            continue
        if name not in _GRAMMAR or token.token_type is TokenType.IDENTIFIER:
            return token
    return None


def _called(part: exp.Expr) -> str:
    """The name of the function as DuckDB will see it; empty for what is not written as a call."""
    try:
        tokens = Tokenizer(dialect="duckdb").tokenize(render(part))
    except SQLGLOT_FAULTS:
        return ""
    is_call = len(tokens) > 2 and tokens[1].token_type is TokenType.L_PAREN
    return tokens[0].text.lower() if is_call and tokens[0].text.isidentifier() else ""


def checked(text: str) -> exp.Expr:
    """The parsed expression of ``text``; QueryError unless it is one that a party may evaluate.

    >>> checked("amount > 100 AND upper(kind) = 'A'").sql()
    "amount > 100 AND UPPER(kind) = 'A'"
    >>> checked("getenv('HOME')")
    Traceback (most recent call last):
    tablepuppet.errors.QueryError: function getenv is not supported in an expression; compute the value in a view...
    """
    try:
        node = parse_one(text, dialect="duckdb")
        check(node)
        unlisted = unlisted_call(Tokenizer(dialect="duckdb").tokenize(text))
    except (SqlglotError, RecursionError, *SQLGLOT_FAULTS) as error:
        raise QueryError("an expression of the plan cannot be parsed") from error
    except Refused as refused:
        raise QueryError(str(refused)) from refused
    if unlisted is not None:
        raise QueryError(unsupported(f"function {unlisted.text}"))
    if any(column.table for column in node.find_all(exp.Column)):
        raise QueryError("an expression of the plan names its columns without a table")
    return node


@lru_cache(maxsize=4096)
def is_column(text: str) -> bool:
    """Whether an expression is a column, and nothing is computed.

    >>> is_column("(a)"), is_column("a + 0")
    (True, False)
    """
    return isinstance(checked(text).unnest(), exp.Column)


@lru_cache(maxsize=4096)
def columns_of(text: str) -> tuple[str, ...]:
    """The columns that an expression reads, in order of first use.

    >>> columns_of("CASE WHEN a > 1 THEN b ELSE a END")
    ('a', 'b')
    """
    found = checked(text).find_all(exp.Column, bfs=False)
    return tuple(dict.fromkeys(column.name for column in found))
