"""The declared classes of nodes, each with the claims that its new nodes cannot serve as far as is known now.

The scheduler, the requests for nodes and the API's forecasts read the same rules, so that a gang with a volume
elsewhere neither waits for a new node nor has one requested. Each has an object of its own, on its own thread.
"""

from __future__ import annotations

import msgspec

from oarlock.backends import provisioners
from oarlock.spec import plans


class NodeClasses:
    """`provisioner` is None where nothing adds nodes."""

    def __init__(self, rules: plans.Rules, provisioner: provisioners.Provisioner | None) -> None:
        self._declared = rules.node_classes
        self._rules = rules
        self._provisioner = provisioner

    def rules(self) -> plans.Rules:
        """Return the rules with the present classes. Those that are as they were stay the same objects."""
        if self._provisioner is None or not self._declared:
            return self._rules
        found = []
        for was, now in zip(self._declared, self._rules.node_classes, strict=True):
            lacks = tuple(sorted({*was.model.lacks, *self._provisioner.lacking(was.name)}))
            same = lacks == now.model.lacks
            found.append(
                now if same else msgspec.structs.replace(now, model=msgspec.structs.replace(now.model, lacks=lacks))
            )
        if any(one is not now for one, now in zip(found, self._rules.node_classes, strict=True)):
            self._rules = msgspec.structs.replace(self._rules, node_classes=tuple(found))
        return self._rules
