"""Every draft of the catalogue can be read, goes with the model that it names, and says where its facts come from."""

import yaml

from kvgate import catalogue
from kvgate.budget import Speculation
from kvgate.budget.answers.speculation import mismatches
from kvgate.catalogue.lookup import DATA
from kvgate.judgement.drafts import ENDS, look_up_draft
from support.builders import catalogue_shape, known_draft, new_request
from support.tables import table


@table("name", catalogue.draft_names())
def test_a_draft_is_read_and_goes_with_its_target(name: str) -> None:
    path = DATA / "drafts" / f"{name.replace('/', '--')}.yaml"
    entry = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "target", "source", "confidence", "revision", "date", "config"} <= entry.keys()
    assert entry["confidence"] in ("exact", "reconstructed")
    assert set(entry.get("holds", ())) <= set(ENDS)
    draft = known_draft(name)
    assert draft.method
    assert draft.unmodelled_kinds == ()
    speculation = Speculation(model=name, num_speculative_tokens=3)
    request = new_request(shape=catalogue_shape(entry["target"]), draft=draft, speculation=speculation)
    assert [*mismatches(request)] == []


def test_a_draft_is_found_in_any_case_and_is_no_model() -> None:
    assert catalogue.find_draft("ANGELSLIM/qwen3-8b_EAGLE3") is not None
    assert catalogue.find_model("AngelSlim/Qwen3-8B_eagle3") is None
    assert catalogue.nearest_drafts("AngelSlim/Qwen3-9B_eagle3")[0].startswith("AngelSlim/Qwen3-")


def test_what_a_checkpoint_holds_is_known_to_the_budget() -> None:
    draft, _ = look_up_draft(Speculation(model="z-lab/Qwen3.6-27B-DFlash", num_speculative_tokens=3), "0.32.0")
    assert draft is not None
    assert draft.stored_ends == frozenset()
