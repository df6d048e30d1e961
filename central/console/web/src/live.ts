import { signal } from "@preact/signals";
import { all, get, Problem, request, seg, token } from "./api.ts";
import type { Capacity, Cluster, Event, Image, Lease, Node, Pool, Tenant, VM } from "./api.ts";
import { me } from "./session.ts";
import { Rows, type Versioned } from "./rows.ts";
import { parser } from "./sse.ts";

/**
 * The fleet as this page knows it: lists once, then the event stream. What no event tells (load, pressure, statistics
 * of pools, replicas) is asked for now and then while the page can be seen. Null is not yet known.
 */
export const vms = signal<VM[] | null>(null);
export const pools = signal<Pool[] | null>(null);
export const nodes = signal<Node[] | null>(null);
export const leases = signal<Lease[] | null>(null);
export const tenants = signal<Tenant[] | null>(null);
export const images = signal<Image[] | null>(null);
export const cluster = signal<Cluster | null>(null);
export const capacity = signal<Capacity | null>(null);

/** How the page is kept up to date: live by events, polling by lists, offline when nobody answers. */
export const link = signal<"connecting" | "live" | "polling" | "offline">("connecting");

/** Raised when something happened that the activity log tells of. */
export const happened = signal(0);

const tables = {
  vm: new Rows<VM>(vms, (v) => v.id),
  pool: new Rows<Pool>(pools, (p) => p.name),
  node: new Rows<Node>(nodes, (n) => n.name),
  lease: new Rows<Lease>(leases, (l) => l.id),
  tenant: new Rows<Tenant>(tenants, (t) => t.name),
};

/** The rows of a kind of event, whatever their type: an event's object is what its kind says. */
const table = (kind: string) => (tables as unknown as Record<string, Rows<Versioned> | undefined>)[kind];

/** A change that this page made itself shows at once. */
export function took(kind: keyof typeof tables, row: VM | Pool | Node | Lease | Tenant) {
  table(kind)!.put(row);
  table(kind)!.show();
}
export function lost(kind: keyof typeof tables, row: VM | Pool | Node | Lease | Tenant) {
  table(kind)!.drop(row);
  table(kind)!.show();
}

// ---- asking ----

/** Asks soon, at most once a period, and never twice at a time. */
class Refresh {
  private timer = 0;
  private busy = false;
  private wanted = false;
  private last = 0;
  constructor(
    private ask: () => Promise<void>,
    private everyMS: number,
  ) {}
  soon(delayMS = 40) {
    this.wanted = true;
    if (this.busy || this.timer) return;
    this.timer = window.setTimeout(() => this.run(), Math.max(delayMS, this.last + this.everyMS - Date.now()));
  }
  private async run() {
    this.timer = 0;
    this.busy = true;
    this.wanted = false;
    try {
      await this.ask();
    } catch {
      // the next one will tell; link says when nobody answers
    }
    this.last = Date.now();
    this.busy = false;
    if (this.wanted) this.soon();
  }
}

let generation = 0; // of the sign-in; what belongs to an earlier one is thrown away
const current = (of: number) => of === generation;

const dirtyPools = new Set<string>();
const refreshPools = new Refresh(async () => {
  const of = generation;
  const names = [...dirtyPools];
  dirtyPools.clear();
  if (names.length > 8) {
    const list = await all<Pool>("/fleet/pools");
    if (current(of)) tables.pool.fill(list.items);
    return;
  }
  await Promise.all(names.map(async (name) => {
    try {
      const pool = await get<Pool>(`/fleet/pools/${seg(name)}`);
      if (current(of)) tables.pool.put(pool);
    } catch (e) {
      if (current(of) && e instanceof Problem && e.status === 404) tables.pool.forget(name);
    }
  }));
  if (current(of)) tables.pool.show();
}, 700);
const refreshNodes = new Refresh(async () => {
  const of = generation;
  const list = await all<Node>("/fleet/nodes");
  if (current(of)) tables.node.fill(list.items);
}, 3000);
const refreshImages = new Refresh(async () => {
  const of = generation;
  const list = await all<Image>("/fleet/images");
  if (current(of)) images.value = list.items;
}, 1000);
const refreshCluster = new Refresh(async () => {
  const of = generation;
  if (me.peek()?.side !== "operator") return;
  const [c, sum] = await Promise.all([get<Cluster>("/fleet/cluster"), get<Capacity>("/fleet/capacity")]);
  if (current(of)) (cluster.value = c), (capacity.value = sum);
}, 1000);
export const reloadImages = () => refreshImages.soon();
export const reloadCluster = () => refreshCluster.soon();

/** Every list anew. Gives the index that events go on from. */
async function load(of: number, patienceMS?: number): Promise<string> {
  const opts = { patienceMS };
  const first = await all<VM>("/fleet/vms", opts);
  const [p, n, l, t, i] = await Promise.all([
    all<Pool>("/fleet/pools", opts), all<Node>("/fleet/nodes", opts), all<Lease>("/fleet/leases", opts),
    all<Tenant>("/fleet/tenants", opts), all<Image>("/fleet/images", opts),
  ]);
  if (!current(of)) return first.index;
  tables.vm.fill(first.items);
  tables.pool.fill(p.items);
  tables.node.fill(n.items);
  tables.lease.fill(l.items);
  tables.tenant.fill(t.items);
  images.value = i.items;
  happened.value++;
  refreshCluster.soon();
  return first.index;
}

// ---- events ----

let shown = 0; // timer until the next show
function showSoon() {
  if (shown) return;
  shown = window.setTimeout(() => {
    shown = 0;
    for (const table of Object.values(tables)) table.show();
    happened.value++;
  }, document.hidden ? 500 : 60);
}

function poolOf(v: VM) {
  return [v.warm_pool, v.claimed_from, v.pool];
}

function apply(kind: string, e: Event) {
  if (kind === "cluster") {
    refreshCluster.soon();
    return;
  }
  const rows = table(kind);
  if (!rows) return;
  if (kind === "pool") {
    // its counts come from its VMs and are asked for; the row itself may be shown without them being right
    const name = (e.object as Pool).name;
    if (e.action === "deleted") rows.drop(e.object as Versioned);
    else {
      dirtyPools.add(name);
      refreshPools.soon();
    }
  } else if (e.action === "deleted") rows.drop(e.object as Versioned);
  else rows.put(e.object as Versioned);
  if (kind === "vm") {
    for (const name of poolOf(e.object as VM)) if (name) dirtyPools.add(name);
    if (dirtyPools.size) refreshPools.soon();
    refreshNodes.soon(1000);
  }
  if (kind === "node" || kind === "lease") refreshNodes.soon(200);
  showSoon();
}

const silence = 15_000; // the server says something every 4 s
const opening = 5_000;

/** Reads the stream until it ends, and says why: gone means that everything must be listed anew. */
async function stream(of: number, from: string, alive: (id: string) => void, abort: AbortController): Promise<"ended" | "gone"> {
  let last = Date.now() - silence + opening;
  const watch = window.setInterval(() => Date.now() - last > silence && abort.abort(), 1000);
  try {
    const resp = await fetch("/fleet/events", {
      headers: { Authorization: `Bearer ${token.peek()}`, "Last-Event-ID": from, Accept: "text/event-stream" },
      cache: "no-store",
      credentials: "omit",
      signal: abort.signal,
    });
    if (resp.status === 410) return "gone";
    if (resp.status === 401) await request("GET", "/fleet/tenants?limit=1"); // signs out, in its words
    if (!resp.ok || !resp.body) return "ended";
    alive("");
    const feed = parser((m) => {
      try {
        if (current(of)) apply(m.event, JSON.parse(m.data));
      } catch {
        // an event that is not understood costs only time: the next list has it
      }
      alive(m.id);
    });
    const reader = resp.body.getReader();
    const text = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return "ended";
      last = Date.now();
      if (!current(of)) return "ended";
      feed(text.decode(value, { stream: true }));
    }
  } catch {
    return "ended";
  } finally {
    clearInterval(watch);
  }
}

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));

async function follow(of: number) {
  let cursor = "";
  let failures = 0;
  while (current(of)) {
    if (!cursor) {
      try {
        const index = await load(of, 1000);
        cursor = `${index}.2147483647`; // after everything of that index
      } catch (e) {
        if (!current(of)) return;
        link.value = e instanceof Problem && e.status !== 0 && vms.peek() ? "polling" : "offline";
        await pause(Math.min(500 * 2 ** failures++, 4000));
        continue;
      }
    }
    const began = Date.now();
    let opened = false;
    const abort = new AbortController();
    const stop = () => abort.abort();
    addEventListener("fluxvm:stop", stop, { once: true });
    const how = await stream(of, cursor, (id) => {
      opened = true;
      if (id) cursor = id;
      if (current(of)) link.value = "live";
    }, abort);
    removeEventListener("fluxvm:stop", stop);
    if (!current(of)) return;
    while (document.hidden && current(of)) await pause(300); // connections are few; a hidden page needs none
    if (how === "gone") {
      cursor = "";
      await pause(200);
      continue;
    }
    failures = opened && Date.now() - began > opening ? 1 : failures + 1; // one that opens and ends at once is no stream
    if (failures > 2) {
      // No stream: go by lists, and try the stream again each time.
      try {
        await load(of, 1000);
        if (current(of)) link.value = "polling";
      } catch (e) {
        if (current(of) && e instanceof Problem && e.status === 0) link.value = "offline";
      }
    } else if (failures > 1 && link.peek() === "live") link.value = "connecting";
    await pause(failures > 2 ? 3000 : 200 * failures);
  }
}

let timers: number[] = [];

/** Begins to follow the fleet, for whoever has just signed in. */
export function start() {
  stop();
  const of = generation;
  void follow(of);
  const visible = (f: () => void) => () => document.hidden || f();
  timers = [
    window.setInterval(visible(() => refreshNodes.soon()), 10_000),
    window.setInterval(visible(() => refreshCluster.soon()), 5_000),
    window.setInterval(visible(() => {
      for (const p of pools.peek() ?? []) dirtyPools.add(p.name);
      if (dirtyPools.size) refreshPools.soon();
    }), 15_000),
  ];
}

export function stop() {
  generation++;
  dispatchEvent(new CustomEvent("fluxvm:stop"));
  for (const t of timers) clearInterval(t);
  timers = [];
  for (const table of Object.values(tables)) table.clear();
  images.value = cluster.value = capacity.value = null;
  link.value = "connecting";
}

// A hidden page gives its connection back: a browser has six for one host, and each open console would hold one.
let hiding = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = window.setTimeout(() => dispatchEvent(new CustomEvent("fluxvm:stop")), 30_000);
});
