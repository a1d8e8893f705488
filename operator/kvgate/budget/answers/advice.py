"""Changes that fit: one search over settings, GPUs and checkpoints, for the combination that costs its user least.

A combination is verified by `plan` at the low end of the ledger, and minimal: it does not fit where one of its changes is left out, or
goes one step back. More memory never hurts; so a combination whose other settings all stand at their furthest step bounds all that begin
like it, and the bound is an answer of `plan` too.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.answers.changes import (
    ALIKE,
    COSTS,
    SETTINGS,
    SPARE_SEQUENCES,
    TOGETHER,
    Alternative,
    Loss,
    Scope,
    Value,
    checkpoints,
    counts_sequences,
    hardware,
    points_of,
    value_before,
    with_change,
    without_media,
)
from kvgate.budget.answers.sharing import equal_part, within_part
from kvgate.budget.answers.solver import KnobChange, fits_low, largest_length, largest_max_num_seqs
from kvgate.budget.engine.request import BudgetRequest, Guarantee
from kvgate.budget.engine.settings import longest_context
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.kv_cache.capacity import largest

_LENGTH, _SHARE = "max_model_len", "gpu_memory_utilization"
_GPUS = frozenset(name for name, cost in COSTS.items() if cost.loss is Loss.MONEY)
_MOST_POINTS = 45.0
"""Points beyond which nobody would make all these changes."""
_MOST = 16
"""Alternatives that are reported, as many as a status holds."""
_PLANS_OF_LENGTH, _PLANS_OF_SEQUENCES = 4, 10
"""Times that the engine is asked for the longest context, and for the most sequences, as a rule."""
_PRICE_OF_ENCODERS = 2
_CHOICES = (checkpoints, hardware, without_media)
"""Choices that come before the settings, because the steps of the settings depend on them."""

Values = tuple[tuple[str, Value], ...]
"""(setting, value) of each change."""
Steps = tuple[tuple[str, tuple[Value, ...]], ...]


def alternatives(request: BudgetRequest, scope: Scope) -> tuple[Alternative, ...]:
    """Return the changes that would fit, the cheapest first.

    Where the share is too large for the others on a shared GPU, the equal part is one of the changes, because nothing else makes room
    for them.
    """
    if (lowered := within_part(request)) != request:
        part = f"{float(plan(lowered).resolved.gpu_memory_utilization):g}"
        changes = (KnobChange(field=_SHARE, before=value_before(plan(request), _SHARE), after=part),)
        if fits_low(lowered):
            return (_alternative(changes, 0.0),)
        found = alternatives(lowered, replace(scope, keep=scope.keep | {_SHARE, *_GPUS}))
        return tuple(_alternative((*changes, *each.changes), each.points) for each in found)
    if request.shared_by > 1 and not request.settings.gives_cache_memory and equal_part(plan(request)) is None:
        return ()
    return Advisor(request, scope).alternatives()


class Most(Struct, frozen=True, kw_only=True):
    """The most of one thing that settings alone make room for, whatever they cost but money and media."""

    value: int
    """Tokens of a request, or requests at the same time."""
    as_it_is: int
    """The same without any change."""
    changes: tuple[KnobChange, ...]


def most_context(request: BudgetRequest, scope: Scope) -> Most:
    """Return the longest max_model_len, up to the model's own, with which the guarantee holds; where max_num_seqs is stated, for so many
    requests of that length at the same time. Where nobody states it, it comes down to SPARE_SEQUENCES."""
    counted = request
    if request.guarantee is Guarantee.STARTUP and request.settings.max_num_seqs is not None:
        counted = replace(request, guarantee=Guarantee.FULL_CONTEXT)
    budget = plan(counted)
    at_most = longest_context(request.shape, budget.accounting) or budget.resolved.max_model_len
    if counts_sequences(budget):
        scope = replace(scope, keep=scope.keep | {"max_num_seqs"})
    at_least = max(scope.min_max_num_seqs, SPARE_SEQUENCES)
    return _most(
        lambda length: counted.with_settings(max_model_len=length), at_most, replace(scope, min_max_num_seqs=at_least)
    )


def most_users(request: BudgetRequest, scope: Scope) -> Most:
    """Return the most requests of the workload that run at the same time, else of max_model_len."""
    workload, at_most = request.workload, plan(request).resolved.max_num_batched_tokens

    def at(users: int) -> BudgetRequest:
        asked = request.with_settings(max_num_seqs=users)
        if workload is not None and request.guarantee is Guarantee.WORKLOAD:
            return replace(asked, workload=replace(workload, peak_concurrency=users))
        return replace(asked, guarantee=Guarantee.FULL_CONTEXT)

    return _most(at, at_most, replace(scope, keep=scope.keep | {"max_num_batched_tokens", "max_num_seqs"}))


def _most(at: Callable[[int], BudgetRequest], at_most: int, scope: Scope) -> Most:
    """Return the largest value that fits with all settings at their furthest steps, and the cheapest ones with which it does."""
    fixed = (Loss.MONEY, Loss.MEDIA, Loss.CONTEXT)
    keep = scope.keep | {"model", "cpu_offload_gb"} | {name for name, cost in COSTS.items() if cost.loss in fixed}
    value = largest(at_most, lambda tried: Advisor(at(tried), scope).fits_at_most(keep), guess=at_most)
    found = Advisor(at(value), scope).cheapest(keep) if value else None
    as_it_is = largest(at_most, lambda tried: fits_low(at(tried)), guess=value)
    return Most(value=value if found else as_it_is, as_it_is=as_it_is, changes=found.changes if found else ())


def _alternative(changes: tuple[KnobChange, ...], points: float) -> Alternative:
    only = changes[0] if len(changes) == 1 else None
    name, value = (only.field, only.after) if only else (TOGETHER, len(changes))
    return Alternative(field=name, value=value, changes=changes, points=round(points, 3))


class _Node(Struct, frozen=True, kw_only=True):
    """Changes that are decided."""

    changes: Values = ()
    points: float = 0.0
    level: int = 0
    """Choices that are made: the checkpoint, the GPUs, the media, then one setting each."""
    steps: Steps = ()
    """The steps of each setting on these GPUs."""
    longest: int | None = None
    """The longest context of all that begins with these changes; None where it has not been asked for."""


class Advisor:
    """The search for one question, which plans each combination once."""

    def __init__(self, request: BudgetRequest, scope: Scope) -> None:
        self.start, self.scope = plan(request), scope
        self.length, self.spent = self.start.resolved.max_model_len, 0
        shape = request.shape
        self.price = len(shape.distinct_layers) + (_PRICE_OF_ENCODERS if shape.encoders else 0)
        """Plans of a simple model that take as long as one of this model, roughly."""
        self._budgets: dict[frozenset[tuple[str, Value]], Budget] = {}
        self._longest: dict[frozenset[tuple[str, Value]], tuple[int, int]] = {}
        """The longest context that fits with some changes, 0 if none does, and the shortest that was asked for."""

    def alternatives(self) -> tuple[Alternative, ...]:
        """Return the single changes that fit, and the cheapest combination, also without each thing that it costs; the cheapest first."""
        singles = list(self.singles())
        self.spent = 0
        keep = self.scope.keep | self.scope.kept_in_sets
        found, best = [*singles], self.cheapest(keep, singles)
        if best:
            found.append(best)
            for loss in self.scope.wishes:
                kept = {name for name, cost in COSTS.items() if cost.loss is loss}
                if loss in best.losses and (other := self.cheapest(keep | kept, singles)):
                    found.append(other)
        return tuple(sorted(dict.fromkeys(found), key=lambda each: (each.points, each.field)))[:_MOST]

    def singles(self) -> Iterator[Alternative]:
        """Yield the least change of each kind that fits alone."""
        keep, start = self.scope.keep, self.start
        for name, steps in self._steps(start, keep):
            if steps and self._fits(last := ((name, steps[-1]),)):
                yield from self._verified(last)
        if _LENGTH not in keep and (length := self._longest_with(())):
            yield from self._verified(((_LENGTH, length),))
        for name, values in self._other_values(keep).items():
            if self._fits(((name, values[-1]),)):  # no smaller one fits where the largest does not
                tried = ([*self._verified(((name, value),))] for value in values if self._fits(((name, value),)))
                yield from next(filter(None, tried), [])

    def _other_values(self, keep: frozenset[str]) -> dict[str, list[Value]]:
        """Return checkpoints, GPUs and settings about media with their values, the least change first."""
        found: dict[str, list[Value]] = {}
        for name, value in (each for choices in _CHOICES for each in choices(self.start, self.scope)):
            if name not in keep and (name != "accelerator" or self._could_hold(value)):
                found.setdefault(name, []).append(value)
        return found

    def _could_hold(self, accelerator: Value) -> bool:
        """Return whether a GPU has the bytes of weights and demand, whatever the size of its blocks."""
        demand, stage = self.start.demand, self.start.tightest
        if demand is None or stage is None or stage.ledger is None:
            return True
        least_bytes = stage.ledger.weights.low + max(0, demand.blocks - demand.requests) * stage.bytes_per_block
        return self._with((("accelerator", accelerator),)).accelerator.memory_bytes >= least_bytes

    def cheapest(self, keep: frozenset[str], known: Sequence[Alternative] = ()) -> Alternative | None:
        """Return the cheapest combination that keeps these settings, or the cheapest of those that are known; None where all have too
        many points."""
        allowed = (each for each in known if keep.isdisjoint(change.field for change in each.changes))
        least = min(allowed, key=lambda each: each.points, default=None)
        limit = min(_MOST_POINTS, least.points if least else _MOST_POINTS)
        verified = (found for _, changes in self.combinations(keep, limit) for found in self._verified(changes))
        found = next(verified, least)
        return least if least and found and least.points < found.points else found

    def combinations(self, keep: frozenset[str], limit: float = _MOST_POINTS) -> Iterator[tuple[float, Values]]:
        """Yield (points, changes) of whole steps that fit at the low end, the fewest points first, up to a limit.

        Where the scope allows no more plans, it is the best that is known.
        """
        order, heap = count(1), [(0.0, 0, _Node())]
        while heap and heap[0][0] < limit:
            bound, _, node = heappop(heap)
            if node.level < len(_CHOICES):
                nodes = [(each.points, each) for each in self._chosen(node, keep)]
            elif node.longest is None:
                nodes = [*self._bounded(node, keep, limit)]
            elif node.level == len(_CHOICES) + len(node.steps) or self._is_exhausted:
                shorter = ((_LENGTH, node.longest),) if node.longest < self.length else ()
                yield bound, (*_furthest(node), *shorter)
                if self._is_exhausted:
                    return
                nodes = []
            else:
                nodes = [(max(bound, self._bound(each)), each) for each in self._stepped(node)]
            for points, child in nodes:
                heappush(heap, (points, next(order), child))

    def fits_at_most(self, keep: frozenset[str]) -> bool:
        """Return whether it fits with all other settings at their furthest steps."""
        return self._fits(_furthest(_Node(level=len(_CHOICES), steps=self._steps(self.start, keep))))

    @property
    def _is_exhausted(self) -> bool:
        return self.spent >= self.scope.most_plans

    def _chosen(self, node: _Node, keep: frozenset[str]) -> Iterator[_Node]:
        """Yield the node as it is, and with each other value of its next choice."""
        yield replace(node, level=node.level + 1)
        for name, value in _CHOICES[node.level](self._budget(node.changes), self.scope):
            if name not in keep:
                yield self._changed(node, name, value)

    def _bounded(self, node: _Node, keep: frozenset[str], limit: float) -> Iterator[tuple[float, _Node]]:
        """Yield the node with its longest context, and the points of that; nothing where nothing that begins like it fits."""
        if self._is_exhausted:
            return
        if node.level == len(_CHOICES) and not node.steps:
            budget = self._budget(node.changes)
            if node.changes and self.scope.refuses(budget):
                return
            node = replace(node, steps=self._steps(budget, keep))
        changes = _furthest(node)
        longest = self.length if self._fits(changes) else 0
        if not longest and _LENGTH not in keep:
            halvings = (limit - node.points) / COSTS[_LENGTH].points  # a shorter context would cost too much
            longest = self._longest_with(changes, int(self.length / 2**halvings))
        if longest:
            found = replace(node, longest=longest)
            yield self._bound(found), found

    def _bound(self, node: _Node) -> float:
        """Return the fewest points of anything that begins with the changes of a node, as far as it is known."""
        is_shorter = node.longest is not None and node.longest < self.length
        return node.points + (self._points(_LENGTH, node.longest) if is_shorter and node.longest else 0.0)

    def _stepped(self, node: _Node) -> Iterator[_Node]:
        """Yield the node with each step of its next setting; the furthest one has the bound of the node itself."""
        name, steps = node.steps[node.level - len(_CHOICES)]
        yield replace(node, level=node.level + 1, longest=None)
        for value in steps[-1:] if name in ALIKE else steps:
            yield replace(self._changed(node, name, value), longest=node.longest if value is steps[-1] else None)

    def _changed(self, node: _Node, name: str, value: Value) -> _Node:
        points = node.points + self._points(name, value)
        return replace(node, changes=(*node.changes, (name, value)), points=points, level=node.level + 1)

    def _steps(self, budget: Budget, keep: frozenset[str]) -> Steps:
        steps = ((name, tuple(of(budget, self.scope))) for name, of in SETTINGS.items() if name not in keep)
        return tuple((name, values) for name, values in steps if values)

    def _points(self, name: str, value: Value) -> float:
        return points_of(self.start, name, value, self.scope)

    def _with(self, changes: Values) -> BudgetRequest:
        request = self.start.request
        for name, value in changes:
            request = with_change(request, name, value, self.scope)
        return request

    def _budget(self, changes: Values) -> Budget:
        key = frozenset(changes)
        if key not in self._budgets:
            self.spent += self.price
            self._budgets[key] = plan(self._with(changes))
        return self._budgets[key]

    def _fits(self, changes: Values) -> bool:
        return self._budget(changes).verdict is Verdict.FITS

    def _longest_with(self, changes: Values, at_least: int = 1) -> int:
        """Return the longest context that fits with the changes, within the user's floor; 0 if none does that has `at_least` tokens."""
        key, budget = frozenset(changes), self._budget(changes)
        workload = budget.request.promised_workload
        floor = max(self.scope.min_max_model_len, workload.request_tokens if workload else 1, at_least)
        floor = min(self.length, floor)
        longest, asked = self._longest.get(key, (0, self.length + 1))
        if longest < floor < asked:
            longest = largest_length(budget.request, self.length, floor, budget)
            self.spent += (_PLANS_OF_LENGTH if longest else 1) * self.price
            self._longest[key] = longest, floor
        return longest if longest >= floor else 0

    def _verified(self, changes: Values) -> Iterator[Alternative]:
        """Yield the changes, each no further than needed, if vLLM starts and holds its guarantee with them."""
        least = self._given_back(dict(changes))
        budget = self._budget(least)
        if budget.verdict is Verdict.FITS and budget.starts is Verdict.FITS and not self.scope.refuses(budget):
            made = (KnobChange(field=name, before=value_before(self.start, name), after=value) for name, value in least)
            yield _alternative(tuple(made), sum(self._points(*each) for each in least))

    def _given_back(self, changes: dict[str, Value]) -> Values:
        """Leave out changes that nothing needs, and take the others back as far as fits, the dearest first."""
        for name in sorted(changes, key=lambda each: -self._points(each, changes[each])):
            others = tuple((other, value) for other, value in changes.items() if other != name)
            if self._fits(others):
                del changes[name]
            else:
                changes[name] = self._least(name, changes[name], others)
        return tuple(changes.items())

    def _least(self, name: str, value: Value, others: Values) -> Value:
        """Return the nearest value with which the setting fits beside the other changes."""
        if name == "max_num_seqs" and (counts_sequences(self.start) or not others):
            self.spent += _PLANS_OF_SEQUENCES * self.price
            return largest_max_num_seqs(self._with(others), self.start.resolved.max_num_seqs, int(value))
        if name == "cpu_offload_gb":
            most = int(value)
            return most - largest(most - 1, lambda less: self._fits((*others, (name, most - less))))
        steps = dict(self._steps(self.start, frozenset())).get(name, ())
        nearer = steps[: steps.index(value)] if value in steps else ()
        return next((each for each in nearer if self._fits((*others, (name, each)))), value)


def _furthest(node: _Node) -> Values:
    """Return the changes of a node, and the furthest step of each setting that is open."""
    return (*node.changes, *((name, values[-1]) for name, values in node.steps[node.level - len(_CHOICES) :]))
