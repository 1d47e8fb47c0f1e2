"""One-table expressions: the part of DuckDB's SQL that a party will evaluate.

An expression is arithmetic, comparisons, CASE, casts and listed functions over the columns of one table.
The planner checks what the analyst wrote; a party checks again what it was sent, with the same function,
since an expression is the only text that ever reaches its DuckDB.
"""

from __future__ import annotations

from sqlglot import Tokenizer, TokenType, exp, parse_one
from sqlglot.errors import SqlglotError

from tablepuppet.errors import QueryError

# Scalar, deterministic, and unable to see anything but their arguments.
FUNCTIONS = frozenset(
    """
    abs acos asin atan atan2 cbrt ceil ceiling cos cot degrees even exp factorial floor gamma gcd greatest isfinite
    isinf isnan lcm least lgamma ln log log10 log2 mod nextafter pi pow power radians round sign signbit sin sqrt
    tan trunc xor
    ascii bar bit_length chr concat concat_ws contains editdist3 ends_with format hamming instr jaccard
    jaro_similarity jaro_winkler_similarity left len length levenshtein lower lpad ltrim md5 position prefix
    regexp_extract regexp_full_match regexp_matches regexp_replace repeat replace reverse right rpad rtrim
    starts_with strip_accents strlen strpos substr substring suffix translate trim upper
    century date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth
    dayofweek dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear julian last_day make_date
    make_timestamp microsecond millennium millisecond minute month monthname quarter second strftime strptime
    time_bucket try_strptime week weekday weekofyear year yearweek
    """.split()
)
# Written like a call, but DuckDB's grammar or a macro that it brings along; sqlglot writes date() and if() otherwise.
FORMS = frozenset("cast coalesce extract nullif split_part try_cast".split())
_ALLOWED = FUNCTIONS | FORMS
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


def check(node: exp.Expr) -> None:
    """Raise `Refused` unless ``node`` is an expression that a party may evaluate."""
    for part in node.walk():
        for kind, reason in _REASONS:
            if isinstance(part, kind):
                raise Refused(reason, part)
        _check_part(part)


def _check_part(part: exp.Expr) -> None:
    """One node of the tree: known syntax, or a call of a listed function under its plain name."""
    what = ""
    if isinstance(part, exp.In):
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
        raise Refused(f"{what} is not supported in an expression; compute the value in a view at the party", part)


def _called(part: exp.Expr) -> str:
    """The name of the function as DuckDB will see it; empty for what is not written as a call."""
    tokens = Tokenizer(dialect="duckdb").tokenize(render(part))
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
    except (SqlglotError, RecursionError) as error:
        raise QueryError("an expression of the plan cannot be parsed") from error
    except Refused as refused:
        raise QueryError(str(refused)) from refused
    if any(column.table for column in node.find_all(exp.Column)):
        raise QueryError("an expression of the plan names its columns without a table")
    return node


def columns_of(text: str) -> tuple[str, ...]:
    """The columns that an expression reads, in order of first use.

    >>> columns_of("CASE WHEN a > 1 THEN b ELSE a END")
    ('a', 'b')
    """
    found = checked(text).find_all(exp.Column, bfs=False)
    return tuple(dict.fromkeys(column.name for column in found))
