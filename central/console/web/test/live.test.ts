import assert from "node:assert/strict";
import { test } from "node:test";
import { Rows, type Versioned } from "../src/rows.ts";
import { type Message, parser } from "../src/sse.ts";
import { hitRate, rollPlan, rollsTo, startTimes, worries } from "../src/sums.ts";

type Row = Versioned & { id: string };

function rows() {
  const out: { value: Row[] | null } = { value: null };
  const r = new Rows<Row>(out, (row) => row.id);
  return { out, r, shown: () => (r.show(), out.value?.map((row) => `${row.id}${row.version}`)) };
}

test("an older version never replaces a newer one", () => {
  const { r, shown } = rows();
  r.fill([{ id: "a", version: 3 }]);
  r.put({ id: "a", version: 2 });
  assert.deepEqual(shown(), ["a3"]);
  r.put({ id: "a", version: 4 });
  r.fill([{ id: "a", version: 3 }, { id: "b", version: 1 }]);
  assert.deepEqual(shown(), ["a4", "b1"]);
});

test("a list that was read before a deletion does not bring the row back", () => {
  const { r, shown } = rows();
  r.fill([{ id: "a", version: 3 }]);
  r.drop({ id: "a", version: 5 });
  r.fill([{ id: "a", version: 3 }]);
  assert.deepEqual(shown(), []);
  r.put({ id: "a", version: 9 });
  assert.deepEqual(shown(), ["a9"]);
});

test("a row that says the same stays the same object", () => {
  const { r, out } = rows();
  r.fill([{ id: "a", version: 3 }, { id: "b", version: 1 }]);
  const [a, b] = out.value!;
  r.fill([{ id: "a", version: 3 }, { id: "b", version: 2 }]);
  assert.equal(out.value![0], a);
  assert.notEqual(out.value![1], b);
});

test("an empty list is known to be empty, and clearing forgets even that", () => {
  const { r, out } = rows();
  assert.equal(out.value, null);
  r.fill([]);
  assert.deepEqual(out.value, []);
  r.clear();
  assert.equal(out.value, null);
});

test("the stream reads the same in pieces of any size", () => {
  const text = ': open\n\nid: 7.0\nevent: vm\ndata: {"a":\ndata: 1}\n\n: still here\n\nid: 8.1\r\nevent:pool\r\ndata: x\r\n\r\ndata: half';
  const want: Message[] = [{ id: "7.0", event: "vm", data: '{"a":\n1}' }, { id: "8.1", event: "pool", data: "x" }];
  for (let size = 1; size <= text.length; size++) {
    const got: Message[] = [];
    const feed = parser((m) => got.push(m));
    for (let at = 0; at < text.length; at += size) feed(text.slice(at, at + size));
    assert.deepEqual(got, want, `in pieces of ${size}`);
  }
});

// The rows here hold what the functions read; TypeScript's checks of whole rows are the pages'.
const some = (of: object[]) => of as never;

test("the hit rate counts the last day's launches that went well", () => {
  const at = (hours: number) => new Date(Date.UTC(2026, 0, 2) - hours * 3_600_000).toISOString();
  const launch = { action: "POST /fleet/vms", outcome: "ok" };
  assert.deepEqual(hitRate(some([
    { ...launch, at: at(1), detail: { pool: "ci" } }, { ...launch, at: at(2), detail: {} }, { ...launch, at: at(25), detail: { pool: "ci" } },
    { ...launch, at: at(1), outcome: "failed", detail: {} }, { action: "DELETE /fleet/vms/{id}", outcome: "ok", at: at(1), detail: { pool: "ci" } },
  ]), Date.UTC(2026, 0, 2)), { warm: 1, all: 2 });
});

test("start times weigh pools by their launches and take the middle cold boot", () => {
  const boot = (s: number) => ({ cold_reason: "no_pool", created_at: "2026-01-01T00:00:00.000Z", ready_at: new Date(Date.UTC(2026, 0, 1) + s * 1000).toISOString() });
  assert.deepEqual(startTimes(some([{ status: { claimed_24h: 3, avg_claim_ms: 100 } }, { status: { claimed_24h: 1, avg_claim_ms: 500 } }, { status: {} }]), some([boot(60), boot(40), boot(50), { cold_reason: "no_pool" }])), { warm: 200, cold: 50_000 });
  assert.deepEqual(startTimes([], []), { warm: null, cold: null });
});

test("a fleet that is well has no worries, and the worst comes first", () => {
  const replica = { name: "central-1", healthy: true };
  const well = { leader: "central-1", replicas: [replica] } as never;
  assert.deepEqual(worries(well, some([{ name: "a", state: "healthy" }, { name: "b", state: "healthy", cordoned: true, density: { host_pressure_level: "normal" } }]), some([{ name: "p", status: { state: "filling" } }]), [], some([{ state: "running" }]), 0), []);
  const found = worries({ leader: "", replicas: [replica, { name: "central-2", healthy: false }] } as never, some([{ name: "a", state: "suspect" }, { name: "b", state: "healthy", density: { host_pressure_level: "critical" } }]),
    some([{ name: "p", status: { state: "backing_off", last_error: "no room", backoff_until: "1970-01-01T00:00:20.000Z" } }]), some([{ state: "scrub_failed", tenant: "acme", nodes: ["c"] }]), some([{ state: "failed", name: "x", id: "1" }, { state: "lost" }]), 10_000);
  assert.deepEqual(found.map((w) => w.tone), ["bad", "bad", "bad", "bad", "warn", "warn", "warn"]);
  assert.deepEqual(found.map((w) => w.text), ["The cluster has no leader", "Replica central-2 does not answer", "Host b is under critical memory pressure", "The scrub after acme's lease of c failed",
    "Host a has not been heard of lately", "Warm pool p cannot fill: no room; next try in 10 s", "2 VMs failed, lost or unknown"]);
});

test("a pool may go on to images of its guest, with the agent that it waits for", () => {
  const list = some([{ name: "a", guest_os: "linux", has_agent: true }, { name: "b", guest_os: "linux", has_agent: true }, { name: "bare", guest_os: "linux", has_agent: false }, { name: "mac", guest_os: "macos", has_agent: true }]);
  const to = (p: object) => rollsTo(p as never, list).map((i: { name: string }) => i.name);
  assert.deepEqual(to({ image: "a", guest_os: "linux", readiness: "agent" }), ["b"]);
  assert.deepEqual(to({ image: "a", guest_os: "linux", readiness: "running" }), ["b", "bare"]);
  assert.deepEqual(to({ image: "mac", guest_os: "macos", readiness: "agent" }), []);
});

test("what a roll will do is said before it is done", () => {
  const pool = (warm: object[], taken = 0) => ({ image: "a", min_ready: 3, warm, status: { claimed_running: taken } }) as never;
  const a = { image: "a", state: "ready" };
  assert.equal(rollPlan(pool([a, a, a], 2), "b", 1), "3 warm VMs will be deleted and booted anew from b, 1 at a time; 2 of 3 stay ready. VMs that were taken from it keep running as they are (2 now). After two failed boots in a row it pauses and keeps the rest.");
  assert.match(rollPlan(pool([a, { ...a, state: "booting" }, { image: "b", state: "ready" }, { ...a, state: "failed" }]), "b", 2), /^2 warm VMs will .* 2 at a time; 1 of 3 stay ready\. VMs that were taken from it keep running as they are\. /);
  assert.match(rollPlan(pool([a, a, a]), "b", 3), /^All 3 warm VMs will be deleted at once .* launches boot the usual way\./);
  assert.match(rollPlan(pool([]), "b", 1), /^It has no warm VM to replace: its next ones boot from b\. .* as they are\.$/);
});

test("a roll that paused is something to look at", () => {
  const found = worries({ leader: "central-1", replicas: [] } as never, [], some([{ name: "p", status: { state: "backing_off", roll: { image: "b", from: "a", state: "paused" }, last_error: "no boot" } }]), [], [], 0);
  assert.deepEqual(found.map((w: { text: string }) => w.text), ["Warm pool p does not go on to b: no boot"]);
});
