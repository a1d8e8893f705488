"""Blocks, tokens, lengths and refusals of releases before and after 0.32, all equal to what each release's own code computed on a CPU."""

import csv

import pytest

from parity.comparison import answer_to, differences
from parity.tables import HERE, RELEASES, Row, answers_of, setting_of
from support.tables import table

ESTIMATED_OTHERWISE = {
    (
        "0.11.0",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    ): "it estimates from chunks that it then turns into full attention",
    (
        "0.14.0",
        "tiiuae/Falcon-H1-7B-Instruct",
    ): "its estimate in the refusal is 1.4 % above ours; the cause is not known",
}
"""(release, model) whose refusal names another longest length than ours."""


def starts_short(row: Row) -> bool:
    """True where vLLM starts although no request of max_model_len can ever run; we refuse that.

    Up to 0.13 it checks windows and chunks before they become full attention, and 0.14 forgets the groups of a chunked model.
    """
    return row["starts"] == "yes" and float(row["max_concurrency"] or 1) < 1


def wrong_figures(row: Row) -> object:
    found = differences(row)
    if row["starts"] == "no" and (row["version"], row["model"]) in ESTIMATED_OTHERWISE:
        found.pop("longest", None)
    return found


@pytest.mark.slow
@table(("version",), [(version,) for version in RELEASES])
def test_the_cache_is_cut_as_the_release_cuts_it(version: str) -> None:
    rows = [row for row in answers_of(version) if row["starts"] != "refused" and not starts_short(row)]
    wrong = [f"{setting_of(row)}: {found}" for row in rows if (found := wrong_figures(row))]
    assert len(rows) > 60
    assert not wrong, "\n".join([f"{len(wrong)} of {len(rows)} rows differ (ours, vLLM's):", *wrong[:5]])


@table(("version",), [(version,) for version in RELEASES])
def test_what_the_release_refuses_is_refused(version: str) -> None:
    refused = [row for row in answers_of(version) if row["starts"] == "refused"]
    accepted = [setting_of(row) for row in refused if answer_to(row)["verdict"] == "Fits"]
    assert not accepted


def test_the_releases_answer_the_same_questions() -> None:
    with (HERE / "kv_by_release/questions.csv").open(encoding="utf-8") as file:
        asked = {row["model"] for row in csv.DictReader(file)}
    assert len(RELEASES) >= 5
    assert all({row["model"] for row in answers_of(version)} <= asked for version in RELEASES)
