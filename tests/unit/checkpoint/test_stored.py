"""Entries of fetched checkpoints: packed, read when they are needed, and left out where they are not what they seem."""

import gzip
import pickle
import random
import zlib

import pytest
from msgspec.structs import asdict

from kvgate.checkpoint import stored
from kvgate.checkpoint.published import ModelName, Published, PublishedError
from kvgate.checkpoint.stored import EntryTooLarge, StoredModels, entry_key, packed, unpacked
from support.builders import new_llama_config

MINE = Published(name="Mine/Small", revision="v1", commit="0a1b", source="hub", config=new_llama_config())
KEY = ModelName(MINE.name, MINE.revision).key


def test_an_entry_is_read_as_it_was_packed() -> None:
    assert asdict(unpacked(packed(MINE))) == asdict(MINE)


def test_the_key_of_an_entry_is_a_key_of_a_config_map_that_people_can_read() -> None:
    key = entry_key("mine/small@feature/x")
    assert key.startswith("mine--small-feature--x.")
    assert key.endswith(".json.gz")
    assert len(entry_key("a" * 500)) <= 253
    assert entry_key("mine/small-x") != entry_key("mine/small@x"), "names that look alike have entries of their own"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (b"", "it is cut off"),
        (b"no gzip", "it is not gzipped text"),
        (packed(MINE)[:-9], "it is cut off"),
        (gzip.compress(b"[]", mtime=0), "it is JSON of type list, not an object"),
        (gzip.compress(b'{"name": "a/b"}', mtime=0), "missing required field `config`"),
        (gzip.compress(b"\xff\xfe", mtime=0), "write the entry anew"),
    ],
)
def test_an_entry_that_cannot_be_read_says_why(entry: bytes, problem: str) -> None:
    with pytest.raises(PublishedError, match=problem):
        unpacked(entry)


def test_a_small_entry_that_grows_without_end_is_read_no_further_than_the_limit() -> None:
    bomb = zlib.compressobj(wbits=31)
    parts = [bomb.compress(b" " * (1 << 20)) for _ in range(64)]
    with pytest.raises(PublishedError, match="longer than 4,000,000 bytes"):
        unpacked(b"".join([*parts, bomb.flush()]))


def test_what_there_is_no_room_for_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = random.Random(1).randbytes(stored.MAX_ENTRY_BYTES).hex()
    with pytest.raises(EntryTooLarge, match="bytes compressed, and at most 98,304 are kept"):
        packed(Published(name="a/b", config={"x": noise}))
    with pytest.raises(EntryTooLarge, match="bytes as text, and at most 4,000,000 are kept"):
        packed(Published(name="a/b", config={"x": "y" * stored.MAX_TEXT_BYTES}))


def test_models_are_found_by_name_and_revision_and_travel_to_workers() -> None:
    models = pickle.loads(pickle.dumps(StoredModels({entry_key(KEY): packed(MINE)})))
    assert asdict(models[KEY]) == asdict(MINE)
    assert list(models) == [KEY]
    assert models.get(ModelName("mine/small").key) is None, "another revision is another checkpoint"


def test_an_entry_under_the_key_of_another_model_is_not_that_model() -> None:
    other = ModelName("theirs/model").key
    models = StoredModels({entry_key(other): packed(MINE)})
    assert models.get(other) is None


def test_a_broken_entry_is_not_there() -> None:
    models = StoredModels({entry_key(KEY): b"broken"})
    assert models.get(KEY) is None
    assert list(models) == []
