// The editor of a job file: line numbers, completions and help out of the page's table of fields, the verdict while one
// types, and code from this computer. All judgement is the server's. Without this script the form works by itself.
"use strict";
(() => {
  const form = document.getElementById("submit");
  if (!form) return;
  const PAUSE_MS = 300;
  const $ = (id) => document.getElementById(id);
  const [text, numbers, offers, about, sent, verdict] = ["text", "numbers", "offers", "about", "sent", "verdict"].map($);
  for (const one of form.querySelectorAll("[data-script]")) one.hidden = false;
  for (const one of form.querySelectorAll("[data-plain]")) one.hidden = true;
  numbers.hidden = false;

  // The typed text outlives an ended session and a lost server: it stays in this tab until the job is there.
  const drawer = `oarlock-draft ${location.search}`;
  const keep = () => sessionStorage.setItem(drawer, text.value);
  const changed = new Set(); // the fields that the text does not have yet

  const number = () => {
    const bad = Number(verdict.dataset.line);
    const count = text.value.split("\n").length;
    numbers.textContent = Array.from({ length: count }, (_, at) => (at + 1 === bad ? `▶${bad}` : at + 1)).join("\n");
    numbers.scrollTop = text.scrollTop;
  };
  text.addEventListener("scroll", () => (numbers.scrollTop = text.scrollTop));

  const goto = (line) => {
    const at = text.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    text.focus();
    text.setSelectionRange(at, at);
    text.scrollTop = Math.max(0, (line - 5) * 18);
  };
  verdict.addEventListener("click", (event) => {
    const link = event.target.closest("[data-goto]");
    if (!link) return;
    event.preventDefault();
    goto(Number(link.dataset.goto));
  });

  let running = null;
  let sending = false;
  let timer = 0;
  const ask = async (action) => {
    if (sending) return;
    clearTimeout(timer);
    if (running) running.abort();
    const mine = (running = new AbortController());
    const body = new URLSearchParams(new FormData(form));
    const written = [...changed];
    for (const one of written) body.append("changed", one);
    body.set("action", action === "check" && written.length ? "set" : action);
    body.set("part", "yes");
    const before = text.value;
    sending = action === "submit";
    try {
      const answer = await fetch("/submit", { method: "POST", body, signal: mine.signal });
      if (answer.status === 401) {
        verdict.textContent = "The session has ended. Log in in another tab; your text stays here.";
        return;
      }
      if (answer.status === 201) {
        sessionStorage.removeItem(drawer);
        location.assign(answer.headers.get("Location"));
        return;
      }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("verdict");
      if (mine.signal.aborted || !fresh) return;
      if (verdict.innerHTML !== fresh.innerHTML) verdict.replaceChildren(...fresh.childNodes);
      Object.assign(verdict.dataset, fresh.dataset);
      text.setAttribute("aria-invalid", String(fresh.dataset.when === ""));
      if (text.value === before) take(page, written);
      number();
    } catch (error) {
      if (error.name !== "AbortError") verdict.textContent = "The server does not answer. Your text stays here.";
    } finally {
      if (action === "submit") {
        sending = false;
        verdict.scrollIntoView({ block: "nearest" });
        if (changed.size || text.value !== before) later();
      }
    }
  };
  // Takes the text and the fields of an answer. One to a text whose fields cannot be told has none: what was typed waits.
  const take = (page, written) => {
    const fields = page.querySelectorAll("input");
    if (fields.length) for (const one of written) changed.delete(one);
    for (const one of fields) {
      const field = form.elements[one.name];
      if (field && field !== document.activeElement && !changed.has(field.name)) field.value = one.value;
    }
    const told = page.querySelector("textarea").value;
    if (!written.length || told === text.value) return;
    text.value = told;
    keep();
  };
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(() => ask("check"), PAUSE_MS);
  };
  form.addEventListener("change", (event) => {
    if (!event.target.name?.startsWith("field.")) return;
    changed.add(event.target.name);
    ask("check");
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (event.submitter?.value !== "set") ask("submit"); // Enter in a field: its change is written already
  });
  document.querySelector("form.filter").addEventListener("submit", (event) => {
    sessionStorage.removeItem(`oarlock-draft ?${new URLSearchParams(new FormData(event.target))}`);
  });

  // Completions. A field's path comes from the lines above with less indentation.
  const schema = [...$("schema").rows].map((row) => {
    const [path, kind, usual, words, meaning] = [...row.cells].map((cell) => cell.textContent);
    return { path, kind, usual, words: words ? words.split(" ") : [], meaning };
  });
  const above = () => {
    const lines = text.value.slice(0, text.selectionStart).split("\n");
    const line = lines.pop();
    let depth = line.search(/[^\s-]|$/);
    const names = [];
    for (const one of lines.reverse()) {
      const found = /^([\s-]*)([\w-]+):\s*(?:#.*)?$/.exec(one);
      if (!found || found[1].length >= depth) continue;
      depth = found[1].length;
      names.unshift(found[2]);
    }
    const list = names.length === 1 && schema.some((one) => one.path.startsWith(`${names[0]}[].`));
    if (names[0] === "roles" && names.length > 1) names[1] = "ROLE";
    return { line, path: names.join(".") + (list ? "[]" : "") };
  };
  const offered = () => {
    const { line, path } = above();
    const value = /^[\s-]*([\w]+):\s+(\S*)$/.exec(line);
    const inner = (name) => (path ? `${path}.${name}` : name);
    if (value) {
      const field = schema.find((one) => one.path === inner(value[1]));
      return { field, typed: value[2], found: field ? field.words.map((word) => ({ word, rest: "" })) : [] };
    }
    const key = /^[\s-]*([\w]*)$/.exec(line);
    const named = /^[\s-]*([\w]+):/.exec(line);
    const field = schema.find((one) => one.path === inner((named || key || [])[1]));
    if (!key) return { field, typed: "", found: [] };
    if (path === "roles") return { field, typed: key[1], found: schema.find((one) => one.path === "roles.ROLE").words.map((word) => ({ word, rest: ":" })) };
    const names = schema.filter((one) => one.path.startsWith(inner("")) && !/[.[]/.test(one.path.slice(inner("").length)));
    return { field, typed: key[1], found: names.map((one) => ({ word: one.path.slice(inner("").length), rest: one.kind === "mapping" || one.kind === "list" ? ":" : ": ", hint: one.meaning })) };
  };
  let chosen = -1;
  let typed = "";
  const close = () => {
    offers.hidden = true;
    text.removeAttribute("aria-activedescendant");
    chosen = -1;
  };
  const choose = (to) => {
    chosen = Math.max(0, Math.min(to, offers.children.length - 1));
    [...offers.children].forEach((one, at) => one.setAttribute("aria-selected", String(at === chosen)));
    offers.children[chosen].scrollIntoView({ block: "nearest" });
    text.setAttribute("aria-activedescendant", offers.children[chosen].id);
  };
  const offer = (asked) => {
    const told = offered();
    about.textContent = told.field ? `${told.field.path}: ${told.field.meaning} ${told.field.kind}${told.field.usual ? `, else ${told.field.usual}` : ""}.` : "";
    typed = told.typed;
    const found = told.found.filter((one) => one.word.startsWith(typed) && (asked || (typed && one.word !== typed)));
    if (!found.length) return close();
    offers.replaceChildren(
      ...found.map((one, at) => {
        const item = document.createElement("li");
        Object.assign(item, { id: `offer-${at}`, role: "option", title: one.hint || "" });
        item.textContent = one.word;
        item.dataset.rest = one.rest;
        item.setAttribute("aria-selected", "false");
        return item;
      }),
    );
    offers.hidden = false;
    chosen = -1;
    if (asked) choose(0);
  };
  const complete = (item) => {
    text.focus();
    document.execCommand("insertText", false, item.textContent.slice(typed.length) + item.dataset.rest);
    close();
  };
  offers.addEventListener("mousedown", (event) => {
    event.preventDefault();
    const item = event.target.closest("li");
    if (item) complete(item);
  });
  text.addEventListener("keydown", (event) => {
    if (event.ctrlKey && event.key === " ") {
      event.preventDefault();
      offer(true);
    } else if (event.key === "Enter" && !offers.hidden && chosen >= 0) {
      event.preventDefault();
      complete(offers.children[chosen]);
    } else if (event.key === "Enter" && !event.ctrlKey && !event.isComposing) {
      const line = text.value.slice(0, text.selectionStart).split("\n").pop();
      event.preventDefault();
      document.execCommand("insertText", false, `\n${/^\s*/.exec(line)[0]}${/:\s*$/.test(line) ? "  " : ""}`);
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !offers.hidden) {
      event.preventDefault();
      choose(chosen + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Escape") close();
  });
  text.addEventListener("blur", close);
  text.addEventListener("input", () => {
    keep();
    number();
    offer(false);
    later();
  });
  text.addEventListener("keyup", (event) => event.key.startsWith("Arrow") && offers.hidden && offer(false));

  // Code from this computer. A folder becomes a tar archive here; the server unpacks it with the rules of the command line.
  const NEVER = new Set([".git", ".hg", ".svn", "__pycache__", "node_modules", ".oarlock"]);
  const bytes = (words) => new TextEncoder().encode(words);
  const header = (name, size, kind) => {
    const block = new Uint8Array(512);
    const put = (words, at) => block.set(bytes(words), at);
    block.set(name.slice(0, 100));
    put("0000644\0", 100);
    put("0000000\0", 108);
    put("0000000\0", 116);
    put(`${size.toString(8).padStart(11, "0")}\0`, 124);
    put("00000000000\0", 136);
    put("        ", 148);
    put(kind, 156);
    put("ustar\0" + "00", 257);
    put(`${block.reduce((sum, one) => sum + one, 0).toString(8).padStart(6, "0")}\0 `, 148);
    return block;
  };
  const padding = (size) => new Uint8Array((512 - (size % 512)) % 512);
  const packed = (files) => {
    const parts = [];
    for (const file of files) {
      const name = bytes(file.webkitRelativePath.split("/").slice(1).join("/"));
      if (name.length > 100) {
        const long = new Uint8Array([...name, 0]);
        parts.push(header(bytes("././@LongLink"), long.length, "L"), long, padding(long.length));
      }
      parts.push(header(name, file.size, "0"), file, padding(file.size));
    }
    return new Blob([...parts, new Uint8Array(1024)]);
  };
  const send = async (archive, words) => {
    sent.textContent = `Sending ${words}`;
    form.elements.digest.value = "";
    try {
      const zipped = archive instanceof File || !window.CompressionStream ? archive : await new Response(archive.stream().pipeThrough(new CompressionStream("gzip"))).blob();
      const answer = await fetch("/submit/code", { method: "POST", body: zipped, headers: { "content-type": "application/octet-stream" } });
      const told = await answer.json();
      sent.textContent = told.error || `The server has ${words}: ${told.told}`;
      if (!told.digest) return;
      form.elements.digest.value = told.digest;
      for (const one of form.elements.code) one.checked = one.value === "upload";
    } catch {
      sent.textContent = "The files did not arrive. Choose them again.";
    }
  };
  $("folder").addEventListener("change", (event) => {
    const files = [...event.target.files].filter((one) => !one.webkitRelativePath.split("/").some((part) => NEVER.has(part)));
    if (files.length) send(packed(files), `the folder ${files[0].webkitRelativePath.split("/")[0]}`);
  });
  $("archive").addEventListener("change", (event) => {
    const file = event.target.files[0];
    if (file) send(file, file.name);
  });

  const kept = sessionStorage.getItem(drawer);
  if ("posted" in form.dataset) keep();
  else if (kept !== null && kept !== text.value) {
    text.value = kept;
    ask("check");
  }
  number();
})();
