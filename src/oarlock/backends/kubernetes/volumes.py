"""The volumes that only some nodes can mount (a local disk, a disk of one zone), kept current by a watch.

    PersistentVolume, bound to a claim of our namespace ──> its node affinity ──> the nodes that cannot mount the claim
                                                                            └──> the classes whose new nodes cannot

So the plan knows where a gang with such a claim may go. The server reads no volume without the right to do so (an older
installation): then a gang learns it from the scheduler's refusals, node by node (`bars`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from oarlock.backends.kubernetes.apiserver import client, objects, watches
from oarlock.backends.kubernetes.site import Site
from oarlock.spec.cluster.nodes import Node

MOST_CLAIMS = 250
"""The nodes tell of no more claims: each of them names all that it cannot mount."""
HOSTNAME = "kubernetes.io/hostname"
PAUSE_MOST_S = 60.0
"""The longest pause of the watch, where the right to read volumes is missing."""

Labels = Mapping[str, str]


class _Volume(NamedTuple):
    claim: str
    terms: tuple[objects.NodeTerm, ...]

    def selects(self, name: str, labels: Labels) -> bool:
        return any(selects(term, name, labels) for term in self.terms)


class _New(NamedTuple):
    """The claims that no new node of a class can mount, and the volumes about which its declaration says nothing."""

    lacks: tuple[str, ...]
    unsaid: tuple[_Volume, ...]


class Volumes:
    """Belongs to one event loop. `changed` is called when the nodes of a claim may have changed. `alike` returns the
    labels of the present nodes of a class, or of all nodes where the class has none.
    """

    def __init__(
        self,
        api: client.Client,
        site: Site,
        *,
        monotonic: Callable[[], float],
        changed: Callable[[], object],
        alike: Callable[[str], Sequence[Labels]] = lambda node_class: (),
    ) -> None:
        self._site = site
        self._changed = changed
        self._by_claim: dict[str, _Volume] | None = None
        self._alike = alike
        self._new: dict[str, _New] = {}  # by class. It is replaced and never cleared: other threads read it
        self._known: dict[str, tuple[Labels, tuple[str, ...]]] = {}  # by node: what it lacks by the volumes alone
        self._watch: watches.Watch[objects.Volume, _Volume] = watches.Watch(
            api,
            "/api/v1/persistentvolumes",
            objects.Volume,
            self._keep,
            monotonic=monotonic,
            changed=self._forget,
            pause_most_s=PAUSE_MOST_S,
        )
        self.run = self._watch.run

    def marked(self, node: Node, labels: Labels) -> Node:
        """Return the node with the claims that it cannot mount."""
        lacks = self._lacks(node.name, labels)
        return msgspec.structs.replace(node, lacks=tuple(sorted({*node.lacks, *lacks}))) if lacks else node

    def able(self, claim: str, among: Mapping[str, Labels]) -> list[str]:
        """Return those nodes, each with all its labels, that may mount the claim."""
        return [name for name, labels in among.items() if claim not in self._lacks(name, labels)]

    def terms(self, claim: str) -> object:
        """Return the facts of the claim's volume; None where none is known."""
        if self._by_claim is None:
            self._by_claim = {one.claim: one for one in self._watch.items.values()}
        return self._by_claim.get(claim)

    def lacking(self, node_class: str, *, judged: bool = True) -> tuple[str, ...]:
        """Return the claims that no new node of the class can mount. Any thread may ask.

        A class may say nothing about the zone of its nodes. Where the autoscaler has `judged` the claims of a request,
        it adds a node in the right zone, or refuses. Another one may add nodes elsewhere, again and again: then the
        present nodes tell where new ones come.
        """
        known = self._new  # before the volumes: what follows from older ones ends with it
        if node_class not in known:
            labels = self._site.node_classes[node_class].all_labels(node_class, self._site)
            possible = {one: any(_may_select(term, labels) for term in one.terms) for one in self._some()}
            known[node_class] = _New(
                lacks=tuple(one.claim for one, may in possible.items() if not may),
                unsaid=tuple(one for one, may in possible.items() if may and not one.selects("", labels)),
            )
        found = known[node_class]
        if judged or not found.unsaid:
            return found.lacks
        alike = self._alike(node_class)
        elsewhere = [one.claim for one in found.unsaid if not all(one.selects("", labels) for labels in alike)]
        return tuple(sorted([*found.lacks, *elsewhere]))

    def _some(self) -> list[_Volume]:
        return sorted(self._watch.items.values(), key=lambda one: one.claim)[:MOST_CLAIMS]

    def _lacks(self, name: str, labels: Labels) -> tuple[str, ...]:
        known = self._known.get(name)
        if known is None or known[0] is not labels:
            lacks = tuple(one.claim for one in self._some() if not one.selects(name, labels))
            known = self._known[name] = labels, lacks
        return known[1]

    def _keep(self, found: objects.Volume) -> _Volume | None:
        affinity, claim = found.spec.node_affinity, found.spec.claim_ref
        if affinity is None or affinity.required is None or claim is None or found.status.phase != "Bound":
            return None
        if claim.namespace != self._site.namespace:
            return None
        return _Volume(claim.name, affinity.required.node_selector_terms)

    def _forget(self) -> None:
        self._known.clear()
        self._new = {}
        self._by_claim = None
        self._changed()


def selects(term: objects.NodeTerm, name: str, labels: Labels) -> bool:
    """Return whether a term of a node selector selects the node. An empty term selects none."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": name}
    return all(_holds(one, labels) for one in term.match_expressions) and all(
        _holds(one, fields) for one in term.match_fields
    )


def _may_select(term: objects.NodeTerm, labels: Labels) -> bool:
    """Return whether a term may select a node that is not there yet, which has these labels and perhaps others."""
    if not term.match_expressions and not term.match_fields:
        return False
    if any(one.operator == "In" for one in term.match_fields):
        return False  # it names nodes that are there
    return all(
        _holds(one, labels) if one.key in labels else one.key != HOSTNAME or one.operator != "In"
        for one in term.match_expressions
    )


def _holds(one: objects.NodeRequirement, said: Labels) -> bool:
    value = said.get(one.key)
    if one.operator == "In":
        return value in one.values
    if one.operator == "NotIn":
        return value not in one.values
    if one.operator == "Exists":
        return value is not None
    if one.operator == "DoesNotExist":
        return value is None
    try:  # Gt and Lt, of whole numbers
        number, bound = int(value or ""), int(one.values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if one.operator == "Gt" else number < bound
