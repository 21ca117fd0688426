// The time line: a lane per client, broker and volume; only what is visible is drawn.

const AXIS = 32;
const FONT = '11px system-ui, "Segoe UI", "Liberation Sans", sans-serif';
const TRACKS = { fault: 13, state: 16, lease: 7, produce: 12, request: 10, read: 12, op: 9, note: 10 };
const ORDER = ["fault", "state", "lease", "produce", "request", "read", "op", "note"];
const hiddenKinds = new Set();
let laidOut = { rows: [], height: 0 };

// Gives every item its track's place. Faults of one lane that overlap get rows of their own.
function layOut() {
  const plain = place(1), room = document.getElementById("left").clientHeight * 0.46;
  place(clamp(room / plain, 1, 1.7));
  placeLaneButtons();
}

function place(scale) {
  let y = AXIS + 2;
  const rows = [];
  for (const lane of lanes) {
    const top = y, tracks = {};
    y += 4;
    for (const kind of ORDER) {
      const here = lane.items.filter(it => it.kind === kind);
      if (!here.length || hiddenKinds.has(kind)) continue;
      const n = kind === "fault" || kind === "lease" ? packRows(here, kind === "fault" ? END * 0.004 : 0) : (here.forEach(it => (it.row = 0)), 1);
      const h = Math.round(TRACKS[kind] * (kind === "lease" ? 1 : scale));
      tracks[kind] = { y, h, items: here, long: longest(here) };
      y += n * h + 2;
    }
    const spare = top + Math.round(34 * scale) - (y + 3);
    if (spare > 0) for (const track of Object.values(tracks)) track.y += spare >> 1;
    y += 3 + Math.max(0, spare);
    rows.push({ lane, top, bottom: y, tracks });
  }
  laidOut = { rows, height: y + 2 };
  return laidOut.height;
}

function packRows(list, gap) {
  const ends = [];
  for (const it of list) {
    let row = ends.findIndex(end => end <= it.from);
    if (row < 0) row = ends.length;
    ends[row] = Math.max(it.to, it.from + 1) + gap;
    it.row = row;
  }
  return ends.length;
}

const longest = list => list.reduce((m, it) => Math.max(m, it.to - it.from), 0);

function placeLaneButtons() {
  const box = document.getElementById("lanes");
  box.replaceChildren(...laidOut.rows.map(({ lane, top, bottom }) => {
    const b = document.createElement("button");
    b.type = "button"; b.className = "lane"; b.dataset.lane = lane.i;
    b.style.top = `${top + 1}px`; b.style.height = `${bottom - top - 2}px`;
    b.innerHTML = "<span></span><small></small>";
    b.firstChild.textContent = lane.name; b.lastChild.textContent = lane.note || "";
    b.title = lane.note ? `${lane.name}: ${lane.note}` : lane.name;
    b.setAttribute("aria-pressed", String(S.lane === lane.i));
    b.onclick = () => chooseLane(S.lane === lane.i ? -1 : lane.i);
    return b;
  }));
}

// The items of a track that can be seen between `v0` and `v1`.
function* visible(track, v0, v1) {
  for (let i = Math.max(0, lastAt(track.items, v0 - track.long - 1, it => it.from)); i < track.items.length; i++) {
    const it = track.items[i];
    if (it.from > v1) return;
    if (it.to >= v0) yield it;
  }
}

function timeX(w, t) { return (t - S.v0) / (S.v1 - S.v0) * w; }
function timeOf(w, x) { return S.v0 + x / w * (S.v1 - S.v0); }

function drawTimeline() {
  const { g, w, h } = fitCanvas(el.lines, laidOut.height);
  const X = t => timeX(w, t);
  drawPhases(g, w, h, X);
  drawAxis(g, w, h, X);
  for (const row of laidOut.rows) {
    line(g, 0, row.bottom, w, row.bottom, css.grid);
    if (S.lane === row.lane.i) { g.globalAlpha = 0.07; g.fillStyle = css.focus; g.fillRect(0, row.top, w, row.bottom - row.top); g.globalAlpha = 1; }
    for (const kind of Object.keys(row.tracks)) drawTrack(g, w, X, kind, row.tracks[kind]);
  }
  drawCuts(g, X, h);
  drawMarked(g, w, X);
  drawViolations(g, w, X, h);
  drawCursor(g, X, h);
  el.lines.setAttribute("aria-label", timelineSummary());
}

function drawPhases(g, w, h, X) {
  life.phases.forEach((p, i) => {
    const a = Math.max(0, X(p.from)), b = Math.min(w, X(p.to));
    if (b <= a) return;
    if (i % 2) { g.globalAlpha = 0.5; g.fillStyle = css.grid; g.fillRect(a, AXIS, b - a, h); g.globalAlpha = 1; }
    if (p.from > 0) line(g, X(p.from), 0, X(p.from), h, css.line);
  });
}

function drawAxis(g, w, h, X) {
  const step = niceStep((S.v1 - S.v0) / Math.max(2, w / 90));
  for (let t = Math.ceil(S.v0 / step) * step; t <= S.v1; t += step) {
    line(g, X(t), 14, X(t), h, css.grid);
    const digits = Math.max(0, -Math.floor(Math.log10(step / 1e6) + 1e-9));
    g.fillStyle = css.dim; g.textAlign = "left";
    g.fillText(`${(t / 1e6).toFixed(digits)} s`, Math.min(X(t) + 3, w - 40), 8);
  }
  for (const p of life.phases) {
    const a = Math.max(0, X(p.from)), b = Math.min(w, X(p.to));
    g.font = "600 11px system-ui, sans-serif"; label(g, p.name, a + 4, 22, b - a - 8, css.dim); g.font = FONT;
  }
  line(g, 0, AXIS - 1, w, AXIS - 1, css.line);
}

function niceStep(rough) {
  const ten = 10 ** Math.floor(Math.log10(rough));
  return Math.max(1, (rough / ten <= 1 ? 1 : rough / ten <= 2 ? 2 : rough / ten <= 5 ? 5 : 10) * ten);
}

function drawTrack(g, w, X, kind, track) {
  const list = [...visible(track, S.v0, S.v1)];
  if (kind === "state") return list.forEach(it => drawState(g, w, X, it, track));
  if (kind === "fault") return list.forEach(it => drawFault(g, w, X, it, track));
  if (kind === "lease") return list.forEach(it => drawLease(g, w, X, it, track));
  // With many in sight, a tick for each; with few, a line from question to answer and a sign at its end.
  const dense = list.length > w / 9;
  let last = {};
  for (const it of list) {
    const end = X(it.to), key = Math.round(end * 2);
    if (last[it.outcome] === key) continue;
    last[it.outcome] = key;
    if (kind === "op") drawOp(g, w, X, it, track);
    else if (kind === "note") glyph(g, "diamond", X(it.from), track.y + 4, 3.2, css.note);
    else if (dense) drawTick(g, X, it, track);
    else drawRequest(g, w, X, it, track);
  }
}

const tint = it => (it.outcome === "ok" ? css[it.kind === "request" ? "other" : it.kind] : it.outcome === "refused" ? css.bad : css.bad);

function drawTick(g, X, it, track) {
  const x = Math.round(X(it.to)), ok = it.outcome === "ok", empty = it.kind === "read" && ok && !it.count;
  g.fillStyle = tint(it);
  g.globalAlpha = empty ? 0.3 : 0.85;
  if (empty) g.fillRect(x, track.y + track.h - 5, 1, 3);
  else if (ok) g.fillRect(x, track.y + 2, 1, track.h - 4);
  else { g.fillRect(x - 1, track.y, 3, 3); g.fillRect(x, track.y, 1, track.h); }
  g.globalAlpha = 1;
}

function drawRequest(g, w, X, it, track) {
  const y = track.y + track.h / 2, a = Math.max(-5, X(it.from)), colour = tint(it);
  // What was never answered would run to the end of the life.
  const b = Math.min(w + 5, X(it.to), it.open ? X(it.from) + 30 : LAST);
  const empty = it.kind === "read" && it.outcome === "ok" && !it.count;
  if (empty) g.globalAlpha = 0.4;
  if (b - a > 1) line(g, a, y, b, y, colour, 1, it.outcome === "unanswered" ? [3, 2] : []);
  line(g, a, y - 3, a, y + 3, colour);
  const sign = it.outcome === "refused" ? "ex" : it.outcome !== "ok" ? "ring" : it.kind === "produce" ? "up" : empty ? "ring" : it.kind === "read" ? "disc" : "diamond";
  glyph(g, sign, b, y, empty ? 2.4 : sign === "ex" ? 3 : 3.8, colour);
  g.globalAlpha = 1;
}

function drawOp(g, w, X, it, track) {
  const a = X(it.from), b = Math.max(X(it.to), a + 1);
  g.fillStyle = it.outcome === "ok" ? css.op : css.bad;
  g.globalAlpha = it.outcome === "ok" ? 0.7 : 1;
  g.fillRect(Math.max(0, a), track.y + 2, Math.min(w, b) - Math.max(0, a), track.h - 4);
  g.globalAlpha = 1;
}

function drawState(g, w, X, it, track) {
  const a = Math.max(-2, X(it.from)), b = Math.min(w + 2, X(it.to));
  if (b - a < 0.5) return;
  g.fillStyle = (STATES[it.outcome] || STATES.paused)();
  g.fillRect(a, track.y, b - a, track.h);
  if (it.outcome === "dead") { g.strokeStyle = css.dead; g.lineWidth = 1; g.strokeRect(a + 0.5, track.y + 0.5, b - a - 1, track.h - 1); }
  else line(g, a, track.y, a, track.y + track.h, css.panel);
  const text = it.text ? `${it.outcome}: ${it.text}` : it.outcome, room = b - Math.max(a, 0) - 10;
  if (room < 20) return;
  if (it.outcome !== "serving") plate(g, text, Math.max(a, 0) + 3, track.y + 2, Math.min(room, g.measureText(text).width) + 4, track.h - 4, it.outcome === "dead" ? css.bg : css[it.outcome]);
  label(g, text, Math.max(a, 0) + 5, track.y + track.h / 2, room, it.outcome === "dead" ? css.dim : css.stateink);
}

// A calm ground under words that stand on a pattern.
function plate(g, text, x, y, w, h, colour) { g.fillStyle = colour; g.fillRect(x, y, w, h); }

function drawFault(g, w, X, it, track) {
  const y = track.y + it.row * track.h, h = track.h - 2, a = Math.max(-2, X(it.from)), instant = it.to === it.from;
  const b = instant ? a : Math.min(w + 2, X(it.to));
  if (instant) { glyph(g, "down", a, y + h / 2, 4, css.fault); }
  else {
    g.fillStyle = fill("hatch", css.faultbg, css.fault, 6, 1); g.fillRect(a, y, Math.max(2, b - a), h);
    g.strokeStyle = css.fault; g.lineWidth = 1; g.strokeRect(a + 0.5, y + 0.5, Math.max(1, b - a - 1), h - 1);
  }
  const x = Math.max(a, 0) + 6, inside = b - Math.max(a, 0) - 10, text = g.measureText(it.text).width;
  if (!instant && inside > Math.min(text, 60)) {
    plate(g, it.text, x - 3, y + 1, Math.min(text, inside) + 6, h - 2, css.faultbg);
    return label(g, it.text, x, y + h / 2, inside, css.ink);
  }
  const next = track.items.find(o => o !== it && o.row === it.row && o.from > it.from);
  const room = (next ? X(next.from) : w) - Math.max(b, 0) - 12;
  if (room > 28) label(g, it.text, Math.max(b, 0) + 6, y + h / 2, Math.min(room, 200), css.fault);
}

function drawLease(g, w, X, it, track) {
  const a = Math.max(-2, X(it.from)), b = Math.min(w + 2, X(it.to)), y = track.y + it.row * track.h;
  g.fillStyle = css.lease; g.fillRect(a, y + 1, Math.max(1, b - a), 3);
  line(g, a, y, a, y + 5, css.lease); line(g, b, y, b, y + 5, css.lease);
}

// A cut or a kill touches everything: a thin line through all lanes.
function drawCuts(g, X, h) {
  for (const m of faults) {
    if (m.item.to !== m.item.from || m.at < S.v0 || m.at > S.v1) continue;
    g.globalAlpha = 0.35; line(g, X(m.at), AXIS, X(m.at), h, css.fault, 1, [2, 3]); g.globalAlpha = 1;
  }
}

const trackOf = it => laidOut.rows[it.lane]?.tracks[it.kind];
function middle(it) {
  const t = trackOf(it);
  return t && t.y + (it.row || 0) * t.h + t.h / 2 - (it.kind === "fault" ? 1 : 0);
}

// What was found for an offset, and what led to the broken promise.
function drawMarked(g, w, X) {
  const ring = (it, at, colour, text) => {
    const x = X(at), y = middle(it);
    if (y === undefined || x < -10 || x > w + 10) return;
    g.beginPath(); g.arc(x, y, 6.5, 0, 7); g.strokeStyle = colour; g.lineWidth = 2; g.stroke();
    if (!text) return;
    g.beginPath(); g.arc(x + 8, y - 7, 6, 0, 7); g.fillStyle = colour; g.fill();
    g.font = "bold 9px system-ui, sans-serif"; g.textAlign = "center"; g.fillStyle = css.panel; g.fillText(text, x + 8, y - 6.5);
    g.font = FONT;
  };
  for (const f of S.found) if (f.item) ring(f.item, f.at, css.found);
  const v = violations[S.violation];
  if (v) v.events.forEach((i, n) => items[i] && ring(items[i], endMoment(items[i]), css.broken, String(n + 1)));
}

// Where a request is marked: at its answer, if there is one.
const endMoment = it => (REQUESTS.has(it.kind) && !it.open ? it.to : it.from);

function drawViolations(g, w, X, h) {
  for (const v of violations) {
    const x = X(v.at);
    if (x < -30 || x > w + 30) continue;
    if (S.violation !== v.i) { g.globalAlpha = 0.45; line(g, x, AXIS, x, h, css.broken, 1); g.globalAlpha = 1; continue; }
    line(g, x, AXIS, x, h, css.broken, 2);
    const text = v.promise, tw = g.measureText(text).width + 8, left = x + tw > w ? x - tw : x;
    g.fillStyle = css.broken; g.fillRect(left, AXIS - 1, tw, 14);
    g.fillStyle = css.panel; g.textAlign = "left"; g.fillText(text, left + 4, AXIS + 6.5);
  }
}

function drawCursor(g, X, h) {
  const x = X(S.t);
  line(g, x, 0, x, h, css.cursor, 1);
  glyph(g, "down", Math.round(x) + 0.5, 4, 5, css.cursor);
  if (S.at && S.at.item) {
    const y = middle(S.at.item);
    if (y !== undefined) { g.beginPath(); g.arc(X(S.at.at), y, 5.5, 0, 7); g.strokeStyle = css.focus; g.lineWidth = 2; g.stroke(); }
  }
}

function drawOverview() {
  const { g, w, h } = fitCanvas(el.overview);
  const X = t => t / END * w;
  g.fillStyle = css.panel; g.fillRect(0, 0, w, h);
  const bins = new Float64Array(Math.ceil(w / 2) + 1);
  for (const m of moments) if (m.end && REQUESTS.has(m.item.kind)) bins[Math.floor(X(m.at) / 2)]++;
  const most = Math.max(1, ...bins);
  g.fillStyle = css.op; g.globalAlpha = 0.55;
  bins.forEach((n, i) => n && g.fillRect(i * 2, h - 2 - n / most * (h - 10), 1.5, n / most * (h - 10)));
  g.globalAlpha = 1;
  g.fillStyle = css.fault;
  for (const m of faults) g.fillRect(X(m.at), 1, Math.max(2, X(m.item.to) - X(m.at)), 4);
  for (const v of violations) { g.fillStyle = css.broken; g.fillRect(X(v.at) - 1, 0, 3, h); }
  const a = X(S.v0), b = X(S.v1);
  g.globalAlpha = 0.5; g.fillStyle = css.bg; g.fillRect(0, 0, a, h); g.fillRect(b, 0, w - b, h); g.globalAlpha = 1;
  g.strokeStyle = css.focus; g.lineWidth = 1.5; g.strokeRect(a + 0.75, 0.75, Math.max(4, b - a - 1.5), h - 1.5);
  line(g, X(S.t), 0, X(S.t), h, css.cursor);
}

// What of the time line lies under the pointer, nearest first.
function hitTimeline(x, y, w) {
  const row = laidOut.rows.find(r => y >= r.top && y < r.bottom);
  if (!row) return [];
  const slack = 5 * (S.v1 - S.v0) / w, t = timeOf(w, x), hits = [];
  for (const [kind, track] of Object.entries(row.tracks)) {
    for (const it of visible(track, t - slack, t + slack)) {
      const ty = track.y + (it.row || 0) * track.h;
      if (y < ty - 1 || y > ty + track.h + 1) continue;
      const away = t < it.from ? it.from - t : t > it.to ? t - it.to : REQUESTS.has(kind) ? Math.min(t - it.from, it.to - t) / 4 : 0;
      if (away <= slack) hits.push([away, it]);
    }
  }
  return hits.sort((a, b) => a[0] - b[0]).slice(0, 6).map(h => h[1]);
}

function timelineSummary() {
  const states = lanes.map(l => [l, stateAt(l, S.t)]).filter(x => x[1]).map(([l, s]) => `${l.name} ${s.outcome}`);
  return `Time line from ${seconds(S.v0)} to ${seconds(S.v1)} of ${seconds(END)}, ${plural(lanes.length, "lane")}, ${plural(faults.length, "fault")}, ` +
    `${plural(violations.length, "broken promise")}. Cursor at ${seconds(S.t)}. ${states.join(", ")}.`;
}
