import { useEffect, useState } from "preact/hooks";
import { get } from "../api.ts";
import type { Activity, Node, Page as ListPage, TenantUsage } from "../api.ts";
import { attention } from "../health.ts";
import { hitRate, startTimes } from "../sums.ts";
import { count, mib, ms, percent } from "../format.ts";
import { cluster, happened, leases, nodes, pools, vms } from "../live.ts";
import { link } from "../route.ts";
import { me } from "../session.ts";
import { Ago, Bar, Empty, Page, Panel, Skeleton, Tag } from "../ui.tsx";
import { ActivityItems } from "./activity.tsx";
import { Dots, stateTag } from "./pools.tsx";
import { QuotaBars } from "../usage.tsx";

function useActivity() {
  const [launches, setLaunches] = useState<Activity[] | null>(null);
  const [recent, setRecent] = useState<Activity[] | null>(null);
  const tick = Math.floor(happened.value / 5);
  useEffect(() => {
    let gone = false;
    const ask = async () => {
      try {
        const [a, b] = await Promise.all([
          get<ListPage<Activity>>("/fleet/activity?limit=500&action=" + encodeURIComponent("POST /fleet/vms")),
          get<ListPage<Activity>>("/fleet/activity?limit=6"),
        ]);
        if (!gone) setLaunches(a.items), setRecent(b.items);
      } catch {
        // the line at the bottom of the menu says when nobody answers
      }
    };
    const soon = setTimeout(ask, launches ? 1000 : 0);
    return () => ((gone = true), clearTimeout(soon));
  }, [tick]);
  return { launches, recent };
}

const Tile = ({ title, value, note, href }: { title: string; value: string | null; note: string; href: string }) => (
  <a class="tile" href={href}>
    <h2>{title}</h2>
    {value === null ? <span class="skeleton"><i /></span> : <strong>{value}</strong>}
    <span class="dim">{value === null ? "\u00a0" : note}</span>
  </a>
);

export function hostTone(n: Node): "ok" | "warn" | "bad" | "quiet" {
  if (n.state === "lost" || n.state === "unreachable" || n.density?.host_pressure_level === "critical") return "bad";
  if (n.state !== "healthy" || n.density?.host_pressure_level === "warn") return "warn";
  return n.cordoned || n.draining ? "quiet" : "ok";
}

const hostWords = (n: Node) =>
  [n.state, n.draining ? "draining" : n.cordoned ? "cordoned" : "", n.density?.host_pressure_level && n.density.host_pressure_level !== "normal" ? `pressure ${n.density.host_pressure_level}` : ""].filter(Boolean).join(", ");

function Health() {
  const worries = attention.value;
  if (nodes.value === null) return <div class="health quiet"><Skeleton lines={1} /></div>;
  if (!worries.length) {
    const empty = me.value?.side === "operator" && nodes.value.length === 0;
    return <p class="health ok"><i class="mark" aria-hidden="true" /><strong>{empty ? "The control plane is well. No host has joined yet." : "All is well."}</strong></p>;
  }
  return (
    <div class={`health ${worries[0]!.tone}`}>
      <p><i class="mark" aria-hidden="true" /><strong>{count(worries.length, "thing needs", "things need")} a look</strong></p>
      <ul>
        {worries.slice(0, 6).map((w) => <li key={w.text} class={w.tone}><a href={w.href}>{w.text}</a></li>)}
        {worries.length > 6 && <li class="dim">and {worries.length - 6} more</li>}
      </ul>
    </div>
  );
}

export function Overview() {
  const { launches, recent } = useActivity();
  const operator = me.value?.side === "operator";
  const n = nodes.value, v = vms.value, p = pools.value;
  const hit = launches && hitRate(launches, Date.now());
  const start = p && v && startTimes(p, v);
  const running = v?.filter((m) => m.state === "running" && !m.warm_pool).length ?? 0;
  const warm = v?.filter((m) => m.warm_pool).length ?? 0;
  const starting = v?.filter((m) => (m.state === "placed" || m.state === "booting") && !m.warm_pool).length ?? 0;
  const healthy = n?.filter((h) => h.state === "healthy").length ?? 0;
  const live = leases.value?.filter((l) => l.state === "active" || l.state === "pending");
  return (
    <Page title="Overview" note={operator ? "The fleet at a glance" : `What ${me.value?.tenant ?? "you"} runs`}>
      <Health />
      <div class="tiles">
        {operator || n?.length ? (
          <Tile title="Hosts" value={n && `${healthy} of ${n.length}`} note={n?.length ? (healthy === n.length ? "all healthy" : `${n.length - healthy} not healthy`) : "none has joined"} href={link("hosts")} />
        ) : (
          <Tile title="Leases" value={live ? String(live.length) : null} note={live?.length ? "hosts of your own" : "no host of your own"} href={link("leases")} />
        )}
        <Tile title="Virtual machines" value={v && running.toLocaleString("en")} note={["running", warm ? `${warm.toLocaleString("en")} warm` : "", starting ? `${starting} starting` : ""].filter(Boolean).join(" · ")} href={link("vms")} />
        <Tile title="Warm starts" value={hit && (hit.all ? `${percent(hit.warm, hit.all)} %` : "—")} note={hit?.all ? `of ${count(hit.all, "launch", "launches")} in 24 h` : "no launch in 24 h"} href={link("pools")} />
        <Tile title="Start time" value={start && (start.warm !== null ? ms(start.warm) : "—")} note={start ? [start.warm !== null ? "warm" : "no warm start yet", start.cold !== null ? `${ms(start.cold)} cold` : ""].filter(Boolean).join(" · ") : ""} href={link("pools")} />
      </div>
      <div class="columns">
        {operator ? <HostPanel /> : <QuotaPanel />}
        {operator ? <Control /> : <LeasePanel />}
        <PoolPanel />
        <Panel title="Latest activity" actions={<a href={link("activity")}>All of it</a>}>
          {recent ? <ActivityItems items={recent} /> : <Skeleton lines={6} />}
        </Panel>
      </div>
    </Page>
  );
}

function HostPanel() {
  const n = nodes.value;
  if (!n) return <Panel title="Hosts"><Skeleton /></Panel>;
  if (!n.length) return <Panel title="Hosts"><Empty title="No host yet">Make a join token on the <a href={link("cluster")}>Cluster</a> page; it comes with the command to run on the host.</Empty></Panel>;
  const total = n.reduce((s, h) => s + h.memory_mib_total, 0);
  const free = n.reduce((s, h) => s + h.free_memory_mib, 0);
  const cpus = n.reduce((s, h) => s + h.vcpus_total * (h.cpu_overcommit || 1), 0);
  const cpusFree = n.reduce((s, h) => s + h.free_vcpus, 0);
  const levels = n.map((h) => h.density?.host_pressure_level).filter((l) => l !== null && l !== undefined);
  const pressed = levels.filter((l) => l !== "normal").length;
  return (
    <Panel title="Hosts" actions={<a href={link("hosts")}>All hosts</a>}>
      <ul class="host-grid" aria-label="Hosts by state">
        {n.map((h) => (
          <li key={h.name}><a class={hostTone(h)} href={link("hosts", h.name)} aria-label={`${h.name}: ${hostWords(h)}`} title={`${h.name}: ${hostWords(h)}`} /></li>
        ))}
      </ul>
      <div class="gauge"><span>Memory</span><Bar value={total - free} max={total} label="Memory given to VMs" /><span class="num">{mib(total - free)} of {mib(total)}</span></div>
      <div class="gauge"><span>vCPUs</span><Bar value={cpus - cpusFree} max={cpus} label="vCPUs given to VMs" /><span class="num">{cpus - cpusFree} of {cpus}</span></div>
      <div class="gauge"><span>Pressure</span><Bar value={pressed} max={n.length} label="Hosts under memory pressure" /><span class="num">{pressed ? `${count(pressed, "host")} above normal` : "none"}</span></div>
    </Panel>
  );
}

function Control() {
  const c = cluster.value;
  if (!c) return <Panel title="Control plane"><Skeleton /></Panel>;
  const healthy = c.replicas.filter((r) => r.healthy).length;
  const needed = Math.floor(c.replicas.filter((r) => r.role !== "nonvoter").length / 2) + 1;
  return (
    <Panel title="Control plane" actions={<a href={link("cluster")}>Cluster</a>}>
      <ul class="replicas">
        {c.replicas.map((r) => (
          <li key={r.name}>
            <Tag tone={!r.healthy ? "bad" : r.role === "leader" ? "info" : "ok"}>{r.name}</Tag>
            <span class={r.role === "leader" ? "" : "dim"}>{!r.healthy ? "does not answer" : r.role === "leader" ? "leads" : r.role === "voter" ? "follows" : "does not vote"}</span>
          </li>
        ))}
      </ul>
      <p class="dim">{c.leader ? `Term ${c.term}. ` : "No leader at the moment. "}{healthy - needed > 0 ? `It goes on if ${count(healthy - needed, "replica")} more ${healthy - needed === 1 ? "fails" : "fail"}.` : c.replicas.length === 1 ? "A single replica does not survive its machine." : "Losing one more replica would stop changes."}</p>
    </Panel>
  );
}

function PoolPanel() {
  const p = pools.value;
  return (
    <Panel title="Warm pools" actions={<a href={link("pools")}>All pools</a>}>
      {!p ? <Skeleton /> : p.length === 0 ? (
        <Empty title="No warm pool yet">A pool keeps VMs of one image booted, so that a launch takes one that already runs. <a href={link("pools")}>Create one</a>.</Empty>
      ) : (
        <ul class="pool-lines">
          {p.slice(0, 10).map((one) => (
            <li key={one.name}>
              <a href={link("pools")}>{one.name}</a>
              <Dots pool={one} />
              {stateTag(one)}
            </li>
          ))}
          {p.length > 10 && <li class="dim">and {p.length - 10} more</li>}
        </ul>
      )}
    </Panel>
  );
}

function QuotaPanel() {
  const [usage, setUsage] = useState<TenantUsage | null>(null);
  const tenant = me.value?.tenant;
  const tick = Math.floor(happened.value / 5);
  useEffect(() => {
    if (tenant) void get<TenantUsage>(`/fleet/tenants/${encodeURIComponent(tenant)}/usage`).then(setUsage, () => {});
  }, [tenant, tick]);
  return <Panel title="Quota">{usage ? <QuotaBars usage={usage} /> : <Skeleton />}</Panel>;
}

function LeasePanel() {
  const l = leases.value?.filter((one) => one.state !== "ended");
  return (
    <Panel title="Leases" actions={<a href={link("leases")}>All leases</a>}>
      {!l ? <Skeleton /> : l.length === 0 ? <Empty title="No lease">A lease makes whole hosts yours. <a href={link("leases")}>Lease a host</a>.</Empty> : (
        <ul class="pool-lines">
          {l.slice(0, 8).map((one) => (
            <li key={one.id}>
              <span>{one.nodes.join(", ") || "no host yet"}</span>
              <span class="dim">{one.ends_at ? <>ends <Ago at={one.ends_at} /></> : "no end"}</span>
              <Tag tone={one.state === "active" ? "ok" : one.state === "scrub_failed" ? "bad" : "info"}>{one.state}</Tag>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}
