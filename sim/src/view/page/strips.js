// The partition's files as strips of bytes, at the cursor's time.

const BIG = { h: 26, row: 58 }, SMALL = { h: 8, row: 26 };
const rowOf = f => (isLog(f) && S.t < f.gone ? BIG.row : SMALL.row);
let shownFiles = [];

const isLog = f => f.role === "log";
const scaleMax = () => Math.max(4096, ...files.filter(f => f.part === S.part && isLog(f)).map(f => Math.max(...f.snaps.map(s => s.runs.reduce((n, r) => n + r.len, 0)), 0)));

// Files of the partition that exist now or did; closed names keep their place so that nothing jumps.
function chooseFiles() {
  const mine = files.filter(f => f.part === S.part && (isLog(f) || S.small));
  shownFiles = mine.filter(f => f.born <= S.t && (isLog(f) || S.t < f.gone)).sort((a, b) => isLog(b) - isLog(a) || a.path.localeCompare(b.path, "en"));
  return mine.length - shownFiles.length;
}

function bytesX(w, pos) { return (pos - S.b0) / (S.b1 - S.b0) * w; }

function drawStrips() {
  const later = chooseFiles();
  let y = 4;
  for (const f of shownFiles) { f.y = y; y += rowOf(f); }
  if (S.follow) followEnd();
  const { g, w } = fitCanvas(el.strips, Math.max(60, y + 4));
  if (!shownFiles.length) label(g, "No segment of this partition exists yet.", 4, 24, w, css.dim);
  for (const f of shownFiles) isLog(f) ? drawSegment(g, w, f) : drawSmall(g, w, f);
  placeNames();
  el.filesNote.textContent = [later ? `${plural(later, "file")} not there yet` : "", marksText()].filter(Boolean).join(" · ");
  el.strips.setAttribute("aria-label", stripsSummary());
}

function followEnd() {
  const ends = shownFiles.filter(isLog).map(f => f.snaps[lastAt(f.snaps, S.t)]).filter(Boolean);
  const end = ends.length ? ends[ends.length - 1].len : 4096, width = S.b1 - S.b0;
  S.b0 = Math.max(0, end - width * 0.9);
  S.b1 = S.b0 + width;
}

function marksText() {
  const hwm = markAt(S.part, "hwm", S.t), start = markAt(S.part, "start", S.t), ck = markAt(S.part, "checkpoint", S.t);
  return [hwm && `high watermark ${hwm[1]}`, start && `log start ${start[1]}`, ck && `checkpoint at offset ${ck[3]}`].filter(Boolean).join(" · ");
}

function drawSegment(g, w, f) {
  const y = f.y + 13, h = BIG.h, snap = snapAt(f, S.t);
  if (!snap) return label(g, S.t >= f.gone ? `removed at ${seconds(f.gone)}` : "", 4, f.y + 6, w, css.dim);
  line(g, 0, y + h, w, y + h, css.line);
  const X = p => bytesX(w, p);
  drawRuns(g, w, X, snap.runs, y, h);
  const list = batchesAt(f, S.t);
  drawTorn(g, w, X, list, y, h);
  drawBatches(g, w, X, list, y, h);
  drawPages(g, w, X, snap, f.page || 4096, y + h);
  drawSeal(g, w, X, sealAt(f, S.t), snap, y, h);
  drawMarks(g, w, X, f, list, y, h);
  drawFoundBatch(g, X, f, list, y, h);
}

function drawRuns(g, w, X, runs, y, h) {
  for (const r of runs) {
    const a = Math.max(0, X(r.pos)), b = Math.min(w, X(r.pos + r.len));
    if (b <= a) continue;
    const look = BYTES[r.state] || BYTES.Z;
    g.fillStyle = look.paint(); g.fillRect(a, y, Math.max(1, b - a), h);
    if (look.outline) { g.strokeStyle = css.lost; g.lineWidth = 1; g.setLineDash([3, 2]); g.strokeRect(a + 0.5, y + 0.5, Math.max(1, b - a - 1), h - 1); g.setLineDash([]); }
  }
}

const torn = b => (b.flags & 4) !== 0;

function drawTorn(g, w, X, list, y, h) {
  for (const b of list) {
    if (!torn(b)) continue;
    const a = Math.max(0, X(b.pos)), e = Math.min(w, X(b.pos + b.len));
    if (e > a) { g.fillStyle = BYTES.T.paint(); g.fillRect(a, y, e - a, h); }
  }
}

function drawBatches(g, w, X, list, y, h) {
  let drawn = -9;
  for (const b of list) {
    const a = X(b.pos), e = X(b.pos + b.len);
    if (e < 0 || a > w) continue;
    if (e - a >= 3 || Math.round(e) - drawn >= 4) { g.fillStyle = css.onbyte; g.fillRect(Math.round(e) - 1, y, 1, h); drawn = Math.round(e); }
    if (e - a > 14) {
      const room = Math.min(e, w) - Math.max(a, 0) - 7;
      const texts = torn(b) ? ["torn"] : b.flags & 2 ? [`${b.base} marker`] : b.count > 1 ? [`${b.base}–${endOf(b) - 1}`, `${b.base}`] : [`${b.base}`];
      const text = texts.find(t => g.measureText(t).width <= room);
      if (!text) continue;
      const tw = g.measureText(text).width;
      g.globalAlpha = 0.72; g.fillStyle = torn(b) ? css.torn : css.onbyte; g.fillRect(Math.max(a, 0) + 3, y + h / 2 - 7, tw + 4, 14); g.globalAlpha = 1;
      label(g, text, Math.max(a, 0) + 5, y + h / 2, room, torn(b) ? css.byteink : css.ink);
    }
  }
}

// Ticks below at page borders; fewer of them where they would touch.
function drawPages(g, w, X, snap, page, y) {
  let each = page;
  while ((X(each) - X(0)) < 5) each *= 2;
  const end = snap.runs.reduce((n, r) => n + r.len, 0);
  g.fillStyle = css.dim;
  for (let p = Math.max(0, Math.floor(S.b0 / each) * each); p <= end + page && p <= S.b1; p += each) g.fillRect(Math.round(X(p)), y + 1, 1, p % (each * 4) ? 4 : 6);
  label(g, each > page ? `tick: ${each / page} pages` : "", w - 4, y + 7, 120, css.dim, "right");
}

function drawSeal(g, w, X, seal, snap, y, h) {
  if (!seal) return;
  const x = X(seal.pos), end = X(Math.max(snap.len, seal.pos));
  if (x < -5 || x > w + 5) return;
  if (end > x) { g.globalAlpha = 0.72; g.fillStyle = css.bg; g.fillRect(x, y, end - x, h); g.globalAlpha = 1; }
  g.fillStyle = css.ink; g.fillRect(Math.round(x) - 1, y - 4, 3, h + 8); g.fillRect(Math.round(x) - 5, y - 4, 5, 2); g.fillRect(Math.round(x) - 5, y + h + 2, 5, 2);
  const text = `sealed at ${seal.end}`, tw = g.measureText(text).width;
  if (w - x < tw + 12) {
    plate(g, text, x - tw - 14, y + h / 2 - 7, tw + 6, 14, css.bg);
    return label(g, text, x - tw - 11, y + h / 2, tw + 4, css.ink);
  }
  if (w - x > 60) plate(g, text, x + 4, y + h / 2 - 7, g.measureText(text).width + 4, 14, css.bg);
  label(g, text, x + 6, y + h / 2, w - x - 8, css.ink);
}

// The byte position of an offset: the start of its batch, or the end of the log before it.
function posOf(list, offset) {
  const whole = list.filter(b => !torn(b));
  if (!whole.length || offset < whole[0].base) return null;
  for (const b of whole) if (offset < endOf(b)) return offset <= b.base ? b.pos : b.pos + b.len;
  const last = whole[whole.length - 1];
  return offset === endOf(last) ? last.pos + last.len : null;
}

function drawMarks(g, w, X, f, list, y, h) {
  const mark = (pos, text, below) => {
    const x = X(pos);
    if (x < -2 || x > w + 2) return;
    const ty = below ? y + h + 7 : y - 5, tw = g.measureText(text).width;
    glyph(g, below ? "up" : "down", x, below ? y + h + 4 : y - 3, 4, css.ink);
    line(g, x, y, x, y + h, css.ink, 1, [2, 2]);
    g.fillStyle = css.bg; if (below) g.fillRect(x + tw + 8 > w ? x - tw - 8 : x + 5, ty - 5, tw + 3, 12);
    if (x + tw + 8 > w) label(g, text, x - 7, ty, 200, css.ink, "right"); else label(g, text, x + 7, ty, 200, css.ink);
  };
  const hwm = markAt(S.part, "hwm", S.t), start = markAt(S.part, "start", S.t), ck = markAt(S.part, "checkpoint", S.t);
  const at = hwm && posOf(list, hwm[1]);
  if (at !== null && at !== undefined) mark(at, `HWM ${hwm[1]}`, false);
  const from = start && start[1] > 0 ? posOf(list, start[1]) : null;
  if (from !== null) mark(from, `log start ${start[1]}`, false);
  if (ck && ck[1] === f.i) mark(ck[2], `checkpoint ${ck[3]}`, true);
}

function drawFoundBatch(g, X, f, list, y, h) {
  if (!S.offset || S.offset.part !== f.part) return;
  for (const b of list) {
    if (S.offset.offset < b.base || S.offset.offset >= endOf(b)) continue;
    const a = X(b.pos), e = X(b.pos + b.len);
    g.strokeStyle = css.found; g.lineWidth = 3; g.strokeRect(a - 1.5, y - 2.5, Math.max(4, e - a + 3), h + 5);
  }
}

function drawSmall(g, w, f) {
  const snap = snapAt(f, S.t);
  if (!snap) return;
  // Small files have a scale of their own: a state is all there is to see.
  const total = Math.max(1, snap.runs.reduce((n, r) => n + r.len, 0)), X = p => p / total * Math.min(w, 220);
  drawRuns(g, w, X, snap.runs, f.y + 6, SMALL.h);
}

function placeNames() {
  el.names.replaceChildren(...shownFiles.map(f => {
    const d = document.createElement("div"), snap = snapAt(f, S.t);
    d.className = `file${snap ? "" : " gone"}${snap?.loose ? " loose" : ""}`;
    d.style.top = `${f.y + (isLog(f) && snap ? 9 : -1)}px`;
    const b = document.createElement("b"), s = document.createElement("small");
    b.textContent = shortName(f); b.title = f.path;
    s.textContent = snap ? `${bytes(snap.len)}${isLog(f) ? ` · ${plural(batchesAt(f, S.t).filter(x => !torn(x)).length, "batch").replace("batchs", "batches")}` : ""}${snap.loose ? " · name not durable" : ""}` : "";
    d.append(b, s);
    return d;
  }));
}

function totals(f) {
  const sum = {}, snap = snapAt(f, S.t);
  if (snap) for (const r of snap.runs) sum[r.state] = (sum[r.state] || 0) + r.len;
  return sum;
}

function stripsSummary() {
  const each = shownFiles.filter(isLog).map(f => `${shortName(f)}: ${Object.entries(totals(f)).map(([s, n]) => `${bytes(n)} ${BYTES[s]?.name}`).join(", ") || "not there"}`);
  return `Files of ${partitions[S.part]?.name || "no partition"} at ${seconds(S.t)}. ${each.join(". ")}. ${marksText()}`;
}

// What of the strips lies under the pointer.
function hitStrips(x, y, w) {
  const f = shownFiles.find(f => y >= f.y && y < f.y + rowOf(f)), snap = f && snapAt(f, S.t);
  if (!snap) return null;
  if (!isLog(f)) return [`${f.path}`, Object.entries(totals(f)).map(([s, n]) => `${bytes(n)} ${BYTES[s].name}`).join(", ")];
  const pos = Math.floor(S.b0 + x / w * (S.b1 - S.b0)), run = snap.runs.find(r => pos >= r.pos && pos < r.pos + r.len);
  const page = f.page || 4096, b = batchesAt(f, S.t).find(b => pos >= b.pos && pos < b.pos + b.len);
  if (pos < 0 || !run) return [`${f.path}: ${bytes(snap.len)}`];
  return [`byte ${pos}, page ${Math.floor(pos / page)} (${Math.floor(pos / page) * page}–${Math.floor(pos / page) * page + page - 1})`,
    `${BYTES[run.state]?.name}: bytes ${run.pos}–${run.pos + run.len - 1}`,
    b && `${torn(b) ? "torn batch" : "batch"} of ${plural(b.count, "record")} at ${b.base}, bytes ${b.pos}–${b.pos + b.len - 1}, written ${seconds(b.born)}`].filter(Boolean);
}
