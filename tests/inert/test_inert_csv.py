"""Numbers of .csv files: headers are recognized, and each mistake is named by line and column."""

from __future__ import annotations

import pytest

from quarl.errors import QuarlError
from quarl.inert import reading_budget
from quarl.inert.csv_rows import read_csv

HEADERS = ["", "x,y\r\n\r\n", "0,1\n", "\ufeff\n"]  # none, names, those of pandas, a byte-order mark
MISTAKES = {
    b"x,y\n1,2\n3,4,5\n": "line 3 has 3 columns, but the first line has 2",
    b"x,y\n1,2\n\n3,four\n": "line 4, column 2 is 'four'; use a finite number",
    b"1,2\n1_000,inf\n": "line 2, column 1 is '1_000'; use a finite number",
    b"x,y\n": "has no row of numbers: write one row per step",
    b"1,\xff\n": "is not comma-separated text in UTF-8: ",
    b'1,"2\n': "is not comma-separated text in UTF-8: unexpected end of data",
}


@pytest.mark.parametrize("header", HEADERS)
def test_read_csv_returns_a_row_per_line_without_its_header(header):
    assert read_csv(f'{header}1,"-2.5"\n 3 ,4e1'.encode(), "log.csv").tolist() == [[1, -2.5], [3, 40]]


@pytest.mark.parametrize("data", MISTAKES)
def test_read_csv_names_the_place_of_a_mistake_in_one_line(data):
    with pytest.raises(QuarlError) as error:
        read_csv(data, "log.csv")
    assert MISTAKES[data] in str(error.value).partition("\n")[0]


def test_read_csv_bounds_the_numbers_of_a_file(monkeypatch):
    monkeypatch.setattr(reading_budget, "SMALL_COPIES", -1300)
    with pytest.raises(QuarlError, match=r"log\.csv: it has more than -?[\d,]+ bytes to be made of its own"):
        read_csv(b"1\n" * 11, "log.csv")
