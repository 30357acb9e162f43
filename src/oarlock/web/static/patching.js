// Puts what differs in a fetched page into the open one. After an event a large page differs in few places: equal parts are
// passed over at once, parts of one shape are changed where they differ, and htmx morphs what is left. What a script draws
// (`data-kept`) stays as long as it has the same id.
"use strict";
const oarlockPatch = (() => {
  // What the reader has entered stays, also where the server's value has changed meanwhile. A browser keeps it when attributes change,
  // but htmx puts the new value into each field without the focus.
  const entered = (one) => (one instanceof HTMLInputElement || one instanceof HTMLTextAreaElement) && one.value !== one.defaultValue;
  const kept = (old, fresh) => "kept" in (old.dataset ?? {}) && old.id === fresh.id;
  htmx.registerExtension("entered", {
    htmx_before_morph_attr: (old, { attrName }) => !(attrName === "value" && entered(old)),
    htmx_before_morph_node: (old, { newNode }) => !(old instanceof HTMLTextAreaElement && entered(old)) && !kept(old, newNode),
  });

  const morph = (old, fresh) => htmx.swap({ text: fresh.innerHTML, target: old, sourceElement: old, swap: "innerMorph" });

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
    else morph(old, fresh);
  };

  const patch = (old, fresh) => {
    if (old.isEqualNode(fresh) || kept(old, fresh)) return;
    if (!(old instanceof Element)) old.nodeValue = fresh.nodeValue;
    else {
      attributes(old, fresh);
      children(old, fresh);
    }
  };
  return children;
})();
