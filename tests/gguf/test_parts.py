"""Split GGUF files: any part opens all of them, and what does not fit together is refused."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import gguf
import gguf_bytes as b
import numpy as np
import pytest

from rocmforge.cli import main
from rocmforge.engine import Engine
from rocmforge.errors import GGUFError, NoSuchFileError
from rocmforge.gguf import header
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.requantize import quantize_gguf
from rocmforge.model.synthetic import make_model
from rocmforge.sampling_params import SamplingParams

PROMPT = [3, 5, 8, 13, 21]


def split(whole: Path, folder: Path, most_tensors: int) -> list[Path]:
    """Write a model anew in parts, by the gguf package."""
    reader = gguf.GGUFReader(whole)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    target = folder / "model.gguf"
    writer = gguf.GGUFWriter(target, architecture.contents(), split_max_tensors=most_tensors)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("model-*.gguf"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("whole") / "tiny.gguf", "tiny", "Q4_K_M")


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> list[Path]:
    found = split(whole, tmp_path, 15)
    assert [path.name for path in found] == [f"model-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
    return found


def test_any_part_opens_all_tensors(whole: Path, parts: list[Path]) -> None:
    with GGUFFile(whole) as one:
        for path in parts:
            with GGUFFile(path) as file:
                assert (file.path, file.parts) == (path, 3)
                assert file.nbytes == sum(part.stat().st_size for part in parts)
                assert set(file.tensors) == set(one.tensors)
                assert {info.part for info in file.tensors.values()} == {0, 1, 2}
                for name, info in file.tensors.items():
                    assert (info.shape, info.format) == (
                        one.tensors[name].shape,
                        one.tensors[name].format,
                    )
                    np.testing.assert_array_equal(file.tensor(name), one.tensor(name))
                    file.release(name)
                assert file.get("general.architecture", str) == "llama"
                kept = file.tensor("token_embd.weight")
        assert kept.sum() == one.tensor("token_embd.weight").sum()  # valid when all is closed


def test_a_split_model_generates_what_the_whole_one_does(whole: Path, parts: list[Path]) -> None:
    def tokens(path: Path) -> list[int]:
        with Engine.from_gguf(path, "cpu", ctx=64) as engine:
            return [token.id for token in engine.generate([PROMPT], SamplingParams(max_tokens=12))]

    assert tokens(parts[1]) == tokens(whole)


def test_a_split_model_is_quantized_into_one_file(parts: list[Path], tmp_path: Path) -> None:
    quantize_gguf(parts[0], tmp_path / "small.gguf", "Q4_0")
    with GGUFFile(tmp_path / "small.gguf") as file:
        assert file.parts == 1
        assert not any(key.startswith("split.") for key in file.metadata)
        assert "Q4_0" in {info.format.name for info in file.tensors.values()}


def test_info_counts_the_parts(parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(parts[2])]) == 0
    assert "in 3 parts" in capsys.readouterr().out


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(GGUFError, match=r"got 2 of 3.*missing: model-00002-of-00003\.gguf"):
        GGUFFile(parts[0])
    with pytest.raises(NoSuchFileError):
        GGUFFile(parts[1])


def test_a_part_under_another_name_is_refused(parts: list[Path]) -> None:
    alone = parts[0].with_name("model.gguf")
    shutil.copy(parts[0], alone)
    with pytest.raises(GGUFError, match=r"wanted NAME-00001-of-00003\.gguf: it is part 1 of 3"):
        GGUFFile(alone)
    shutil.copy(parts[1], parts[2])
    with pytest.raises(GGUFError, match=r"model-00003-of-00003.*split\.no 1 .*wanted 2 and 3"):
        GGUFFile(parts[0])


def test_a_part_of_a_file_without_parts_is_refused(parts: list[Path], whole: Path) -> None:
    shutil.copy(whole, parts[2])
    with pytest.raises(GGUFError, match=r"model-00003-of-00003.*split\.no None"):
        GGUFFile(parts[0])


def test_a_part_that_is_cut_short_is_named(parts: list[Path]) -> None:
    data = parts[2].read_bytes()
    parts[2].write_bytes(data[: len(data) - 4096])
    with pytest.raises(GGUFError, match=r"model-00003-of-00003.*cut short"):
        GGUFFile(parts[0])


def made(folder: Path, keys: Sequence[Sequence[bytes]], names: Sequence[str]) -> Path:
    """Two parts, byte by byte, of a tensor each."""
    for number, (own, name) in enumerate(zip(keys, names, strict=True), 1):
        record = b.tensor(name, [8], b.F32_TYPE, 0)
        path = folder / f"x-{number:05d}-of-00002.gguf"
        path.write_bytes(b.gguf(own, [record], bytes(32)))
    return folder / "x-00001-of-00002.gguf"


def keys_of(number: int, count: int = 2, tensors: int = 2) -> list[bytes]:
    return [
        b.key("split.no", b.U16, b.numbers(b.U16, number)),
        b.key("split.count", b.U16, b.numbers(b.U16, count)),
        b.key("split.tensors.count", b.I32, b.numbers(b.I32, tensors)),
    ]


def test_parts_made_by_hand_open(tmp_path: Path) -> None:
    with GGUFFile(made(tmp_path, [keys_of(0), keys_of(1)], "ab")) as file:
        assert [(info.name, info.part) for info in file.tensors.values()] == [("a", 0), ("b", 1)]


@pytest.mark.parametrize(
    ("keys", "names", "said"),
    [
        ([keys_of(0), keys_of(1)], "aa", "also in x-00001-of-00002"),
        ([keys_of(0, tensors=3), keys_of(1)], "ab", "got 2, wanted 3, as split.tensors.count says"),
        ([keys_of(0), keys_of(1, count=3)], "ab", "split.no 1 and split.count 3"),
        ([keys_of(0, count=60_000), keys_of(1)], "ab", "got 60000, wanted at most 512"),
        ([keys_of(1), keys_of(0)], "ab", "wanted NAME-00002-of-00002"),
        (
            [[b.key("split.count", b.STRING, b.string("2"))], keys_of(1)],
            "ab",
            "wanted an integer, not below 0",
        ),
        (
            [[b.key("split.count", b.I32, b.numbers(b.I32, -2))], keys_of(1)],
            "ab",
            "wanted an integer, not below 0",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(
    keys: list[list[bytes]], names: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(GGUFError) as caught:
        GGUFFile(made(tmp_path, keys, names))
    assert said in str(caught.value)


def test_the_limits_hold_for_all_parts_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = b.key("words", b.ARRAY, b.array(b.STRING, [b.string("x")] * 3))
    path = made(tmp_path, [[*keys_of(0), words], [*keys_of(1), words]], "ab")
    GGUFFile(path).close()
    for limit, value, named in (
        ("MAX_STRINGS", 5, "at most 2, the reader's limit"),
        ("MAX_TENSORS", 1, "at most 0, the reader's limit"),
        ("MAX_HEADER_BYTES", 300, "bytes of a header"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(header, limit, value)
            with pytest.raises(GGUFError, match="x-00002-of-00002") as caught:
                GGUFFile(path)
            assert named in str(caught.value)


def test_one_part_is_a_whole_file_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "one.gguf"
    record = b.tensor("a", [8], b.F32_TYPE, 0)
    path.write_bytes(b.gguf(keys_of(0, count=1, tensors=1), [record], bytes(32)))
    with GGUFFile(path) as file:
        assert file.parts == 1


def test_broken_parts_end_in_an_error_or_open(tmp_path: Path) -> None:
    first = made(tmp_path, [keys_of(0), keys_of(1)], "ab")
    both = [first, first.with_name("x-00002-of-00002.gguf")]
    good = [path.read_bytes() for path in both]
    rng = random.Random(0)
    refused = 0
    for _ in range(600):
        broken = [bytearray(data) for data in good]
        target = broken[rng.randrange(2)]
        for _ in range(rng.randint(1, 3)):
            target[rng.randrange(len(target))] = rng.randrange(256)
        if rng.random() < 0.2:
            del target[rng.randrange(len(target)) :]
        for path, data in zip(both, broken, strict=True):
            path.write_bytes(data)
        try:
            with GGUFFile(first) as file:
                assert file.parts in (1, 2)
                for name in file.tensors:
                    file.tensor(name).sum()
        except GGUFError:
            refused += 1
    assert refused > 300
