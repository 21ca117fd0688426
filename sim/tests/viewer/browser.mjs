// A headless Chromium, spoken to through a pipe (--remote-debugging-pipe): no port, no network, no package.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export class Browser {
  #child; #home; #next = 1; #waiting = new Map(); #rest = ""; #session; errors = []; requests = [];

  static async start(binary) {
    const b = new Browser();
    b.#home = mkdtempSync(join(tmpdir(), "viewer-"));
    b.#child = spawn(binary, ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
      "--disable-background-networking", "--disable-dev-shm-usage", `--user-data-dir=${b.#home}`, "about:blank"],
    { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    b.#child.on("exit", code => { for (const w of b.#waiting.values()) w.reject(new Error(`the browser ended (${code})`)); });
    b.#child.stdio[4].on("data", d => b.#take(d.toString()));
    const { targetInfos } = await b.#send("Target.getTargets");
    const page = targetInfos.find(t => t.type === "page");
    b.#session = (await b.#send("Target.attachToTarget", { targetId: page.targetId, flatten: true })).sessionId;
    for (const domain of ["Page", "Runtime", "Network"]) await b.call(`${domain}.enable`);
    return b;
  }

  #take(text) {
    const parts = (this.#rest + text).split("\0");
    this.#rest = parts.pop();
    for (const part of parts) this.#message(JSON.parse(part));
  }

  #message(m) {
    if (m.method === "Runtime.exceptionThrown") this.errors.push(m.params.exceptionDetails.exception?.description || m.params.exceptionDetails.text);
    if (m.method === "Network.requestWillBeSent") this.requests.push(m.params.request.url);
    const waiting = this.#waiting.get(m.id);
    if (!waiting) return;
    this.#waiting.delete(m.id);
    m.error ? waiting.reject(new Error(m.error.message)) : waiting.resolve(m.result);
  }

  #send(method, params = {}, sessionId) {
    const id = this.#next++;
    this.#child.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + "\0");
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`${method}: no answer in 30 s`)), 30_000);
      this.#waiting.set(id, { resolve: r => { clearTimeout(late); resolve(r); }, reject: e => { clearTimeout(late); reject(e); } });
    });
  }

  call(method, params) { return this.#send(method, params, this.#session); }

  async open(url, { width, height, dark }) {
    await this.call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
    await this.call("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
    await this.call("Page.navigate", { url });
    await this.until("document.querySelector('#app')?.dataset.ready === '1'");
  }

  // The value of an expression in the page.
  async value(expression) {
    const r = await this.call("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (r.exceptionDetails) throw new Error(`${expression}: ${r.exceptionDetails.exception?.description}`);
    return r.result.value;
  }

  async until(expression) {
    for (let i = 0; i < 100; i++) {
      if (await this.value(expression)) return;
      await new Promise(r => setTimeout(r, 50));
    }
    throw new Error(`it never came true: ${expression}; ${this.errors.join("; ")}`);
  }

  // Lets the page draw what is queued.
  settle() { return this.value("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))"); }

  async key(key, shift = false) {
    const text = key.length === 1 ? key : key === "Enter" ? "\r" : undefined;
    const event = { key, text, modifiers: shift ? 8 : 0, ...(key === "Enter" ? { code: "Enter", windowsVirtualKeyCode: 13 } : {}), ...(key === "Tab" ? { code: "Tab", windowsVirtualKeyCode: 9 } : {}) };
    await this.call("Input.dispatchKeyEvent", { type: "keyDown", ...event });
    await this.call("Input.dispatchKeyEvent", { type: "keyUp", ...event });
    await this.settle();
  }

  async type(text) { for (const c of text) await this.key(c); }

  async mouse(type, x, y, more = {}) { await this.call("Input.dispatchMouseEvent", { type, x, y, ...more }); await this.settle(); }

  async screenshot(file) {
    const { data } = await this.call("Page.captureScreenshot", { format: "png" });
    writeFileSync(file, Buffer.from(data, "base64"));
  }

  async close() {
    const gone = new Promise(r => this.#child.once("exit", r));
    await this.#send("Browser.close").catch(() => this.#child.kill());
    await gone;
    rmSync(this.#home, { recursive: true, force: true, maxRetries: 5 });
  }
}
