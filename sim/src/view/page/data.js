// The life, decoded once: see view/data.rs for the form. Times are microseconds of simulated time.

const life = JSON.parse(document.getElementById("life").textContent);
const END = life.meta.duration;
const REQUESTS = new Set(["produce", "read", "request"]);
const LAST = Infinity;

const items = life.items.map((it, i) => ({
  i,
  lane: it.l,
  kind: it.k,
  from: it.f,
  // Absent: an instant. -1: never ended.
  to: it.t === undefined ? it.f : it.t < 0 ? END : it.t,
  open: it.t === -1,
  outcome: it.o || "",
  part: it.p ?? -1,
  base: it.b ?? -1,
  count: it.n ?? 0,
  text: it.x || "",
}));

// What the steps stop at: each item's start, and the end of what has one. Volume operations are too many.
const moments = [];
for (const it of items) {
  if (it.kind === "op") continue;
  moments.push({ at: it.from, item: it, end: false });
  if (it.to > it.from && !it.open && it.kind !== "state") moments.push({ at: it.to, item: it, end: true });
}
moments.sort((a, b) => a.at - b.at || a.item.i - b.item.i || a.end - b.end);

const faults = moments.filter(m => m.item.kind === "fault" && !m.end);
const violations = life.violations.map((v, i) => ({ ...v, i, events: v.events || [] }));
const lanes = life.lanes.map((l, i) => ({ ...l, i, items: items.filter(it => it.lane === i).sort((a, b) => a.from - b.from) }));
const partitions = life.partitions;
const files = life.files.map((f, i) => ({
  ...f, i,
  born: f.born ?? 0,
  gone: f.gone ?? LAST,
  snaps: f.snaps.map(([at, len, runs, loose]) => ({ at, len, runs: decodeRuns(runs), loose: !!loose })),
  batches: (f.batches || []).map(([pos, len, base, count, born, gone, flags]) =>
    ({ pos, len, base, count, born, gone: gone < 0 ? LAST : gone, flags: flags || 0 })),
  seals: f.seals || [],
}));

// "4096D100H": bytes and their state, from the file's start.
function decodeRuns(text) {
  const runs = [];
  let pos = 0;
  for (const [, n, state] of text.matchAll(/(\d+)([A-Z])/g)) {
    runs.push({ pos, len: +n, state });
    pos += +n;
  }
  return runs;
}

// Index of the last element whose `at` is at most `t`, or -1.
function lastAt(list, t, at = x => x.at) {
  let lo = 0, hi = list.length;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (at(list[mid]) <= t) lo = mid + 1; else hi = mid;
  }
  return lo - 1;
}

const snapAt = (file, t) => (t < file.born || t >= file.gone ? null : file.snaps[lastAt(file.snaps, t)] || null);
const batchesAt = (file, t) => file.batches.filter(b => b.born <= t && t < b.gone).sort((a, b) => a.pos - b.pos);
const endOf = b => b.base + b.count;
const sealAt = (file, t) => { const s = file.seals[lastAt(file.seals, t, x => x[0])]; return s ? { pos: s[1], end: s[2] } : null; };
const markAt = (part, name, t) => { const list = partitions[part]?.[name] || []; return list[lastAt(list, t, x => x[0])] || null; };
const stateAt = (lane, t) => { let now = null; for (const it of lane.items) { if (it.from > t) break; if (it.kind === "state") now = it; } return now; };

// --- words ---

const seconds = (us, digits = 3) => (us / 1e6).toFixed(digits) + " s";
function span(us) {
  if (us < 1000) return `${us} µs`;
  return us < 1e6 ? `${+(us / 1e3).toPrecision(3)} ms` : `${+(us / 1e6).toFixed(2)} s`;
}
function bytes(n) {
  if (n < 1024) return `${n} B`;
  return n < 1 << 20 ? `${+(n / 1024).toFixed(1)} KiB` : `${+(n / (1 << 20)).toFixed(2)} MiB`;
}
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const range = it => (it.count > 1 ? `${it.base}–${it.base + it.count - 1}` : `${it.base}`);

// What an item says of itself, without its lane and time.
function words(it) {
  const where = it.part >= 0 ? ` ${partitions[it.part].name}` : "";
  const took = it.to > it.from && !it.open ? ` (${span(it.to - it.from)})` : "";
  const more = it.text ? `: ${it.text}` : "";
  if (it.kind === "produce") {
    if (it.outcome === "ok") return `produce${where}, acknowledged at ${it.base < 0 ? "an unknown offset" : range(it)}${took}${more}`;
    return `produce${where}, ${it.outcome === "refused" ? "refused" : "never answered"}${took}${more}`;
  }
  if (it.kind === "read") {
    if (it.outcome !== "ok") return `read${where}, ${it.outcome === "refused" ? "refused" : "never answered"}${took}${more}`;
    return `read${where} ${it.count ? range(it) : "nothing new"}${took}${more}`;
  }
  if (it.kind === "state") return `${it.outcome}${more}`;
  if (it.kind === "request") return `${it.text}${it.outcome === "ok" ? "" : it.outcome === "refused" ? ", refused" : ", never answered"}${took}`;
  const open = it.open ? " (never ended)" : took;
  return `${it.kind === "fault" || it.kind === "lease" ? it.kind + " " : ""}${it.text}${open}`;
}

// The same for one of its two ends.
function momentWords(m) {
  const it = m.item;
  if (!REQUESTS.has(it.kind)) return m.end ? `${it.kind === "lease" ? "lease " : ""}${it.text} ended` : words(it);
  if (m.end) return words(it);
  const where = it.part >= 0 ? ` to ${partitions[it.part].name}` : "";
  return it.kind === "request" ? `asked: ${it.text.split(": ")[0]}` : `${it.kind === "read" ? "asked to read" : "sent"}${where.replace(" to", it.kind === "read" ? "" : " to")}`;
}

// --- finding an offset ---

// "12" in the chosen partition, or "topic-0@12".
function parseQuery(text, chosen) {
  const m = text.trim().match(/^(?:(.+?)\s*[@ ]\s*)?(\d+)$/);
  if (!m) return { error: "An offset is a number, as in 12 or topic-0@12." };
  const part = m[1] === undefined ? chosen : partitions.findIndex(p => p.name === m[1].trim());
  return part < 0 ? { error: `No partition is named ${m[1]}.` } : { part, offset: +m[2] };
}

const covers = (it, part, offset) => it.part === part && it.base >= 0 && it.base <= offset && offset < it.base + Math.max(it.count, 1);

// Everything that the life knows of one offset, in order of time.
function traces(part, offset) {
  const found = [];
  for (const it of items) {
    if (!covers(it, part, offset) || (it.kind === "read" && !it.count)) continue;
    if (it.kind === "produce") found.push({ at: it.from, item: it, text: "sent" });
    found.push({ at: it.to, item: it, text: words(it) });
  }
  for (const f of files) {
    if (f.part !== part) continue;
    for (const b of f.batches) {
      if (offset < b.base || offset >= endOf(b)) continue;
      found.push({ at: b.born, file: f, batch: b, text: `bytes ${b.pos}–${b.pos + b.len - 1} of ${shortName(f)}` });
      if (b.gone !== LAST) found.push({ at: b.gone, file: f, batch: b, text: `those bytes are gone from ${shortName(f)}` });
    }
  }
  for (const v of violations) {
    if (v.part === part && v.offset === offset) found.push({ at: v.at, violation: v, text: `promise ${v.promise} found broken` });
  }
  return found.sort((a, b) => a.at - b.at);
}

// "00000005-00000000000000001000.log" is "5-1000.log".
function shortName(f) {
  const name = f.path.split("/").pop();
  return name.replace(/^0*([0-9a-f]+)-/, "$1-").replace(/-0*(\d+)\./, "-$1.");
}
