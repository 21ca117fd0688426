// Canvas helpers: crisp pixels, the page's colours, patterns that tell states apart without colour.

const css = {};
const patterns = new Map();
const dpr = () => window.devicePixelRatio || 1;

// Reads the theme's colours; custom properties resolve only through a real property.
function readColours() {
  const probe = document.createElement("i");
  document.body.append(probe);
  for (const name of ["bg", "panel", "ink", "dim", "line", "grid", "focus", "cursor", "disk", "server", "host", "torn", "lost", "hole", "onbyte",
    "byteink", "starting", "serving", "stalled", "paused", "dead", "stateink", "lease", "produce", "read", "other", "op", "note", "fault", "faultbg",
    "bad", "broken", "brokenbg", "held", "found"]) {
    probe.style.color = `var(--${name})`;
    css[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  patterns.clear();
}

// Sizes a canvas to its box and the screen's pixels, clears it, and gives its context in CSS pixels.
function fitCanvas(canvas, height) {
  const w = canvas.clientWidth, h = height ?? canvas.clientHeight, k = dpr();
  if (height !== undefined) canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(w * k) || canvas.height !== Math.round(h * k)) {
    canvas.width = Math.round(w * k);
    canvas.height = Math.round(h * k);
  }
  const g = canvas.getContext("2d");
  g.setTransform(k, 0, 0, k, 0, 0);
  g.clearRect(0, 0, w, h);
  g.font = FONT;
  g.textBaseline = "middle";
  return { g, w, h };
}

const SHAPES = {
  plain: () => {},
  // Slanted lines: only in a host's page cache, stalled.
  hatch: (p, s) => { for (const o of [-s, 0, s]) { p.moveTo(o, s); p.lineTo(o + s, 0); } },
  // The other way: starting.
  back: (p, s) => { for (const o of [-s, 0, s]) { p.moveTo(o, 0); p.lineTo(o + s, s); } },
  // Crossed: torn.
  cross: (p, s) => { SHAPES.hatch(p, s); SHAPES.back(p, s); },
  // Upright: paused.
  upright: (p, s) => { p.moveTo(s / 2, 0); p.lineTo(s / 2, s); },
  // Dots: in the server's memory.
  dots: (p, s) => { p.moveTo(s / 2 - 0.7, s / 2); p.lineTo(s / 2 + 0.7, s / 2); },
  // Small crosses: lost, dead.
  exes: (p, s) => { const a = s * 0.3, b = s * 0.7; p.moveTo(a, a); p.lineTo(b, b); p.moveTo(a, b); p.lineTo(b, a); },
};

// A fill of one colour with a pattern of another over it.
function fill(shape, back, fore, size = 6, weight = 1) {
  const key = [shape, back, fore, size, weight, dpr()].join();
  if (!patterns.has(key)) {
    const k = dpr(), c = document.createElement("canvas");
    c.width = c.height = Math.round(size * k);
    const p = c.getContext("2d");
    p.scale(c.width / size, c.width / size);
    if (back) { p.fillStyle = back; p.fillRect(0, 0, size, size); }
    p.strokeStyle = fore; p.lineWidth = weight; p.beginPath(); SHAPES[shape](p, size); p.stroke();
    const made = p.createPattern(c, "repeat");
    made.setTransform(new DOMMatrix().scale(size / c.width));
    patterns.set(key, made);
  }
  return patterns.get(key);
}

const BYTES = {
  D: { name: "on disk", paint: () => css.disk },
  S: { name: "only in the server's memory", paint: () => fill("dots", css.server, css.byteink, 5, 1.3) },
  H: { name: "only in a host's page cache", paint: () => fill("hatch", css.host, css.byteink, 7, 0.8) },
  T: { name: "torn", paint: () => fill("cross", css.torn, css.byteink, 6, 1) },
  L: { name: "lost", paint: () => fill("exes", null, css.lost, 7, 1.1), outline: true },
  Z: { name: "never written", paint: () => css.hole },
};
const STATES = {
  starting: () => fill("back", css.starting, css.panel, 7, 1.2),
  serving: () => css.serving,
  stalled: () => fill("hatch", css.stalled, css.stateink, 7, 0.8),
  paused: () => fill("upright", css.paused, css.stateink, 5, 0.7),
  dead: () => fill("exes", null, css.dead, 7, 1),
};

function line(g, x1, y1, x2, y2, colour, width = 1, dash = []) {
  g.strokeStyle = colour; g.lineWidth = width; g.setLineDash(dash);
  const o = width % 2 ? 0.5 : 0;
  g.beginPath();
  if (x1 === x2) { const x = Math.round(x1) + o; g.moveTo(x, y1); g.lineTo(x, y2); }
  else { const y = Math.round(y1) + o; g.moveTo(x1, y); g.lineTo(x2, y); }
  g.stroke(); g.setLineDash([]);
}

function glyph(g, shape, x, y, r, colour) {
  g.beginPath();
  if (shape === "up") { g.moveTo(x, y - r); g.lineTo(x + r, y + r * 0.8); g.lineTo(x - r, y + r * 0.8); g.closePath(); }
  if (shape === "down") { g.moveTo(x, y + r); g.lineTo(x + r, y - r * 0.8); g.lineTo(x - r, y - r * 0.8); g.closePath(); }
  if (shape === "disc" || shape === "ring") g.arc(x, y, r * 0.85, 0, 7);
  if (shape === "diamond") { g.moveTo(x, y - r); g.lineTo(x + r, y); g.lineTo(x, y + r); g.lineTo(x - r, y); g.closePath(); }
  if (shape === "ex") { g.moveTo(x - r, y - r); g.lineTo(x + r, y + r); g.moveTo(x - r, y + r); g.lineTo(x + r, y - r); }
  if (shape === "ex" || shape === "ring") { g.strokeStyle = colour; g.lineWidth = 1.6; g.stroke(); }
  else { g.fillStyle = colour; g.fill(); }
}

// Text cut to fit; nothing if less than three letters would fit.
function label(g, text, x, y, room, colour, align = "left") {
  if (room < 5) return;
  let t = text;
  if (g.measureText(t).width > room) {
    while (t.length > 2 && g.measureText(t + "…").width > room) t = t.slice(0, -Math.max(1, Math.floor(t.length / 12)));
    if (t.length < 3) return;
    t += "…";
  }
  g.fillStyle = colour; g.textAlign = align;
  g.fillText(t, x, y + 0.5);
}
