"""The catalog: which shards agree, what it says where they do not, and how it shows itself."""

from __future__ import annotations

import pytest

from tablepuppet.errors import CatalogError
from tablepuppet.sql.catalog import Catalog, Shard
from tests.sql.example import CATALOG


def two(first: dict[str, str], second: dict[str, str]) -> Catalog:
    """Two shards of one table at two parties."""
    return Catalog([Shard("east", "cards", first, 3), Shard("west", "CARDS", second, 4)])


def test_shards_of_one_name_are_one_table() -> None:
    """Tables of one name, whatever its case, are one vertical table with the rows of all."""
    table = two({"id": "INTEGER"}, {"ID": "BIGINT"}).table("Cards")
    assert (table.name, table.rows, table.columns) == ("cards", 7, {"id": "BIGINT"})
    assert [(shard.party, shard.name) for shard in table.shards] == [("east", "cards"), ("west", "CARDS")]


def test_a_column_has_one_spelling_whichever_shards_are_named() -> None:
    """The first shard spells the columns, also where a query names another one only."""
    catalog = two({"id": "INTEGER", "kind": "VARCHAR"}, {"KIND": "VARCHAR", "Id": "BIGINT"})
    assert catalog.table("cards", ["west"]).columns == {"kind": "VARCHAR", "id": "BIGINT"}
    assert catalog.table("cards", ["west"]).name == "cards"


def test_names_that_differ_in_case_only_are_found_as_written() -> None:
    """A name is found as it is spelled, else without regard to case."""
    table = Catalog([Shard("east", "t", {"Id": "INTEGER", "id": "VARCHAR"}, 1)]).table("t")
    assert (table.find("id"), table.find("Id"), table.find("ID"), table.find("x")) == ("id", "Id", "Id", None)


def test_a_missing_column_is_named_with_both_parties() -> None:
    """Shards with other columns do not agree; the error says which and what to do."""
    expected = (
        "shards of table 'cards' differ: party 'west' has column 'zip', party 'east' has not; publish a view with the "
        "same columns, or name one shard in the SQL as east.cards"
    )
    with pytest.raises(CatalogError) as caught:
        two({"id": "INTEGER"}, {"id": "INTEGER", "zip": "VARCHAR"}).table("cards")
    assert str(caught.value) == expected


def test_a_type_that_differs_is_named_with_both_parties() -> None:
    """Text and integer do not agree; the error says where each is."""
    expected = (
        "shards of table 'cards' differ in column 'id': INTEGER at party 'east', VARCHAR at party 'west'; "
        "publish a view that casts one of them"
    )
    with pytest.raises(CatalogError) as caught:
        two({"id": "INTEGER"}, {"Id": "VARCHAR"}).table("cards")
    assert str(caught.value) == expected


def test_three_shards_that_agree_pairwise_only() -> None:
    """The error names a pair even if the first shard agrees with each of the others."""
    shards = [
        Shard("a", "t", {"x": "DECIMAL(20,0)"}, 1),
        Shard("b", "t", {"x": "DECIMAL(38,0)"}, 1),
        Shard("c", "t", {"x": "DECIMAL(38,18)"}, 1),
    ]
    with pytest.raises(CatalogError, match=r"differ in column 'x': DECIMAL\(\d+,0\) at party '.', DECIMAL"):
        Catalog(shards).table("t")


def test_one_party_cannot_publish_a_table_twice() -> None:
    """Two tables of one party whose names differ in case only cannot be told apart in SQL."""
    catalog = Catalog([Shard("east", "T", {"x": "INTEGER"}, 1), Shard("east", "t", {"x": "INTEGER"}, 1)])
    with pytest.raises(CatalogError, match="party 'east' publishes 'T' and 't'; SQL ignores case"):
        catalog.table("t")


@pytest.mark.parametrize(
    ("name", "parties", "message"),
    [
        ("card", [None], "no party publishes a table 'card'; did you mean 'cards'?"),
        ("zzz", [None], "no party publishes a table 'zzz'; there are: cards"),
        ("cards", ["east", "north"], "party 'north' publishes no table 'cards'; it is at: east, west"),
    ],
)
def test_unknown_names(name: str, parties: list[str | None], message: str) -> None:
    """An unknown table or party is an error that names what there is."""
    with pytest.raises(CatalogError) as caught:
        two({"id": "INTEGER"}, {"id": "INTEGER"}).table(name, parties)
    assert str(caught.value) == message


def test_all_tables_find_the_one_that_does_not_agree() -> None:
    """``tables`` goes through all of them."""
    with pytest.raises(CatalogError, match="'readings'"):
        CATALOG.tables()
    agreeing = two({"id": "INTEGER"}, {"id": "BIGINT"})
    assert [table.columns for table in agreeing.tables()] == [{"id": "BIGINT"}]


def test_parties_and_names() -> None:
    """Parties in order of first appearance, tables under the first shard's name."""
    catalog = two({"id": "INTEGER"}, {"id": "INTEGER"})
    assert (catalog.parties, catalog.names) == (["east", "west"], ["cards"])


def test_to_arrow_has_a_row_per_column_of_each_shard() -> None:
    """``to_arrow`` gives table, party, column, type and rows."""
    table = two({"id": "INTEGER"}, {"Id": "BIGINT"}).to_arrow()
    assert table.to_pylist() == [
        {"table": "cards", "party": "east", "column": "id", "type": "INTEGER", "rows": 3},
        {"table": "cards", "party": "west", "column": "Id", "type": "BIGINT", "rows": 4},
    ]
    assert Catalog([]).to_arrow().column_names == table.column_names


def test_text_and_html_show_every_table() -> None:
    """A terminal and a notebook show tables, parties, rows, and columns by type; the same are not repeated."""
    columns = {"id": "INTEGER", "name": "VARCHAR", "year": "INTEGER"}
    catalog = Catalog([Shard("east", "cards", columns, 3000), Shard("west", "cards", columns, 4)])
    text = str(catalog)
    assert repr(catalog) == text
    assert [line.split("│")[1:-1] for line in text.splitlines() if "│" in line] == [
        [" cards ", " east  ", " 3,000 ", " INTEGER ", " id, year "],
        ["       ", "       ", "       ", " VARCHAR ", " name     "],
        ["       ", " west  ", "     4 ", "         ", " the same "],
    ]
    html = catalog._repr_html_()
    assert html.count("<tr>") == 4
    assert all(f">{cell}<" in html for cell in ("cards", "east", "3,000", "INTEGER", "id, year", "the same"))


def test_shards_agree_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a table is asked for, the types of its columns are compared once for the same shards."""
    compared = list[list[str]]()

    def widest(types: list[str]) -> str:
        compared.append(types)
        return types[-1]

    monkeypatch.setattr("tablepuppet.sql.catalog.widest", widest)
    catalog = two({"id": "INTEGER"}, {"id": "BIGINT"})
    assert catalog.table("cards") is catalog.table("CARDS", ["east", "west"])
    assert compared == [["INTEGER", "BIGINT"]]
    assert catalog.table("cards", ["east"]).columns == {"id": "INTEGER"}
