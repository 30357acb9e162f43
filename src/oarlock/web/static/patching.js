// Puts what differs in a fetched page into the open one. After an event a large page differs in few places: equal parts are
// passed over at once, parts of one shape are changed where they differ, and htmx morphs what is left.
"use strict";
const oarlockPatch = (() => {
  const KEEPS_STATE = "input, select, option, textarea"; // their state is more than their attributes

  const morph = (old, fresh, swap) =>
    htmx.swap({ text: swap === "outerMorph" ? fresh.outerHTML : fresh.innerHTML, target: old, sourceElement: old, swap });

  const attributes = (old, fresh) => {
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  };

  const alike = (old, fresh) => old.nodeName === fresh.nodeName && (old.id || "") === (fresh.id || "");

  const children = (old, fresh) => {
    const here = [...old.childNodes];
    const there = [...fresh.childNodes];
    if (here.length === there.length && here.every((one, at) => alike(one, there[at]))) {
      here.forEach((one, at) => patch(one, there[at]));
    } else if (old instanceof SVGElement) old.replaceChildren(...there);
    else morph(old, fresh, "innerMorph");
  };

  const patch = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (!(old instanceof Element)) old.nodeValue = fresh.nodeValue;
    else if (old.matches(KEEPS_STATE)) morph(old, fresh, "outerMorph");
    else {
      attributes(old, fresh);
      children(old, fresh);
    }
  };
  return children;
})();
