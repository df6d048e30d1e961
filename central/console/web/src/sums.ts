import type { Activity, Cluster, Image, Lease, Node, Pool, VM } from "./api.gen.ts";
import { count, link, reasons, span } from "./format.ts";

export type Worry = { tone: "bad" | "warn"; text: string; href: string };

/** What someone should look at, the worst first. An empty list is a fleet that is well. */
export function worries(c: Cluster | null, n: Node[], p: Pool[], l: Lease[], v: VM[], now: number): Worry[] {
  const out: Worry[] = [];
  const add = (tone: Worry["tone"], text: string, ...at: string[]) => out.push({ tone, text, href: link(...at) });
  if (c && !c.leader) add("bad", "The cluster has no leader", "cluster");
  for (const r of c?.replicas ?? []) if (!r.healthy) add("bad", `Replica ${r.name} does not answer`, "cluster");
  for (const h of n) {
    if (h.state === "lost" || h.state === "unreachable") add("bad", `Host ${h.name} is ${h.state}`, "hosts", h.name);
    else if (h.state === "suspect") add("warn", `Host ${h.name} has not been heard of lately`, "hosts", h.name);
    if (h.density?.host_pressure_level === "critical") add("bad", `Host ${h.name} is under critical memory pressure`, "hosts", h.name);
    else if (h.density?.host_pressure_level === "warn") add("warn", `Host ${h.name} is under memory pressure`, "hosts", h.name);
  }
  for (const x of l) if (x.state === "scrub_failed") add("bad", `The scrub after ${x.tenant}'s lease of ${x.nodes.join(", ")} failed`, "leases");
  for (const x of p) if (x.status?.roll?.state === "paused") add("warn", `Warm pool ${x.name} does not go on to ${x.status.roll.image}: ${poolTrouble(x, now)}`, "pools");
    else if (x.status?.state === "backing_off") add("warn", `Warm pool ${x.name} cannot fill: ${poolTrouble(x, now)}`, "pools");
  const bad = v.filter((m) => m.state === "failed" || m.state === "lost" || m.state === "unknown");
  if (bad.length === 1) add("warn", `VM ${bad[0]!.name} is ${bad[0]!.state}`, "vms", bad[0]!.id);
  else if (bad.length) out.push({ tone: "warn", text: `${count(bad.length, "VM")} failed, lost or unknown`, href: link("vms") + "?state=trouble" });
  return out.sort((a, b) => (a.tone === b.tone ? 0 : a.tone === "bad" ? -1 : 1));
}

/** Why a pool waits, in words. */
export function poolTrouble(p: Pool, now: number): string {
  const s = p.status;
  const why = s.wait_reason ? waitReason[s.wait_reason] ?? s.wait_reason : "";
  const hosts = reasons(s.reasons);
  const left = s.backoff_until ? Date.parse(s.backoff_until) - now : 0;
  return [s.last_error || why || "it waits", s.last_error ? "" : hosts, left > 500 ? `next try in ${span(left)}` : ""].filter(Boolean).join("; ");
}

export const waitReason: Record<string, string> = {
  no_capacity: "no host has room for another VM",
  quota: "the tenant's quota is used up",
  pressure: "the hosts it may use are under memory pressure",
  image: "its image cannot be used",
  boot_failed: "the last VM did not boot",
  max_total: "the pool's limit is reached until VMs taken from it are deleted",
  macos_limit: "the Macs it may use run two macOS guests each, as many as Apple's licence allows",
};

/** Images that a pool may go on to: of its guest, and with an agent where it waits for one. */
export const rollsTo = (p: Pool, list: Image[]) => list.filter((i) => i.name !== p.image && i.guest_os === p.guest_os && (p.readiness !== "agent" || i.has_agent));

/** How many warm VMs a pool replaces when it goes on to an image. */
export const replaced = (p: Pool, image: string) => p.warm.filter((w) => w.image !== image && w.state !== "failed").length;

/** What will happen when a pool goes on to an image, so many VMs at a time. */
export function rollPlan(p: Pool, image: string, atOnce: number): string {
  const old = replaced(p, image);
  const left = p.min_ready - atOnce;
  const taken = p.status.claimed_running;
  return [
    old === 0 ? `It has no warm VM to replace: its next ones boot from ${image}.`
      : left > 0 ? `${count(old, "warm VM")} will be deleted and booted anew from ${image}, ${atOnce} at a time; ${left} of ${p.min_ready} stay ready.`
      : `${old === 1 ? "Its warm VM" : `All ${old} warm VMs`} will be deleted at once and booted anew from ${image}; until then launches boot the usual way.`,
    `VMs that were taken from it keep running as they are${taken ? ` (${taken} now)` : ""}.`,
    old > 0 ? "After two failed boots in a row it pauses and keeps the rest." : "",
  ].filter(Boolean).join(" ");
}

const day = 86_400_000;

/** How many of the last day's launches were taken from a pool, by the activity log. */
export function hitRate(items: Activity[], now: number): { warm: number; all: number } {
  const launches = items.filter((a) => a.action === "POST /fleet/vms" && a.outcome === "ok" && a.at !== null && now - Date.parse(a.at) < day);
  return { warm: launches.filter((a) => typeof a.detail.pool === "string").length, all: launches.length };
}

/** The average start of warm launches, and the middle one of VMs that were booted. */
export function startTimes(p: Pool[], v: VM[]): { warm: number | null; cold: number | null } {
  let sum = 0;
  let n = 0;
  for (const { status: s } of p) if (s?.claimed_24h && s.avg_claim_ms) (sum += s.claimed_24h * s.avg_claim_ms), (n += s.claimed_24h);
  const boots = v.filter((m) => m.cold_reason && m.ready_at && m.created_at).map((m) => Date.parse(m.ready_at!) - Date.parse(m.created_at!)).sort((a, b) => a - b);
  return { warm: n ? sum / n : null, cold: boots.length ? boots[Math.floor(boots.length / 2)]! : null };
}
