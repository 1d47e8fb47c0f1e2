"""The catalog that the SQL tests share: several parties, sharded tables, awkward names, every family of types."""

from __future__ import annotations

import duckdb

from tablepuppet.sql.catalog import Catalog, Shard

ORDERS = {
    "order_id": "BIGINT",
    "item_id": "INTEGER",
    "card_id": "VARCHAR",
    "day": "DATE",
    "placed": "TIMESTAMP",
    "price": "DOUBLE",
    "quantity": "SMALLINT",
    "discount": "DECIMAL(5,2)",
    "returned": "BOOLEAN",
    "note": "VARCHAR",
    "user": "VARCHAR",
}
ITEMS = {
    "item_id": "BIGINT",
    "name": "VARCHAR",
    "kind": "ENUM('toy', 'food')",
    "weight": "FLOAT",
    "price": "DECIMAL(8,2)",
    "since": "DATE",
    "details": "JSON",
    "photo": "BLOB",
}
CARDS = {"card_id": "VARCHAR", "holder": "VARCHAR", "credit_limit": "INTEGER", "opened": "DATE", "region_id": "INTEGER"}
CARDS_WEST = {
    "Card_ID": "VARCHAR",
    "Holder": "VARCHAR",
    "Credit_Limit": "BIGINT",
    "opened": "DATE",
    "region_id": "SMALLINT",
}
REGIONS = {"region_id": "INTEGER", "Country": "VARCHAR", "code": "UUID", "population": "HUGEINT"}
ODD = {
    "group": "INTEGER",
    "two words": "VARCHAR",
    "größe": "DOUBLE",
    'quo"te': "VARCHAR",
    "if": "BOOLEAN",
    "item_id": "BIGINT",
    "tags": "VARCHAR[]",
}
WEATHER_NORTH = {"station": "VARCHAR", "hour": "TIMESTAMP WITH TIME ZONE", "temp": "FLOAT", "rain": "DECIMAL(4,1)"}
WEATHER_SOUTH = {"station": "VARCHAR", "hour": "TIMESTAMP", "temp": "DOUBLE", "rain": "DECIMAL(4,2)"}

SHARDS = (
    Shard("store", "orders", ORDERS, 1_000_000),
    Shard("supplier", "items", ITEMS, 20_000),
    Shard("bank_east", "cards", CARDS, 50_000),
    Shard("bank_west", "Cards", CARDS_WEST, 30_000),
    Shard("geo", "regions", REGIONS, 12),
    Shard("geo", "Odd Table", ODD, 7),
    Shard("geo", "edges", {"src": "BIGINT", "dst": "BIGINT", "weight": "DOUBLE", "kind": "VARCHAR"}, 400),
    Shard("north", "weather", WEATHER_NORTH, 8_760),
    Shard("south-2", "weather", WEATHER_SOUTH, 8_760),
    Shard("store", "readings", {"id": "INTEGER", "value": "DOUBLE"}, 10),
    Shard("supplier", "readings", {"id": "VARCHAR", "value": "DOUBLE"}, 10),
    Shard("store", "visits", {"id": "INTEGER", "seen": "DATE"}, 10),
    Shard("supplier", "visits", {"id": "INTEGER"}, 10),
)
CATALOG = Catalog(SHARDS)
DISAGREEING = ("readings", "visits")


def empty_duckdb() -> duckdb.DuckDBPyConnection:
    """A DuckDB with the same tables, empty: a schema per party, and each vertical table in the main schema."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for shard in SHARDS:
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{shard.party}"')
        connection.execute(f'CREATE TABLE "{shard.party}"."{shard.name}" ({_columns(shard.columns)})')
    for name in CATALOG.names:
        if name not in DISAGREEING:
            connection.execute(f'CREATE TABLE main."{name}" ({_columns(dict(CATALOG.table(name).columns))})')
    return connection


def _columns(columns: dict[str, str] | object) -> str:
    assert isinstance(columns, dict)
    return ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}" {type_name}' for name, type_name in columns.items())
