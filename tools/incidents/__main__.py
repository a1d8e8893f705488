"""`PYTHONPATH=tools python -m incidents`: play all scenes, print what fires, and write the measured delays.

--rules FILE    other rules than those that are shipped; nothing is written
--line 2        Prometheus 2 and not 3
--only WORD     scenes whose key contains the word; nothing is written
--reported      scenes that were reported in public, and no others; measured.csv is not written
"""

import argparse
import csv
import io
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import yaml

from controlplane.prometheus import LINES, ensure_prometheus
from incidents.play import Played, complaints, delay_minutes, play, prepare, told_minutes
from incidents.scene import FOLDER, Scene, scenes
from mixin.alerts import rule_groups

MEASURED, REPORTED = FOLDER / "measured.csv", FOLDER / "reported.csv"


def measured_csv(told: Sequence[Scene], played: Played) -> str:
    """Return the delay of each expected alert in each scene."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("scene", "alert", "delay_minutes"))
    for scene in told:
        for alert in scene.fires:
            delay = delay_minutes(scene, played[scene.key], alert)
            if delay is not None:
                writer.writerow((scene.key, alert, delay))
    return text.getvalue()


def reported_csv(told: Sequence[Scene], played: Played) -> str:
    """Return when somebody is told in each scene that was reported, and whether the scene is right."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("scene", "told_minutes", "is_right"))
    for scene in told:
        if scene.is_reported:
            minutes = "" if scene.is_quiet else told_minutes(scene, played[scene.key])
            writer.writerow((scene.key, minutes, int(not complaints(scene, played[scene.key]))))
    return text.getvalue()


def main() -> None:
    """Play, report, write."""
    parser = argparse.ArgumentParser(prog="incidents", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rules", type=Path, help="rules to play against; default: those that are shipped")
    parser.add_argument("--line", choices=LINES, default=LINES[0], help="line of Prometheus")
    parser.add_argument("--only", default="", help="a part of the scenes' keys")
    parser.add_argument(
        "--apart", action="store_true", help="play each scene alone, for rules that lose the label cluster"
    )
    parser.add_argument("--reported", action="store_true", help="only scenes that were reported in public")
    given = parser.parse_args()
    told = [scene for scene in scenes() if given.only in scene.key and (scene.is_reported or not given.reported)]
    groups = yaml.safe_load(given.rules.read_text(encoding="utf-8")) if given.rules else rule_groups()
    assets = ensure_prometheus(given.line)
    batches = [[scene] for scene in told] if given.apart else [told]
    played = dict(chain.from_iterable(play(assets, prepare(batch, groups)).items() for batch in batches))
    for scene in told:
        fired = sorted({f"{each.alert} at {each.first_minute - scene.minutes[0]:+d}" for each in played[scene.key]})
        wrong = complaints(scene, played[scene.key])
        print(f"{'wrong' if wrong else 'right':5}  {scene.key}: {', '.join(fired) or 'nothing'}")
        for complaint in wrong:
            print(f"         {complaint}")
    incidents, quiet = ([scene for scene in told if scene.is_quiet is silent] for silent in (False, True))
    noticed = sum(
        any(each.alert in scene.fires for each in played[scene.key])
        or (scene.is_reported and told_minutes(scene, played[scene.key]) is not None)
        for scene in incidents
    )
    anything = sum(bool(played[scene.key]) for scene in incidents)
    print(
        f"{anything} of {len(incidents)} incidents fire something, {noticed} an alert that is expected;"
        f" {sum(bool(played[scene.key]) for scene in quiet)} of {len(quiet)} quiet scenes fire something;"
        f" {sum(not complaints(scene, played[scene.key]) for scene in told)} of {len(told)} scenes are right"
    )
    if given.rules or given.only:
        return
    REPORTED.write_text(reported_csv(told, played), encoding="utf-8")
    if not given.reported:
        MEASURED.write_text(measured_csv(told, played), encoding="utf-8")


if __name__ == "__main__":
    main()
