// Measures how fluent the page is with 1,000 VMs on 200 hosts, of which some change all the time. The fleet is made up
// here: no host of this machine could run it, and what is measured is the page. Prints what it saw; fails only where
// the page itself, and not a busy machine, would be to blame.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { pause, startBrowser } from "./fleet.mjs";

const [vmCount, hostCount, eventsPerSecond] = [1000, 200, 50];
const dist = new URL("../../dist/", import.meta.url);
const policy = /const Policy = ([^]*?)\n\n/.exec(readFileSync(new URL("../../console.go", import.meta.url), "utf8"))[1].match(/"([^"]*)"/g).map((s) => s.slice(1, -1)).join("");

let version = 10_000;
const at = (secondsAgo) => new Date(Date.now() - secondsAgo * 1000).toISOString();
const nodes = Array.from({ length: hostCount }, (_, i) => ({
  name: `studio-${String(i + 1).padStart(3, "0")}`, uuid: `${i}`, url: "http://10.0.0.1:7788", state: i % 67 === 66 ? "suspect" : "healthy", cordoned: i % 40 === 0, draining: false, lease: null, backends: ["vz"], capabilities: { rename: true },
  vcpus_total: 16, memory_mib_total: 65536, cpu_overcommit: 8, vm_count: 5, free_vcpus: 100, free_memory_mib: 65536 - (i % 60) * 1024, free_macos_guests: 1, labels: { zone: `z${i % 4}` },
  density: { host_pressure_level: i % 50 === 7 ? "warn" : "normal", host_mem_available_mib: 20000, warm_slots_ready: 2, active_sandboxes: 0, paused_sandboxes: 0, hibernated_sandboxes: 0 }, apple: { macos_guests: 1, macos_limit: 2 }, last_seen_at: at(i % 10), version: i + 1,
}));
const states = ["running", "running", "running", "booting", "stopped", "failed"];
const vms = Array.from({ length: vmCount }, (_, i) => ({
  id: `01a2282b-500b-7f0d-b252-${String(i).padStart(12, "0")}`, name: i % 3 ? `build-${i}` : `warm-pool-${i % 40}-${i}`, tenant: i % 4 ? `tenant-${i % 20}` : null, node: nodes[i % hostCount].name, backend: "vz", image: `image-${i % 12}`, guest_os: "macos", vcpus: 4, memory_mib: 8192, disk_size_gib: 60,
  state: states[i % 7] ?? "running", labels: {}, created_at: at(i * 30), ready_at: at(i * 30 - 20), expires_at: i % 2 ? at(-i * 60) : null, claimed_at: null, ephemeral: false, reschedulable: false, version: i + 1, ...(i % 3 ? { cold_reason: "no_pool" } : { warm_pool: `pool-${i % 40}`, warm_state: i % 2 ? "ready" : "booting" }),
}));
const pools = Array.from({ length: 40 }, (_, i) => ({
  name: `pool-${i}`, owner: "operator", tenant: null, image: `image-${i % 12}`, guest_os: "macos", size: { vcpus: 4, memory_mib: 8192 }, min_ready: 8, max_total: 32, node_selector: {}, nodes: [], readiness: "agent", created_at: at(9999), version: i + 1,
  status: { state: i % 9 ? "ready" : "backing_off", ready: 6, booting: 1, stale: 0, claimed_running: 4, claimed_24h: 120, avg_claim_ms: 800, last_claim_at: at(20), last_fill_at: at(9), last_error: i % 9 ? null : "no room", backoff_until: i % 9 ? null : at(-30), wait_reason: i % 9 ? null : "no_capacity", reasons: {} }, warm: [],
}));
const activity = Array.from({ length: 500 }, (_, i) => ({ id: String(i), at: at(i * 60), actor: "operator", action: "POST /fleet/vms", target: `build-${i}`, outcome: "ok", detail: i % 5 ? { pool: "pool-1" } : {} }));
const fixed = {
  "/fleet/tenants": Array.from({ length: 20 }, (_, i) => ({ name: `tenant-${i}`, quota: {}, default_ttl_seconds: null, max_ttl_seconds: null, created_at: at(1), version: 1 })),
  "/fleet/vms": vms, "/fleet/nodes": nodes, "/fleet/pools": pools, "/fleet/leases": [], "/fleet/images": [], "/fleet/activity": activity,
};
const cluster = { id: "load", epoch: 1, leader: "central-1", term: 1, index: 1, replicas: [{ name: "central-1", cluster_addr: "", url: "", role: "leader", healthy: true, applied_index: 1, last_contact_ms: 0, version: "" }] };

let sent = 0;
const server = createServer((req, resp) => {
  const { pathname, searchParams } = new URL(req.url, "http://x");
  const json = (body, status = 200) => resp.writeHead(status, { "Content-Type": "application/json", "X-Fluxvm-Index": "1" }).end(JSON.stringify(body));
  if (pathname.startsWith("/console/")) {
    const name = pathname.slice(9) || "index.html";
    const type = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" }[name.split(".").pop()];
    return resp.writeHead(200, { "Content-Type": type, "Content-Security-Policy": policy }).end(readFileSync(new URL(name, dist)));
  }
  if (pathname === "/fleet/events") {
    resp.writeHead(200, { "Content-Type": "text/event-stream" }).write(": open\n\n");
    const timer = setInterval(() => {
      for (let i = 0; i < eventsPerSecond / 10; i++) {
        const v = vms[Math.floor(Math.random() * vms.length)];
        v.version = ++version;
        v.state = states[version % states.length];
        resp.write(`id: ${version}.0\nevent: vm\ndata: ${JSON.stringify({ action: "changed", object: v })}\n\n`);
        sent++;
      }
    }, 100);
    return req.on("close", () => clearInterval(timer));
  }
  if (req.method === "POST") return json({ detail: "image is required", code: "invalid" }, 400);
  if (pathname === "/fleet/cluster") return json(cluster);
  if (pathname === "/fleet/capacity") return json({});
  if (pathname.startsWith("/fleet/pools/")) return json(pools.find((p) => p.name === pathname.slice(13)));
  const rows = fixed[pathname];
  if (!rows) return json({ detail: "none", code: "not_found" }, 404);
  const from = Number(searchParams.get("cursor") ?? 0), limit = Number(searchParams.get("limit") ?? 100);
  json({ items: rows.slice(from, from + limit), next_cursor: from + limit < rows.length ? String(from + limit) : null });
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const url = `http://127.0.0.1:${server.address().port}`;

const browser = await startBrowser();
try {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  const errors = [];
  page.on("pageerror", (e) => errors.push(String(e)));
  await page.goto(url + "/console/");
  await page.getByLabel("Token").fill("any");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.getByText("Live", { exact: true }).waitFor();
  const cdp = await page.context().newCDPSession(page);
  await cdp.send("Performance.enable", { timeDomain: "threadTicks" }); // processor time: other load on the machine does not count
  const spent = async () => Object.fromEntries((await cdp.send("Performance.getMetrics")).metrics.map((m) => [m.name, m.value]));

  // Frames, and how much of the time the page was at work, while events arrive.
  const watch = async (what, ms, during = async () => {}) => {
    const before = await spent();
    const frames = page.evaluate((ms) => new Promise((done) => {
      const out = [];
      const end = performance.now() + ms;
      let last = performance.now();
      const step = (t) => (out.push(t - last), (last = t), performance.now() < end ? requestAnimationFrame(step) : done(out.slice(1)));
      requestAnimationFrame(step);
    }), ms);
    await during();
    const sorted = (await frames).sort((a, b) => a - b);
    await cdp.send("HeapProfiler.collectGarbage"); // nodes of an earlier page do not count
    const after = await spent();
    const q = (p) => sorted[Math.floor((sorted.length - 1) * p)].toFixed(0);
    const share = (k) => (((after[k] - before[k]) / (ms / 1000)) * 1000).toFixed(0);
    console.log(`${what.padEnd(34)} frames ms p50 ${q(0.5)} p95 ${q(0.95)} max ${q(1)}   the page's processor time a second: script ${share("ScriptDuration")} ms, layout ${share("LayoutDuration")} ms, all ${share("TaskDuration")} ms   ${after.Nodes} DOM nodes`);
    assert.ok(after.Nodes < 20_000, `${what}: ${after.Nodes} DOM nodes; a list is not shown in pages`);
  };
  // From an input to the frame that shows what came of it.
  const react = async (what, act) => {
    const took = [];
    const cost = [];
    for (let i = 0; i < 8; i++) {
      const before = await spent();
      took.push(await page.evaluate(async ([source, i]) => {
        const began = performance.now();
        new Function("i", source)(i);
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        return performance.now() - began;
      }, [act, i]));
      cost.push(((await spent()).TaskDuration - before.TaskDuration) * 1000);
      await pause(150);
    }
    for (const list of [took, cost]) list.sort((a, b) => a - b);
    console.log(`${what.padEnd(34)} to the next frame ms p50 ${took[4].toFixed(0)} max ${took[7].toFixed(0)}   processor time ms p50 ${cost[4].toFixed(0)} max ${cost[7].toFixed(0)}`);
  };
  const go = async (hash, ready) => {
    const began = Date.now();
    await page.evaluate((h) => void (location.hash = h), hash);
    await page.locator(ready).first().waitFor();
    console.log(`${("opening " + hash).padEnd(34)} ${Date.now() - began} ms`);
  };
  await watch("overview, 50 events a second", 4000);
  await go("#/vms", "tbody tr");
  await watch("VMs, 50 events a second", 4000);
  await watch("VMs, scrolling", 3000, async () => { for (let i = 0; i < 12; i++) await page.mouse.wheel(0, i % 8 < 4 ? 400 : -400), await pause(200); });
  await react("VMs, a letter in the filter", `const f = document.querySelector("input[type=search]"); f.value = "build-1".slice(0, i); f.dispatchEvent(new Event("input", { bubbles: true }))`);
  await react("VMs, sorting", `document.querySelectorAll("th button")[i % 5].click()`);
  await react("VMs, the next page", `document.querySelector("[aria-label='" + (i % 2 ? "Previous" : "Next") + " page']").click()`);
  await go("#/hosts", "tbody tr");
  await watch("hosts, 50 events a second", 4000);
  await react("hosts, sorting", `document.querySelectorAll("th button")[i % 5].click()`);
  await go("#/pools", ".card");
  await watch("40 pools, 50 events a second", 4000);
  assert.deepEqual(errors, []);
  console.log(`${vmCount} VMs, ${hostCount} hosts, 40 pools; ${sent} events were sent`);
} finally {
  await browser.close();
  server.closeAllConnections();
  server.close();
}
