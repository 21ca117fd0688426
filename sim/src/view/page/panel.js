// The side panel and the legends: the same facts in words, for reading and for screen readers.

function node(tag, props = {}, ...children) {
  const n = document.createElement(tag);
  for (const [k, v] of Object.entries(props)) k.startsWith("data-") || k.startsWith("aria-") ? n.setAttribute(k, v) : (n[k] = v);
  n.append(...children);
  return n;
}

function trailButton(at, who, text, act, more = {}) {
  return node("li", more.led ? { className: "led" } : {}, node("button", { type: "button", className: more.now ? "now" : "", onclick: act },
    node("span", { className: "at", "data-n": more.led || "" }, seconds(at)),
    node("span", {}, who ? node("span", { className: "who" }, `${who} `) : "", text)));
}

function showPromises() {
  const box = document.getElementById("promises"), m = life.meta;
  const parts = [node("h2", {}, violations.length ? `${plural(violations.length, "broken promise")}` : "Every promise held")];
  violations.forEach(v => parts.push(node("div", { className: `promise${S.violation === v.i ? " now" : ""}`, "data-promise": v.promise },
    node("h3", {}, `${v.promise} ${v.title}`),
    node("p", {}, v.text),
    S.violation === v.i ? node("ol", { className: "trail" },
      ...v.events.filter(i => items[i]).map((i, n) => trailButton(endMoment(items[i]), lanes[items[i].lane].name, words(items[i]), () => goTo(endMoment(items[i]), { item: items[i], at: endMoment(items[i]) }), { led: String(n + 1) })),
      trailButton(v.at, "", "found broken", () => goTo(v.at))) : "",
    S.violation === v.i ? "" : node("button", { type: "button", onclick: () => goViolation(v.i) }, `show at ${seconds(v.at)}`))));
  parts.push(node("div", { className: "cmd" }, node("code", {}, m.replay), node("button", { type: "button", title: "Copy", onclick: e => copy(m.replay, e.target) }, "copy")));
  const facts = node("dl", { className: "facts2" });
  for (const [k, v] of [["history", m.hash], ["commit", m.commit]]) if (v) facts.append(node("dt", {}, k), node("dd", { className: "num" }, v));
  parts.push(facts);
  if (m.notes?.length) parts.push(node("ul", {}, ...m.notes.map(n => node("li", {}, n))));
  box.replaceChildren(...parts);
}

function copy(text, button) {
  navigator.clipboard?.writeText(text).then(() => { button.textContent = "copied"; }, () => {});
}

// What the cursor stands on: states, running faults, marks, and the events around it.
function showHere() {
  const box = document.getElementById("here"), facts = node("dl", { className: "facts2" });
  const fact = (k, v) => facts.append(node("dt", {}, k), node("dd", {}, v));
  const phase = life.phases.find(p => p.from <= S.t && S.t <= p.to);
  if (phase) fact("phase", phase.name);
  for (const l of lanes) { const s = stateAt(l, S.t); if (s) fact(l.name, `${s.outcome}${s.text ? `: ${s.text}` : ""}, for ${span(S.t - s.from)}`); }
  for (const it of items) if (it.kind === "fault" && it.to > it.from && it.from <= S.t && S.t <= it.to) fact("fault", `${it.text} (${lanes[it.lane].name})`);
  const marks = marksText();
  if (marks) fact(partitions[S.part].name, marks);
  const asked = items.filter(it => REQUESTS.has(it.kind) && it.from <= S.t && S.t < it.to && !it.open).length;
  fact("in flight", plural(asked, "request"));
  const list = stepList(), last = lastAt(list, S.t), from = Math.max(0, last - 8);
  box.replaceChildren(node("h2", {}, `At ${seconds(S.t, 6)}`), facts, node("h3", {}, S.lane < 0 ? "events around the cursor" : `events of ${lanes[S.lane].name}`),
    node("ul", { className: "trail" }, ...list.slice(from, last + 7).map(m => trailButton(m.at, lanes[m.item.lane].name, momentWords(m), () => goTo(m.at, m), { now: S.at && S.at.item === m.item && S.at.at === m.at }))));
}

function showFound() {
  const box = document.getElementById("found");
  box.hidden = !S.offset && !S.findError;
  if (box.hidden) return;
  if (S.findError) return box.replaceChildren(node("h2", {}, "Find"), node("p", {}, S.findError));
  const name = `${partitions[S.offset.part].name}@${S.offset.offset}`;
  box.replaceChildren(node("h2", {}, `${name}: ${plural(S.found.length, "trace")}`),
    S.found.length ? node("ul", { className: "trail" }, ...S.found.map((f, i) => trailButton(f.at, f.item ? lanes[f.item.lane].name : "", f.text, () => goFound(i), { now: i === S.foundAt }))) : node("p", {}, "Nobody sent, read or stored it."));
}

const swatch = (draw, w = 22, h = 12) => {
  const c = node("canvas", { "aria-hidden": "true" });
  c.width = w * dpr(); c.height = h * dpr();
  const g = c.getContext("2d");
  g.scale(dpr(), dpr());
  draw(g, w, h);
  return c;
};
const box = paint => (g, w, h) => { g.fillStyle = paint(); g.fillRect(0, 0, w, h); g.strokeStyle = css.dim; g.strokeRect(0.5, 0.5, w - 1, h - 1); };

function showLegends() {
  const sign = (s, c) => (g, w, h) => { line(g, 2, h / 2, w - 6, h / 2, c); line(g, 2, 2, 2, h - 2, c); glyph(g, s, w - 6, h / 2, 4, c); };
  const kinds = [["produce", "produce, acknowledged", sign("up", css.produce)], ["read", "read", sign("disc", css.read)], ["request", "other request", sign("diamond", css.other)],
    ["fault", "fault", box(() => fill("hatch", css.faultbg, css.fault, 6, 1))], ["lease", "lease", (g, w, h) => { g.fillStyle = css.lease; g.fillRect(0, h / 2 - 1, w, 3); }], ["op", "volume operation", (g, w, h) => { g.fillStyle = css.op; for (const x of [3, 9, 17]) g.fillRect(x, 3, 2, h - 6); }], ["note", "note", (g, w, h) => glyph(g, "diamond", w / 2, h / 2, 4, css.note)]];
  const buttons = kinds.filter(([k]) => items.some(it => it.kind === k)).map(([k, text, draw]) => node("button", {
    type: "button", title: "Show or hide", "aria-pressed": String(!hiddenKinds.has(k)),
    onclick: () => { hiddenKinds.has(k) ? hiddenKinds.delete(k) : hiddenKinds.add(k); layOut(); showLegends(); refresh(); },
  }, swatch(draw), text));
  const still = [["refused", sign("ex", css.bad)], ["never answered", (g, w, h) => { line(g, 2, h / 2, w - 6, h / 2, css.bad, 1, [3, 2]); glyph(g, "ring", w - 6, h / 2, 4, css.bad); }],
    ...Object.keys(STATES).filter(s => items.some(it => it.kind === "state" && it.outcome === s)).map(s => [s, box(STATES[s])])];
  document.getElementById("legend-lines").replaceChildren(...buttons, ...still.map(([text, draw]) => node("span", {}, swatch(draw), text)));
  const used = new Set(files.flatMap(f => f.snaps.flatMap(s => s.runs.map(r => r.state))));
  if (files.some(f => f.batches.some(torn))) used.add("T");
  document.getElementById("legend-bytes").replaceChildren(
    ...Object.entries(BYTES).filter(([k]) => used.has(k)).map(([, b]) => node("span", {}, swatch(box(b.paint)), b.name)),
    node("span", {}, swatch((g, w, h) => { g.fillStyle = css.disk; g.fillRect(0, 0, w, h); g.fillStyle = css.onbyte; g.fillRect(w / 2, 0, 1, h); }), "line: end of a batch"),
    node("span", {}, swatch((g, w, h) => { g.fillStyle = css.dim; for (const x of [2, 8, 14, 20]) g.fillRect(x, 2, 1, 5); }), "tick: page"));
}
