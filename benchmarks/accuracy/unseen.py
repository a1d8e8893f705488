"""Predictions of every start with constants that are derived from the other sources only: what somebody meets whom nobody has met."""

from collections.abc import Iterable, Sequence

from accuracy.derivation import derive
from accuracy.predictions import Prediction, predict
from accuracy.readings import Reading, replaced
from accuracy.starts import Start


def left_out(starts: Sequence[Start], readings: Iterable[Reading], *, circumstances: bool = False) -> list[Prediction]:
    """Predict each source's starts with every constant derived without it; the starts come back in their order."""
    known = list(readings)
    found: dict[str, Prediction] = {}
    for source in dict.fromkeys(start.source for start in starts):
        others = derive(reading for reading in known if reading.start.source != source)
        with replaced({name: constant.interval for name, constant in others.items()}):
            found |= {
                start.id: predict(start, circumstances=circumstances) for start in starts if start.source == source
            }
    return [found[start.id] for start in starts]
