"""Tables of numbers: what is read, and what is refused with its place."""

import pytest
from PIL import Image

from vitrail.data.sources.values import check_varied, open_values, write_values
from vitrail.errors import VitrailError
from vitrail.tasks.context import samples_digest


@pytest.fixture
def write(tmp_path):
    for name in "abc":
        Image.new("RGB", (4, 4)).save(tmp_path / f"{name}.png")

    def written(*lines: str):
        path = tmp_path / "table.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return written


def refused(path, **options) -> VitrailError:
    with pytest.raises(VitrailError) as info:
        check_varied(open_values(path, **options))
    return info.value


def test_every_other_column_is_a_number_to_learn(write):
    source = open_values(write("path,age,split,weight", "a.png,3,train,-2.5", "b.png,4e1,test,0"))
    assert source.classes == ["age", "weight"]
    assert source.table("train").tolist() == [[3, -2.5]] and source.table("test").tolist() == [[40, 0]]
    assert source.words_of(source.splits["test"][0]) == ["age 40", "weight 0"]


def test_columns_are_chosen_in_the_order_asked_for(write):
    path = write("path,age,who,weight", "a.png,3,Ann,1", "b.png,4,Bob,2")
    assert refused(path).code == "not_a_number" and refused(path).fields == {"line": 2, "column": "who"}
    assert open_values(path, ["weight", "age"]).table("all").tolist() == [[1, 3], [2, 4]]
    assert refused(path, columns=["wieght"]).fields == {"column": "wieght"}


@pytest.mark.parametrize("cell", ["", " ", "nan", "NaN", "inf"])
def test_a_missing_number_is_refused_with_its_line_and_column(write, cell):
    error = refused(write("path,age,weight", "a.png,3,1", f"b.png,4,{cell}", "c.png,5,2"))
    assert error.code == "no_value" and error.fields == {"line": 3, "column": "weight"}


def test_a_column_that_is_the_same_everywhere_is_refused_by_its_name(write):
    lines = ["path,age,weight,split", "a.png,3,7,train", "b.png,4,7,train", "c.png,5,8,test"]
    error = refused(write(*lines))
    assert error.code == "constant_column" and error.fields == {"column": "weight"}


@pytest.mark.parametrize("header", ["path", "path,split"])
def test_a_table_without_numbers_is_refused(write, header):
    assert refused(write(header, "a.png" + ",train" * header.count(","))).code == "no_column"


def test_parquet_is_read_as_csv_is(tmp_path, write):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write("path,age", "a.png,1")
    columns = {"path": ["a.png", "b.png"], "age": [3, 4], "note": ["x", "y"]}
    parquet.write_table(arrow.table(columns), tmp_path / "table.parquet")
    assert open_values(tmp_path / "table.parquet", ["age"]).table("all").tolist() == [[3], [4]]
    parquet.write_table(arrow.table({"path": ["a.png", "b.png"], "age": [3.0, None]}), tmp_path / "table.parquet")
    assert refused(tmp_path / "table.parquet").fields == {"line": 2, "column": "age"}


def test_what_is_written_is_read_back_to_the_last_digit(tmp_path, write):
    source = open_values(write("path,age,split", "a.png,0.1,train", "b.png,1e-17,test"))
    again = open_values(write_values(tmp_path / "split.csv", source.splits, source.classes))
    assert {name: samples_digest(each) for name, each in again.splits.items()} == {
        name: samples_digest(each) for name, each in source.splits.items()
    }


def test_another_number_makes_another_data_set(write):
    before = samples_digest(open_values(write("path,age", "a.png,1")).splits["all"])
    assert samples_digest(open_values(write("path,age", "a.png,1.5")).splits["all"]) != before
