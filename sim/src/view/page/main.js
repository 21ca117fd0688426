// State, steps, keys and pointer.

// The page's state: the cursor, what is shown of time and bytes, what is chosen and what was found.
const el = {};
for (const id of ["overview", "lines", "strips", "slider", "clock", "names", "partition", "small", "query", "tip", "said", "app"]) el[id] = document.getElementById(id);
el.filesNote = document.getElementById("files-note");

const S = {
  t: 0, v0: 0, v1: END, lane: -1, at: null, violation: -1,
  part: 0, small: false, b0: 0, b1: 4096, follow: false,
  offset: null, found: [], foundAt: -1, findError: "",
};

// --- moving ---

const clamp = (x, a, b) => Math.min(Math.max(x, a), b);

function goTo(t, at = null) {
  S.t = clamp(Math.round(t), 0, END);
  S.at = at;
  const width = S.v1 - S.v0;
  if (S.t < S.v0 || S.t > S.v1) show(S.t - width / 2, S.t + width / 2);
  if (at?.item) el.said.textContent = `${seconds(S.t)}, ${lanes[at.item.lane].name}: ${at.item === undefined ? "" : "end" in at ? momentWords(at) : words(at.item)}`;
  refresh();
}

function show(v0, v1) {
  const width = clamp(v1 - v0, 200, END);
  S.v0 = clamp(v0, 0, END - width);
  S.v1 = S.v0 + width;
  refresh();
}

function zoom(factor, around = S.t) {
  const at = around < S.v0 || around > S.v1 ? (S.v0 + S.v1) / 2 : around;
  show(at - (at - S.v0) * factor, at + (S.v1 - at) * factor);
}

const stepList = () => moments.filter(m => (S.lane < 0 || m.item.lane === S.lane) && !hiddenKinds.has(m.item.kind));

// From the event under the cursor to its neighbour; else to the nearest in that direction.
function step(list, by) {
  if (!list.length) return;
  let i = S.at ? list.findIndex(m => m === S.at) : -1;
  if (i >= 0) i += by;
  else i = by > 0 ? lastAt(list, S.t) + 1 : lastAt(list, S.t - 1);
  if (i >= 0 && i < list.length) goTo(list[i].at, list[i]);
}

function goViolation(i) {
  if (!violations.length) return;
  S.violation = (i + violations.length) % violations.length;
  const v = violations[S.violation];
  if (v.part >= 0 && v.part !== undefined) choosePartition(v.part);
  showPromises(); showFound();
  goTo(v.at);
  el.said.textContent = `${v.promise} ${v.title}: ${v.text}`;
}

function stepCause(by) {
  const v = violations[Math.max(0, S.violation)];
  if (!v) return;
  const list = v.events.map(i => items[i]).filter(Boolean).map(item => ({ item, at: endMoment(item) }));
  const now = S.at ? list.findIndex(m => m.item === S.at.item && m.at === S.at.at) : -1;
  const next = now >= 0 ? now + by : by > 0 ? 0 : list.length - 1;
  if (list[next]) goTo(list[next].at, list[next]);
}

function chooseLane(i) {
  S.lane = i;
  for (const b of document.querySelectorAll(".lane")) b.setAttribute("aria-pressed", String(+b.dataset.lane === i));
  el.said.textContent = i < 0 ? "all lanes" : lanes[i].name;
  refresh();
}

function choosePartition(i) {
  if (S.part === i || !partitions[i]) return;
  S.part = i;
  el.partition.value = i;
  fitBytes();
}

// --- bytes ---

function fitBytes() { S.follow = false; S.b0 = 0; S.b1 = scaleMax() * 1.04; refresh(); }

function zoomBytes(factor, around = (S.b0 + S.b1) / 2) {
  const most = scaleMax() * 1.04, width = clamp((S.b1 - S.b0) * factor, 256, most), share = (around - S.b0) / (S.b1 - S.b0);
  S.b0 = clamp(around - share * width, 0, most - width);
  S.b1 = S.b0 + width;
  refresh();
}

function tailBytes() { S.b1 = S.b0 + Math.min(scaleMax() * 1.04, 32768); S.follow = true; refresh(); }

function showBatch(f, b) {
  S.follow = false;
  const width = clamp(S.b1 - S.b0, 1, Math.max(b.len * 60, 16384)), most = Math.max(width, scaleMax() * 1.04);
  if (b.pos >= S.b0 && b.pos + b.len <= S.b1 && b.len / (S.b1 - S.b0) > 0.004) return;
  S.b0 = clamp(b.pos + b.len / 2 - width / 2, 0, most - width);
  S.b1 = S.b0 + width;
}

// --- finding ---

function find(text) {
  const q = parseQuery(text, S.part);
  S.findError = q.error || "";
  S.offset = q.error ? null : q;
  S.found = q.error ? [] : traces(q.part, q.offset);
  S.foundAt = -1;
  if (q.error) { el.said.textContent = q.error; showFound(); return refresh(); }
  choosePartition(q.part);
  showFound();
  S.found.length ? goFound(0) : refresh();
}

function goFound(i) {
  if (!S.found.length) return;
  S.foundAt = (i + S.found.length) % S.found.length;
  const f = S.found[S.foundAt];
  const trace = f.batch ? f : S.found.find(x => x.batch && x.at <= f.at && f.at < x.batch.gone);
  if (trace) showBatch(trace.file, trace.batch);
  goTo(f.at, f.item ? { item: f.item, at: f.at } : null);
  showFound();
}

function forget() { S.offset = null; S.found = []; S.findError = ""; showFound(); chooseLane(-1); }

// --- drawing ---

let queued = false;
function refresh() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; draw(); });
}

function draw() {
  drawOverview(); drawTimeline(); drawStrips(); showHere();
  el.slider.value = S.t;
  el.clock.textContent = seconds(S.t);
  el.slider.setAttribute("aria-valuetext", seconds(S.t));
  Object.assign(el.app.dataset, { cursor: S.t, from: Math.round(S.v0), to: Math.round(S.v1), lane: S.lane, found: S.found.length, files: shownFiles.length, ready: "1" });
}

// --- keys and buttons ---

const acts = {
  "next": () => step(stepList(), 1), "prev": () => step(stepList(), -1),
  "next-fault": () => step(faults, 1), "prev-fault": () => step(faults, -1),
  "violation": () => goViolation(S.violation < 0 || S.t === violations[S.violation]?.at ? S.violation + 1 : S.violation),
  "violation-back": () => goViolation(S.violation - 1),
  "in": () => zoom(0.5), "out": () => zoom(2), "fit": () => show(0, END),
  "bytes-in": () => zoomBytes(0.5), "bytes-out": () => zoomBytes(2), "bytes-fit": fitBytes, "bytes-tail": tailBytes,
  "theme": () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
      (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    repaint();
  },
  "help": () => document.getElementById("keys").showModal(),
};
const jump = by => goTo(S.t + by * (S.v1 - S.v0) / 20);
const keys = {
  "ArrowRight": acts.next, "ArrowLeft": acts.prev, "Shift+ArrowRight": () => jump(1), "Shift+ArrowLeft": () => jump(-1),
  "ArrowDown": () => chooseLane(Math.min(S.lane + 1, lanes.length - 1)), "ArrowUp": () => chooseLane(Math.max(S.lane - 1, -1)),
  "f": acts["next-fault"], "F": acts["prev-fault"], "v": acts.violation, "V": acts["violation-back"],
  "c": () => stepCause(1), "C": () => stepCause(-1), "n": () => goFound(S.foundAt + 1), "N": () => goFound(S.foundAt - 1),
  "/": () => { el.query.focus(); el.query.select(); }, "Escape": forget,
  "+": acts.in, "=": acts.in, "-": acts.out, "0": acts.fit, "]": acts["bytes-in"], "[": acts["bytes-out"], "\\": acts["bytes-fit"], "e": acts["bytes-tail"],
  "Home": () => goTo(0), "End": () => goTo(END), "t": acts.theme, "?": acts.help,
};

document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || document.getElementById("keys").open) return;
  if (e.target === el.query) { if (e.key === "Escape") { el.query.blur(); } return; }
  if (e.target.tagName === "SELECT") return;
  const act = keys[e.shiftKey && e.key.startsWith("Arrow") ? `Shift+${e.key}` : e.key];
  if (!act) return;
  e.preventDefault();
  act();
});
for (const b of document.querySelectorAll("[data-act]")) b.onclick = acts[b.dataset.act];
document.getElementById("theme").onclick = acts.theme;
document.getElementById("help").onclick = acts.help;
document.getElementById("find").onsubmit = e => { e.preventDefault(); find(el.query.value); el.query.blur(); };
el.slider.oninput = () => goTo(+el.slider.value);
el.partition.onchange = () => { choosePartition(+el.partition.value); refresh(); };
el.small.onchange = () => { S.small = el.small.checked; refresh(); };

// --- pointer ---

function tell(e, lines) {
  el.tip.hidden = !lines.length;
  if (!lines.length) return;
  el.tip.replaceChildren(...lines.map(l => (typeof l === "string" ? node("div", {}, l) : l)));
  const right = e.clientX + 16 + el.tip.offsetWidth > innerWidth, low = e.clientY + 16 + el.tip.offsetHeight > innerHeight;
  el.tip.style.left = `${right ? e.clientX - el.tip.offsetWidth - 10 : e.clientX + 14}px`;
  el.tip.style.top = `${low ? e.clientY - el.tip.offsetHeight - 10 : e.clientY + 14}px`;
}

// Press and move drags what is shown; a press alone puts the cursor there.
function pointer(canvas, { drag, click, hover, wheel }) {
  let start = null;
  canvas.addEventListener("pointerdown", e => { start = { x: e.offsetX, last: e.offsetX, moved: false }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", e => {
    if (!start) return hover(e);
    if (Math.abs(e.offsetX - start.x) > 3) start.moved = true;
    if (start.moved) drag(e, e.offsetX - start.last);
    start.last = e.offsetX;
  });
  canvas.addEventListener("pointerup", e => { if (start && !start.moved) click(e); start = null; });
  canvas.addEventListener("pointerleave", () => { el.tip.hidden = true; });
  if (wheel) canvas.addEventListener("wheel", e => { if (e.shiftKey) return; e.preventDefault(); wheel(e, 1.0015 ** e.deltaY); }, { passive: false });
}

pointer(el.lines, {
  drag: (e, dx) => { const d = -dx / el.lines.clientWidth * (S.v1 - S.v0); show(S.v0 + d, S.v1 + d); },
  click: e => {
    const hit = hitTimeline(e.offsetX, e.offsetY, el.lines.clientWidth)[0], t = timeOf(el.lines.clientWidth, e.offsetX);
    if (!hit || hit.kind === "state" || hit.kind === "lease") return goTo(t);
    const end = REQUESTS.has(hit.kind) && Math.abs(t - hit.to) < Math.abs(t - hit.from);
    const m = moments.find(m => m.item === hit && m.end === end);
    goTo(end ? hit.to : hit.from, m || { item: hit, at: end ? hit.to : hit.from });
  },
  hover: e => {
    const hits = hitTimeline(e.offsetX, e.offsetY, el.lines.clientWidth);
    tell(e, hits.map(it => node("div", {}, node("span", { className: "at" }, `${seconds(it.from)} `), words(it))));
  },
  wheel: (e, k) => (Math.abs(e.deltaX) > Math.abs(e.deltaY)
    ? show(S.v0 + e.deltaX / el.lines.clientWidth * (S.v1 - S.v0), S.v1 + e.deltaX / el.lines.clientWidth * (S.v1 - S.v0))
    : zoom(k, timeOf(el.lines.clientWidth, e.offsetX))),
});
pointer(el.strips, {
  drag: (e, dx) => { S.follow = false; const d = -dx / el.strips.clientWidth * (S.b1 - S.b0), w = S.b1 - S.b0; S.b0 = Math.max(0, S.b0 + d); S.b1 = S.b0 + w; refresh(); },
  click: () => {},
  hover: e => tell(e, hitStrips(e.offsetX, e.offsetY, el.strips.clientWidth) || []),
});
// The wheel over the strips scrolls the page; with Ctrl it zooms.
el.strips.addEventListener("wheel", e => {
  if (!e.ctrlKey) return;
  e.preventDefault();
  zoomBytes(1.0015 ** e.deltaY, S.b0 + e.offsetX / el.strips.clientWidth * (S.b1 - S.b0));
}, { passive: false });
const seek = e => { const t = e.offsetX / el.overview.clientWidth * END, w = S.v1 - S.v0; show(t - w / 2, t + w / 2); };
pointer(el.overview, { drag: seek, click: e => { seek(e); goTo(e.offsetX / el.overview.clientWidth * END); }, hover: () => {} });

// --- start ---

function repaint() { readColours(); showLegends(); refresh(); }

function start() {
  const m = life.meta;
  document.title = `${m.scenario} ${m.seed}: ${m.verdict}`;
  document.getElementById("scenario").textContent = m.scenario;
  document.getElementById("seed").textContent = m.seed;
  const v = document.getElementById("verdict");
  v.textContent = m.verdict;
  v.classList.add(violations.length ? "broken" : "held");
  document.getElementById("facts").textContent = [`${seconds(END, 1)} simulated`, plural(items.length, "event"), plural(faults.length, "fault")].filter(Boolean).join(" · ");
  el.slider.max = END;
  el.slider.step = "any";
  el.partition.replaceChildren(...partitions.map((p, i) => node("option", { value: i }, p.name)));
  readColours(); layOut(); showLegends(); showPromises(); showFound(); fitBytes();
  document.querySelector("[data-act=violation]").hidden = !violations.length;
  violations.length ? goViolation(0) : goTo(END);
  addEventListener("resize", () => { layOut(); refresh(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}
start();
