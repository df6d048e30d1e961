import { useMemo, useState } from "preact/hooks";
import { get, post, seg } from "../api.ts";
import type { Node, VM } from "../api.ts";
import { count, mib, showLabels } from "../format.ts";
import { leases, nodes, took, vms } from "../live.ts";
import { link } from "../route.ts";
import { me } from "../session.ts";
import { DataTable, type Column } from "../table.tsx";
import { Ago, ask, Bar, Button, Empty, Facts, FormDialog, Page, Panel, say, Skeleton, Tag, Text } from "../ui.tsx";
import { hostTone } from "./overview.tsx";
import { vmColumns } from "./vms.tsx";

const operates = () => me.value?.side === "operator" && me.value.writes;

/** VMs on a host that a drain still has to see off. */
export function vmsByHost(list: VM[] | null): Map<string, VM[]> {
  const out = new Map<string, VM[]>();
  for (const v of list ?? []) if (v.node && v.state !== "gone") out.set(v.node, [...(out.get(v.node) ?? []), v]);
  return out;
}

export const HostTags = ({ node: n }: { node: Node }) => (
  <>
    <Tag tone={n.state === "healthy" ? "ok" : n.state === "suspect" ? "warn" : "bad"}>{n.state[0]!.toUpperCase() + n.state.slice(1)}</Tag>
    {n.draining ? <Tag tone="info" title={n.reason}>Draining</Tag> : n.cordoned && <Tag tone="quiet" title={n.reason}>Cordoned</Tag>}
    {n.apple && <Tag>Mac</Tag>}
  </>
);

export function Pressure({ node: n }: { node: Node }) {
  const level = n.density?.host_pressure_level;
  if (!level) return <span class="dim" title="This host reports no level">—</span>;
  return <Tag tone={level === "normal" ? "ok" : level === "warn" ? "warn" : "bad"}>{level[0]!.toUpperCase() + level.slice(1)}</Tag>;
}

const memoryUsed = (n: Node) => n.memory_mib_total - n.free_memory_mib;

const Memory = ({ node: n }: { node: Node }) => (
  <div class="gauge slim">
    <Bar value={memoryUsed(n)} max={n.memory_mib_total} label={`Memory of ${n.name} given to VMs`} />
    <span class="num">{mib(memoryUsed(n))} of {mib(n.memory_mib_total)}</span>
  </div>
);

// How many VMs a host had when its drain was first seen, so that progress has a beginning.
const drainedFrom = new Map<string, number>();

export function DrainProgress({ node: n, left }: { node: Node; left: number }) {
  if (!n.draining) {
    drainedFrom.delete(n.name);
    return null;
  }
  const from = Math.max(drainedFrom.get(n.name) ?? 0, left);
  drainedFrom.set(n.name, from);
  return (
    <div class="gauge slim">
      <Bar value={from - left} max={from || 1} tone="info" label={`Drain of ${n.name}`} />
      <span class="num">{left === 0 ? "drained" : `${count(left, "VM")} left`}</span>
    </div>
  );
}

function Steering({ node: n, left, choose }: { node: Node; left: number; choose: (n: Node) => void }) {
  if (!operates()) return null;
  const open = async () => {
    took("node", await post<Node>(`/fleet/nodes/${seg(n.name)}/uncordon`));
    say(`${n.name} takes VMs again`);
  };
  return (
    <>
      {n.cordoned || n.draining ? <Button act={open} aria-label={`Uncordon ${n.name}`}>{n.draining ? "Stop drain" : "Uncordon"}</Button> : <Button act={() => choose(n)} aria-label={`Cordon ${n.name}`}>Cordon</Button>}
      {!n.draining && <Button act={() => drain(n, left)} aria-label={`Drain ${n.name}`}>Drain</Button>}
    </>
  );
}

function drain(n: Node, left: number) {
  ask({
    title: `Drain ${n.name}?`,
    body: <p>It takes no new VM. Warm VMs on it are deleted and made anew elsewhere, and so are VMs marked ephemeral; the others stay until their owners delete them. {left ? `${count(left, "VM")} ${left === 1 ? "is" : "are"} on it now.` : "No VM is on it now."}</p>,
    action: "Drain",
    act: async () => {
      took("node", await post<Node>(`/fleet/nodes/${seg(n.name)}/drain`));
      say(`${n.name} is draining`);
    },
  });
}

function Cordon({ node: n, close }: { node: Node; close: () => void }) {
  const [reason, setReason] = useState("");
  const send = async () => {
    took("node", await post<Node>(`/fleet/nodes/${seg(n.name)}/cordon`, reason.trim() ? { reason: reason.trim() } : {}));
    say(`${n.name} is cordoned`);
  };
  return (
    <FormDialog title={`Cordon ${n.name}`} action="Cordon" send={send} close={close}>
      {(error) => <>
        <p class="dim">It keeps its VMs and takes no new one until you uncordon it.</p>
        <Text label="Why" field="reason" error={error} value={reason} set={setReason} placeholder="disk replacement" hint="Shown to everyone who sees the host" autoFocus />
      </>}
    </FormDialog>
  );
}

export function Hosts() {
  const [cordoning, setCordoning] = useState<Node | null>(null);
  const list = nodes.value;
  const byHost = useMemo(() => vmsByHost(vms.value), [vms.value]);
  const left = (n: Node) => byHost.get(n.name)?.length ?? 0;
  const operator = me.value?.side === "operator";
  const counts = [...byHost].map(([host, on]) => host + on.length).join(); // the columns are others when these are
  const columns = useMemo((): Column<Node>[] => {
    const tenant = new Map((leases.value ?? []).map((l) => [l.id, l.tenant]));
    return [
    { head: "Host", by: (n) => n.name, cell: (n) => <a class="name" href={link("hosts", n.name)}>{n.name}</a> },
    { head: "State", by: (n) => ({ bad: "0", warn: "1", quiet: "2", ok: "3" })[hostTone(n)] + n.state, cell: (n) => <HostTags node={n} /> },
    { head: "Pressure", by: (n) => n.density?.host_pressure_level ?? "~", cell: (n) => <Pressure node={n} /> },
    { head: "Memory", by: (n) => memoryUsed(n) / (n.memory_mib_total || 1), cell: (n) => <Memory node={n} /> },
    { head: "VMs", num: true, by: left, cell: (n) => (n.draining ? <DrainProgress node={n} left={left(n)} /> : left(n)) },
    { head: "Lease", by: (n) => (n.lease ? tenant.get(n.lease) ?? n.lease : "~"), cell: (n) => (n.lease ? <a href={link("leases")}>{tenant.get(n.lease) ?? "leased"}</a> : <span class="dim">free</span>) },
    { head: "Heard", num: true, by: (n) => n.last_seen_at ?? "", cell: (n) => <Ago at={n.last_seen_at} />, extra: true },
    ...(operates() ? [{ head: "", cell: (n: Node) => <div class="row-actions"><Steering node={n} left={left(n)} choose={setCordoning} /></div> }] : []),
  ];
  }, [counts, leases.value, me.value]);
  const healthy = list?.filter((n) => n.state === "healthy").length ?? 0;
  return (
    <Page title="Hosts" note={list ? (list.length ? `${healthy} of ${list.length} healthy` : " ") : " "}>
      {!list ? <Skeleton lines={6} /> : (
        <DataTable label="Hosts" rows={list} columns={columns} id={(n) => n.name} empty={
          <Empty title={operator ? "No host yet" : "No host of your own"}>{operator ? <>Make a join token on the <a href={link("cluster")}>Cluster</a> page; it comes with the command to run on the host.</> : <>You see the hosts that you lease. <a href={link("leases")}>Lease one</a>, or launch VMs on shared hosts.</>}</Empty>} />
      )}
      {cordoning && <Cordon node={cordoning} close={() => setCordoning(null)} />}
    </Page>
  );
}

export function Host({ name }: { name: string }) {
  const [cordoning, setCordoning] = useState<Node | null>(null);
  const n = nodes.value?.find((one) => one.name === name);
  const on = useMemo(() => (vms.value ?? []).filter((v) => v.node === name && v.state !== "gone"), [vms.value, name]);
  const columns = useMemo(() => vmColumns(me.value?.side === "operator").filter((c) => c.head !== "Host"), []);
  const back = { href: link("hosts"), text: "Hosts" };
  if (!n) return <Page title={nodes.value ? "Not here" : "\u00a0"} back={back}>{nodes.value ? <Empty title={`There is no node ${name}`}>It was removed, or it is none of those you see.</Empty> : <Skeleton lines={6} />}</Page>;
  const lease = leases.value?.find((l) => l.id === n.lease);
  const d = n.density;
  const scrub = lease && (lease.state === "scrub_failed" || lease.state === "scrubbing");
  return (
    <Page title={n.name} back={back} note={<HostTags node={n} />} actions={operates() && <>
      <Steering node={n} left={on.length} choose={setCordoning} />
      {scrub && <Button act={() => scrubAgain(n)}>Scrub again</Button>}
    </>}>
      {n.reason && <div class="trouble"><p><strong>Cordoned:</strong> {n.reason}</p></div>}
      {n.draining && <Panel title="Drain"><DrainProgress node={n} left={on.length} /></Panel>}
      <div class="columns">
        <Panel title="Room">
          <div class="gauge"><span>Memory</span><Bar value={memoryUsed(n)} max={n.memory_mib_total} label="Memory given to VMs" /><span class="num">{mib(memoryUsed(n))} of {mib(n.memory_mib_total)}</span></div>
          <div class="gauge"><span>vCPUs</span><Bar value={n.vcpus_total * n.cpu_overcommit - n.free_vcpus} max={n.vcpus_total * n.cpu_overcommit} label="vCPUs given to VMs" /><span class="num">{n.vcpus_total * n.cpu_overcommit - n.free_vcpus} of {n.vcpus_total * n.cpu_overcommit}</span></div>
          {n.apple && <div class="gauge"><span>macOS</span><Bar value={2 - n.free_macos_guests} max={2} tone="info" label="macOS guests" /><span class="num">{2 - n.free_macos_guests} of 2</span></div>}
          <Facts of={[["Pressure", <Pressure node={n} />], ["Available now", d?.host_mem_available_mib ? mib(d.host_mem_available_mib) : ""], ["Warm slots ready", d?.warm_slots_ready], ["Sandboxes", d && (d.active_sandboxes || d.paused_sandboxes || d.hibernated_sandboxes) ? `${d.active_sandboxes} active, ${d.paused_sandboxes} paused, ${d.hibernated_sandboxes} hibernated` : ""]]} />
        </Panel>
        <Panel title="About">
          <Facts of={[["Lease", lease ? <a href={link("leases")}>{lease.tenant}, {lease.state}</a> : "free"], ["Heard", <Ago at={n.last_seen_at} />], ["Processors", `${n.vcpus_total} × ${n.cpu_overcommit} overcommit`], ["Backends", n.backends?.join(", ")], ["Labels", showLabels(n.labels ?? {})], ["Address", <code>{n.url}</code>], ["Machine", <code>{n.uuid}</code>]]} />
        </Panel>
      </div>
      <h2 class="above">VMs on it</h2>
      <DataTable label={`VMs on ${n.name}`} rows={on} columns={columns} id={(v) => v.id} empty={<Empty title="No VM is on it" />} />
      {cordoning && <Cordon node={cordoning} close={() => setCordoning(null)} />}
    </Page>
  );
}

async function scrubAgain(n: Node) {
  await post<Node>(`/fleet/nodes/${seg(n.name)}/scrub`);
  took("node", await get<Node>(`/fleet/nodes/${seg(n.name)}`));
  say(`${n.name} is scrubbed again`);
}
