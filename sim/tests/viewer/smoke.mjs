// smoke.mjs SHOTS PAGE…: each page, in each size and theme, must show its life.

import assert from "node:assert/strict";
import { basename, resolve } from "node:path";
import { Browser } from "./browser.mjs";

const SIZES = [[1280, 800], [1920, 1080]];

// How many pixels of each lane's part of the canvas are neither ground nor grid.
const INK = `(() => {
  const c = document.getElementById("lines"), g = c.getContext("2d"), k = devicePixelRatio;
  const probe = document.body.appendChild(document.createElement("i"));
  const plain = ["bg", "grid", "line", "focus", "broken"].map(name => {
    probe.style.color = "var(--" + name + ")";
    return getComputedStyle(probe).color.match(/[0-9]+/g).slice(0, 3).map(Number);
  });
  probe.remove();
  const isPlain = (r, gr, b) => plain.some(p => Math.abs(p[0] - r) + Math.abs(p[1] - gr) + Math.abs(p[2] - b) < 40);
  return [...document.querySelectorAll(".lane")].map(b => {
    const { data } = g.getImageData(0, b.offsetTop * k, c.width, b.offsetHeight * k);
    let n = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 90 && !isPlain(data[i], data[i + 1], data[i + 2])) n++;
    return n;
  });
})()`;

async function drawn(page, life) {
  const ink = await page.value(INK);
  assert.equal(ink.length, life.lanes.length, "a lane for each");
  const used = life.lanes.map((_, i) => life.items.filter(it => it.l === i).length >= 5);
  ink.forEach((n, i) => used[i] && assert.ok(n > 100, `lane ${life.lanes[i].name} was drawn: ${n} pixels`));
  const summary = await page.value("document.getElementById('lines').getAttribute('aria-label')");
  assert.match(summary, /^Time line from .* lanes?, .* faults?/, "the canvas says what it shows");
  assert.match(await page.value("document.getElementById('strips').getAttribute('aria-label')"), /^Files of /);
}

const cursor = page => page.value("+document.getElementById('app').dataset.cursor");

async function keysMove(page, life) {
  await page.key("Home");
  assert.equal(await cursor(page), 0);
  let last = 0;
  for (let i = 0; i < 12; i++) {
    await page.key("ArrowRight");
    const now = await cursor(page);
    assert.ok(now >= last, "time goes on");
    last = now;
  }
  assert.ok(last > 0, "steps move the cursor");
  await page.key("ArrowLeft");
  assert.ok(await cursor(page) <= last, "and back");
  const faults = life.items.filter(it => it.k === "fault").map(it => it.f).sort((a, b) => a - b);
  if (faults.length) {
    await page.key("Home");
    await page.key("f");
    assert.equal(await cursor(page), faults[0], "f goes to the first fault");
  }
  await page.key("0");
  await page.key("+");
  const [from, to] = await page.value("[+document.getElementById('app').dataset.from, +document.getElementById('app').dataset.to]");
  assert.ok(to - from < life.meta.duration * 0.51, "+ zooms in");
  await page.key("0");
  await page.key("ArrowDown");
  assert.equal(await page.value("document.querySelectorAll('.lane[aria-pressed=true]').length"), 1, "a lane can be chosen");
  await page.key("Escape");
}

async function offsetIsFound(page, life) {
  const it = life.items.find(it => it.k === "produce" && it.o === "ok" && it.b >= 0);
  if (!it) return;
  await page.key("/");
  await page.type(`${life.partitions[it.p].name}@${it.b}`);
  await page.key("Enter");
  const found = await page.value("document.getElementById('found').innerText");
  assert.match(found, /acknowledged at/, "the search shows the acknowledgement");
  assert.match(found, /bytes \d+–\d+ of/, "and where the bytes lie");
  const first = await cursor(page);
  await page.key("n");
  assert.ok(await cursor(page) >= first, "n goes to the next trace");
  await page.key("/");
  await page.value("document.getElementById('query').value = ''");
  await page.type("nonsense");
  await page.key("Enter");
  assert.match(await page.value("document.getElementById('found').innerText"), /An offset is a number/);
  await page.key("Escape");
}

async function brokenPromiseIsShown(page, life) {
  const text = await page.value("document.getElementById('promises').innerText");
  if (!life.violations.length) return assert.match(text, /Every promise held/);
  const v = life.violations[0];
  assert.ok(text.includes(v.promise) && text.includes(v.title), "the promise stands in the panel");
  assert.ok(text.includes(v.text.trim().split("\n")[0]), "with its text");
  assert.equal(await page.value("document.querySelectorAll('.promise .led').length"), v.events.length, "and the events that led to it");
  await page.key("Home");
  await page.key("v");
  assert.equal(await cursor(page), v.at, "v goes there");
  if (v.events.length) {
    await page.key("c");
    assert.notEqual(await page.value("document.getElementById('said').textContent"), "", "an event that led there is told");
  }
}

async function focusGoesInOrder(page) {
  await page.value("document.activeElement.blur(), scrollTo(0, 0)");
  const order = [];
  for (let i = 0; i < 9; i++) {
    await page.key("Tab");
    order.push(await page.value("document.activeElement.id || document.activeElement.dataset.act || document.activeElement.className"));
  }
  assert.deepEqual(order.slice(0, 5), ["skip", "query", "theme", "help", "prev"]);
}

async function check(browser, file, shots) {
  const name = basename(file, ".html");
  for (const [width, height] of SIZES) {
    for (const dark of [false, true]) {
      await browser.open(`file://${resolve(file)}`, { width, height, dark });
      const life = await browser.value("JSON.parse(document.getElementById('life').textContent)");
      await browser.settle();
      await browser.screenshot(`${shots}/${name}-${width}-${dark ? "dark" : "light"}.png`);
      await drawn(browser, life);
      if (width !== 1280 || dark) continue;
      await focusGoesInOrder(browser);
      await keysMove(browser, life);
      await offsetIsFound(browser, life);
      await brokenPromiseIsShown(browser, life);
      assert.ok(await browser.value("document.documentElement.scrollWidth <= innerWidth"), "nothing runs out of the page");
    }
  }
  const away = browser.requests.filter(url => !url.startsWith("file:") && !url.startsWith("data:"));
  assert.deepEqual(away, [], "the page asks nothing of the network");
  assert.deepEqual(browser.errors, [], "no error in the page");
  console.log(`viewer: ${name} is shown`);
}

const [shots, ...pages] = process.argv.slice(2);
const browser = await Browser.start(process.env.CHROMIUM || "chromium");
try {
  for (const page of pages) await check(browser, page, shots);
} finally {
  await browser.close();
}
