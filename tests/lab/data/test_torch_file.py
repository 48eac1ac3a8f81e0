"""Files of torch.save that expand to more than they hold, or hold more than weights, are refused in one sentence."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile

import pytest
import torch
from damage import refusal

from evenflow.lab.data.guarded import read_bytes
from evenflow.lab.data.table_file import csv_header
from evenflow.lab.data.torch_file import MoreThanWeights, TooLarge, read_torch_file
from evenflow.lab.diagnosis.cli_target import diagnose_target
from evenflow.lab.training import Run


def test_round_trip(tmp_path):
    content = {"w": torch.randn(3, 4), "rest": [1, "two", {"x": torch.arange(5)}]}
    torch.save(content, tmp_path / "w.pt")
    found = read_torch_file(tmp_path / "w.pt")
    assert torch.equal(found["w"], content["w"])
    assert found["rest"][:2] == [1, "two"]


def bomb(path):
    buffer = io.BytesIO()
    torch.save({"weight_hh_l0": torch.zeros(8, 8)}, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, bytes(1 << 24) if info.filename.endswith("data/0") else old.read(info))


def test_what_expands_is_refused_unless_the_limit_allows_it(tmp_path):
    bomb(tmp_path / "bomb.pt")
    with pytest.raises(TooLarge, match=r"^cannot read '.*bomb.pt': it expands to 16,.* bytes, more than"):
        read_torch_file(tmp_path / "bomb.pt")
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, tmp_path / "wide.pt")
    with pytest.raises(TooLarge, match=r"a tensor in it, of shape .*, stands for 4,398,046,511,104 bytes"):
        read_torch_file(tmp_path / "wide.pt")
    torch.save({"w": torch.zeros(1).expand(1 << 12)}, tmp_path / "small.pt")
    assert read_torch_file(tmp_path / "small.pt", limit=1 << 20)["w"].shape == (1 << 12,)


def test_doctor_refuses_them_too(tmp_path):
    wide = torch.zeros(1).expand(1 << 16, 1 << 16)
    torch.save({"weight_ih_l0": wide, "weight_hh_l0": wide}, tmp_path / "wide.pt")
    with pytest.raises(ValueError, match=r"stands for 17,179,869,184 bytes.*: say --trusted if you know") as no:
        diagnose_target(str(tmp_path / "wide.pt"))
    assert "\n" not in str(no.value)


@pytest.mark.parametrize("content", [b"junk", b"PK\x03\x04junk", b"\x80\x02junk"])
def test_damaged_files_are_one_sentence(tmp_path, content):
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"^cannot read '.*w.pt': it ") as no:
        read_torch_file(tmp_path / "w.pt")
    assert "\n" not in str(no.value)


class Planted:
    def __reduce__(self):
        return print, ("planted",)


def test_more_than_weights_is_not_read(tmp_path, capsys):
    torch.save({"w": Planted()}, tmp_path / "w.pt")
    with pytest.raises(MoreThanWeights, match="it holds more than weights"):
        read_torch_file(tmp_path / "w.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Planted(), protocol=2))
    with pytest.raises(ValueError, match="cannot read"):
        read_torch_file(tmp_path / "plain.pt")
    assert capsys.readouterr().out == ""


def test_a_read_asks_for_what_the_file_has(tmp_path):
    """It asked for the limit, which no machine had to give."""
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bytes(tmp_path / "a", 1 << 60) == b"12345"


def test_many_columns_are_compared_in_linear_time():
    class Name(str):
        compared = 0
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

        def strip(self, *_):
            return self

    names = [Name(f"column {i}") for i in range(3000)]
    assert csv_header("a.csv", names) == names
    assert Name.compared < 40_000


def test_an_empty_config_is_not_that_of_fit(tmp_path):
    (tmp_path / "config.toml").write_bytes(b"# nothing\n")
    with pytest.raises(ValueError, match=r"^config.toml of run '.*' is damaged: there is nothing in it$"):
        Run(tmp_path)


def test_an_archive_that_says_it_spans_several_disks(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"a": torch.zeros(3)}, path)
    content = bytearray(path.read_bytes())
    locator = content.rfind(b"PK\x06\x07")
    if locator < 0:  # the locator of a large archive, in front of the end of this one
        end = content.rfind(b"PK\x05\x06")
        content[end:end] = b"PK\x06\x07" + struct.pack("<LQL", 0, 0, 2)
    else:
        content[locator + 16 : locator + 20] = struct.pack("<L", 2)
    path.write_bytes(content)
    assert refusal(read_torch_file, path).startswith(f"cannot read {str(path)!r}: it is ")
