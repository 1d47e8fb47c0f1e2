"""A file of a party's database that is damaged: that is what the error says, not that an expression fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import tablepuppet as tp
from tablepuppet.party.database import UnavailableError


@pytest.mark.parametrize("item", ["s", "length(s)", "x * 2"])
@pytest.mark.parametrize("compression", ["snappy", "none"])
def test_a_damaged_page_of_a_parquet_file(tmp_path: Path, item: str, compression: str) -> None:
    """Whatever is selected of the table."""
    (tmp_path / "p").mkdir()
    file = tmp_path / "p" / "t.parquet"
    rows = pa.table({"s": pa.array([f"name {i % 7}" for i in range(3000)]), "x": np.arange(3000.0)})
    pyarrow.parquet.write_table(rows, file, compression=compression)
    content = bytearray(file.read_bytes())
    content[4:-2000] = bytes([0xFF]) * (len(content) - 2004)  # pages; the list of columns is at the end
    file.write_bytes(content)
    with pytest.raises(UnavailableError, match=r"'t' cannot be read .* is damaged") as error:
        tp.Federation({"a": f"parquet:///{tmp_path / 'p'}"}).sql(f"SELECT {item} AS found FROM t")
    assert "expression" not in str(error.value)
