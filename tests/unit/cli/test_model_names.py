"""The ways in which people name a model, and what `--model` makes of them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvgate import catalogue
from kvgate.checkpoint.published import NO_MODELS, Published, PublishedModels, by_name, lock_text, name_key
from kvgate.cli.main import main
from kvgate.cli.model_names import hub_name, with_named_model
from kvgate.vllm.values import UnusableValue

QWEN = "Qwen/Qwen3-8B"
NAMES = {
    QWEN: (QWEN, None),
    "qwen/qwen3-8b": ("qwen/qwen3-8b", None),
    "Qwen3-8B": (QWEN, None),
    "qwen3 8b": (QWEN, None),
    "Llama-3.1-8B-Instruct": ("meta-llama/Llama-3.1-8B-Instruct", None),
    "llama 3.1 8b instruct": ("meta-llama/Llama-3.1-8B-Instruct", None),
    f"{QWEN}@b968826": (QWEN, "b968826"),
    f"https://huggingface.co/{QWEN}": (QWEN, None),
    f"https://huggingface.co/{QWEN}/": (QWEN, None),
    f"https://huggingface.co/{QWEN}/tree/main": (QWEN, None),
    f"https://huggingface.co/{QWEN}/tree/v1.0": (QWEN, "v1.0"),
    f"https://huggingface.co/{QWEN}/blob/main/config.json": (QWEN, None),
    f"https://huggingface.co/{QWEN}?library=vllm": (QWEN, None),
    f"huggingface.co/{QWEN}": (QWEN, None),
    f"https://hf.co/{QWEN}": (QWEN, None),
    f"hf://{QWEN}": (QWEN, None),
    "org/nobody-knows": ("org/nobody-knows", None),
    "org/name:Q4_K_M": ("org/name:Q4_K_M", None),
}
"""What is typed → the name that is looked up, and the revision."""


@pytest.mark.parametrize("text", NAMES)
def test_a_name_is_recognised(text: str) -> None:
    settings, models = with_named_model({"model": text}, NO_MODELS)
    assert (settings["model"], settings.get("revision")) == NAMES[text]
    assert models is NO_MODELS


def test_a_file_of_the_hub_stays_in_the_name() -> None:
    address = "https://huggingface.co/unsloth/Qwen3-8B-GGUF/blob/main/Qwen3-8B-Q4_K_M.gguf"
    assert hub_name(address) == ("unsloth/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf", "")
    assert hub_name("https://huggingface.co/datasets/a/b") != ("a/b", "")


def test_a_short_name_of_several_is_answered_with_their_names() -> None:
    known = by_name([Published(name="one/My-Model", config={}), Published(name="two/my-model", config={})])
    models = PublishedModels(locked=known)
    with pytest.raises(
        UnusableValue, match="--model my-model may be one/My-Model, two/my-model; write the one that it is"
    ):
        with_named_model({"model": "my-model"}, models)
    settings, _ = with_named_model({"model": "ONE/my-model"}, models)
    assert settings["model"] == "ONE/my-model"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with the config.json of a model, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    config = dict(catalogue.load_model(QWEN).config)
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    entry = Published(name="team/Mine", config=config, source="huggingface.co")
    (tmp_path / "models.json").write_text(lock_text([entry]))
    (tmp_path / "two.json").write_text(lock_text([entry, Published(name="team/Other", config=config)]))
    return tmp_path


def run(model: str, *arguments: str) -> Result:
    return CliRunner().invoke(
        main, ["explain", "--model", model, "--gpu", "L40S", "--vllm-version", "0.33.0", "-o", "json", *arguments]
    )


@pytest.mark.parametrize(
    ("model", "shown", "source"),
    [
        ("./mine", "./mine", "fetched"),
        ("mine", "mine", "fetched"),
        ("mine/config.json", "mine/config.json", "given"),
        ("models.json", "team/Mine", "lock file"),
        ("two.json#team/mine", "team/Mine", "lock file"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_files_of_this_machine_are_judged_as_the_model_in_them(model: str, shown: str, source: str) -> None:
    record, known = json.loads(run(model).stdout), json.loads(run(QWEN).stdout)
    assert record["engine"]["model"] == shown
    assert record["kv_cache"] == known["kv_cache"]
    assert source in {each["source"] for each in record["provenance"] if each["fact"] == "model"}


@pytest.mark.usefixtures("folder")
def test_a_lock_file_with_several_models_asks_which() -> None:
    result = run("two.json")
    assert (
        "--model two.json: the lock file has team/Mine, team/Other; write one of them: two.json#NAME" in result.stderr
    )
    assert result.exit_code == 2


def test_a_folder_without_a_model_says_what_it_lacks(folder: Path) -> None:
    (folder / "empty").mkdir()
    result = run("./empty")
    assert "no config.json" in result.stdout
    assert result.exit_code == 2


def test_a_name_that_nobody_knows_is_answered_with_what_to_write() -> None:
    assert "--model llama-3 is no whole name; names that begin so: " in run("llama-3").stderr
    assert "write OWNER/zebra-9, and add --fetch to ask the hub" in run("zebra-9").stderr
    assert name_key("a/b") == "a/b"
