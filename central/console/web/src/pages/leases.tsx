import { useEffect, useState } from "preact/hooks";
import { get, patch, post, request, seg } from "../api.ts";
import type { Lease, Policy, Tenant, TenantUsage } from "../api.ts";
import { count, duration, labels, span } from "../format.ts";
import { happened, leases, nodes, tenants, took } from "../live.ts";
import { link } from "../route.ts";
import { me } from "../session.ts";
import { DataTable, type Column } from "../table.tsx";
import { Ago, ask, Button, Check, Empty, FormDialog, Icon, mistyped, now, Page, say, Select, Skeleton, Tag, Text, type Tone } from "../ui.tsx";
import { SettingsFields, settingsForm, settingsOf } from "../settings.tsx";
import { QuotaBars, QuotaFields, quotaOf, UsageByDay, type QuotaForm } from "../usage.tsx";

const tones: Record<string, Tone> = { pending: "info", active: "ok", ending: "warn", scrubbing: "info", scrub_failed: "bad", ended: "quiet" };
const stateWords: Record<string, string> = { scrub_failed: "Scrub failed" };

const canLease = () => Boolean(me.value?.writes);

/** How a lease's hosts are being cleaned. */
function Scrubs({ lease: l }: { lease: Lease }) {
  const known = l.scrubs ?? [];
  if (!known.length) return <span class="dim">{l.state === "ended" ? "done" : "at its end"}</span>;
  return <>{known.map((s) => <Tag key={s.node} tone={s.state === "done" ? "ok" : s.state === "failed" ? "bad" : "info"} title={s.reason}>{s.node}: {s.state}</Tag>)}</>;
}

function end(l: Lease) {
  const early = l.earliest_end && Date.parse(l.earliest_end) > now.peek();
  ask({
    title: `End the lease of ${l.nodes.join(", ") || "these hosts"}?`,
    body: <p>{l.tenant}'s VMs there are deleted and each host is scrubbed before anyone else may use it.{early ? ` The minimum term runs until ${new Date(l.earliest_end!).toLocaleString()}: the lease ends then, and is billed until then.` : ""}</p>,
    action: "End lease",
    danger: true,
    act: async () => {
      await request("DELETE", `/fleet/leases/${seg(l.id)}`);
      took("lease", await get<Lease>(`/fleet/leases/${seg(l.id)}`));
      say("The lease is ending");
    },
  });
}

async function scrubAgain(l: Lease) {
  for (const s of l.scrubs ?? []) if (s.state === "failed") await post(`/fleet/nodes/${seg(s.node)}/scrub`);
  took("lease", await get<Lease>(`/fleet/leases/${seg(l.id)}`));
  say("Scrubbing again");
}

export function Leases() {
  const [dialog, setDialog] = useState<"" | "lease" | "tenant">("");
  const [all, setAll] = useState(false);
  const operator = me.value?.side === "operator";
  const list = leases.value;
  const open = list?.filter((l) => all || l.state !== "ended") ?? [];
  const ended = list?.filter((l) => l.state === "ended").length ?? 0;
  const columns: Column<Lease>[] = [
    { head: "Hosts", by: (l) => l.nodes.join(), cell: (l) => (l.nodes.length ? l.nodes.map((n, i) => <>{i > 0 && ", "}<a key={n} href={link("hosts", n)}>{n}</a></>) : <span class="dim">none yet</span>) },
    ...(operator ? [{ head: "Tenant", by: (l: Lease) => l.tenant, cell: (l: Lease) => <a href={link("tenants", l.tenant)}>{l.tenant}</a> }] : []),
    { head: "State", by: (l) => l.state, cell: (l) => <Tag tone={tones[l.state] ?? "quiet"} title={l.reason}>{stateWords[l.state] ?? l.state[0]!.toUpperCase() + l.state.slice(1)}</Tag> },
    { head: "Term", by: (l) => l.ends_at ?? "~", cell: (l) => <Term lease={l} /> },
    { head: "Minimum", by: (l) => l.earliest_end ?? "", cell: (l) => (l.earliest_end && Date.parse(l.earliest_end) > now.value ? <Ago at={l.earliest_end} /> : <span class="dim">{l.earliest_end ? "reached" : "none"}</span>) },
    { head: "Scrub", cell: (l) => <Scrubs lease={l} /> },
    { head: "", cell: (l) => canLease() && <div class="row-actions">
      {operator && l.state === "scrub_failed" && <Button act={() => scrubAgain(l)}>Scrub again</Button>}
      {(l.state === "active" || l.state === "pending") && <Button act={async () => took("lease", await patch<Lease>(`/fleet/leases/${seg(l.id)}`, { auto_renew: !l.auto_renew }))} aria-pressed={l.auto_renew}>{l.auto_renew ? "Renews itself" : "Renew"}</Button>}
      {(l.state === "active" || l.state === "pending") && <Button kind="quiet" act={() => end(l)} aria-label={`End the lease of ${l.nodes.join(", ")}`}>End</Button>}
    </div> },
  ];
  return (
    <Page title="Leases and tenants" note={operator ? "Who holds which hosts, and what each tenant may use" : "Hosts of your own, and what you may use"} actions={<>
      {operator && <Button disabled={!canLease()} act={() => setDialog("tenant")}><Icon name="plus" />Add tenant</Button>}
      <Button kind="main" disabled={!canLease()} act={() => setDialog("lease")}><Icon name="plus" />Lease hosts</Button>
    </>}>
      <h2 class="above">Leases{ended > 0 && <Check label={`Show ${count(ended, "ended one")}`} value={all} set={setAll} />}</h2>
      {!list ? <Skeleton lines={3} /> : <DataTable label="Leases" rows={open} columns={columns} id={(l) => l.id} size={25} empty={<Empty title="No lease">A lease gives whole hosts to one tenant until it ends; macOS guests of tenants need one.</Empty>} />}
      {open.some((l) => l.blocked_by?.length || l.reason) && (
        <ul class="notes">{open.filter((l) => l.blocked_by?.length || l.reason).map((l) => <li key={l.id}><strong>{l.tenant}</strong>: {l.reason || l.state}{l.blocked_by?.length ? `, waiting for ${count(l.blocked_by.length, "VM")} of others` : ""}</li>)}</ul>
      )}
      <h2 class="above">{operator ? "Tenants" : "Quota"}</h2>
      {!tenants.value ? <Skeleton lines={3} /> : tenants.value.length === 0 ? <Empty title="No tenant yet">A tenant has a quota, keys of its own, and sees nothing of the others.</Empty> : (
        <div class="cards">{[...tenants.value].sort((a, b) => (a.name < b.name ? -1 : 1)).map((t) => <TenantCard key={t.name} tenant={t} />)}</div>
      )}
      <UsageByDay />
      {dialog === "lease" && <NewLease close={() => setDialog("")} />}
      {dialog === "tenant" && <NewTenant close={() => setDialog("")} />}
    </Page>
  );
}

function Term({ lease: l }: { lease: Lease }) {
  const from = Date.parse(l.starts_at ?? ""), to = Date.parse(l.ends_at ?? "");
  if (!l.ends_at) return <span class="dim">until it is ended</span>;
  return <>{from && to ? <span title={`${new Date(from).toLocaleString()} to ${new Date(to).toLocaleString()}`}>{span(to - from)}, </span> : ""}ends <Ago at={l.ends_at} /></>;
}

function TenantCard({ tenant: t }: { tenant: Tenant }) {
  const [usage, setUsage] = useState<TenantUsage | null>(null);
  const tick = Math.floor(happened.value / 4);
  useEffect(() => {
    let gone = false;
    void get<TenantUsage>(`/fleet/tenants/${seg(t.name)}/usage`).then((u) => gone || setUsage(u), () => {});
    return () => void (gone = true);
  }, [t.name, t.version, tick]);
  return (
    <article class="card" aria-label={`Tenant ${t.name}`}>
      <header><h3><a href={link("tenants", t.name)}>{t.name}</a></h3></header>
      {usage ? <QuotaBars usage={usage} /> : <Skeleton lines={4} />}
      <footer><a href={link("tenants", t.name)}>Keys, quota, settings and usage</a></footer>
    </article>
  );
}

function NewLease({ close }: { close: () => void }) {
  const operator = me.value?.side === "operator";
  const [policy, setPolicy] = useState<Policy | null>(null);
  useEffect(() => {
    if (operator) void get<Policy>("/fleet/policy").then(setPolicy, () => {});
  }, []);
  const [f, setF] = useState({ tenant: tenants.value?.[0]?.name ?? "", node: "", selector: "", count: "1", duration: "7d", renew: false, drain: false });
  const set = <K extends keyof typeof f>(k: K) => (v: (typeof f)[K]) => setF((old) => ({ ...old, [k]: v }));
  const send = async () => {
    const selector = labels(f.selector);
    if (!selector) throw mistyped("node_selector", "write labels as key=value, separated by commas");
    if (duration(f.duration) === null) throw mistyped("duration", "write the term as 2h, 7d or 1d12h");
    const made = await post<Lease>("/fleet/leases", {
      ...(operator ? { tenant: f.tenant } : {}),
      ...(f.node.trim() ? { node: f.node.trim() } : { node_selector: selector, count: Number(f.count) || 1 }),
      duration: f.duration.trim(), auto_renew: f.renew, drain: f.drain,
    });
    took("lease", made);
    say(made.state === "active" ? `${made.nodes.join(", ")} ${made.nodes.length === 1 ? "is" : "are"} leased to ${made.tenant}` : `The lease for ${made.tenant} waits`, made.reason);
  };
  return (
    <FormDialog title="Lease hosts" action="Lease" send={send} close={close}>
      {(error) => (
        <>
          <p class="dim">Leased hosts serve one tenant alone. On hosts that can run macOS a lease lasts {policy ? `${policy.min_lease_hours} h` : "24 h"} at least, as Apple's licence asks.</p>
          {operator && <Select label="Tenant" field="tenant" error={error} value={f.tenant} set={set("tenant")} options={(tenants.value ?? []).map((t) => ({ value: t.name, text: t.name }))} hint={tenants.value?.length ? undefined : "Add a tenant first"} />}
          {operator ? (
            <Select label="Host" field="node" error={error} value={f.node} set={set("node")} options={[{ value: "", text: "Any that is free" }, ...(nodes.value ?? []).filter((n) => !n.lease).map((n) => ({ value: n.name, text: n.name + (n.apple ? " (Mac)" : "") }))]} />
          ) : (
            <Text label="Host" field="node" error={error} value={f.node} set={set("node")} placeholder="studio-1" hint="Any that is free when left out" />
          )}
          {!f.node && (
            <div class="two">
              <Text label="How many" field="count" error={error} value={f.count} set={set("count")} inputMode="numeric" />
              <Text label="Host labels" field="node_selector" error={error} value={f.selector} set={set("selector")} placeholder="zone=lab" />
            </div>
          )}
          <Text label="Term" field="duration" error={error} value={f.duration} set={set("duration")} placeholder="7d" />
          <Check label="Renew it by itself" value={f.renew} set={set("renew")} />
          <Check label="Wait until others' VMs are off" value={f.drain} set={set("drain")} hint="Otherwise it is refused while others run VMs there." />
        </>
      )}
    </FormDialog>
  );
}

function NewTenant({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const [quota, setQuota] = useState<QuotaForm>({});
  const [settings, setSettings] = useState(() => settingsForm());
  const send = async () => {
    const made = await post<Tenant>("/fleet/tenants", { name: name.trim(), quota: quotaOf(quota), ...settingsOf(settings) });
    took("tenant", made);
    say(`Added tenant ${made.name}`, "Next it needs a key.", { href: link("tenants", made.name) });
  };
  return (
    <FormDialog title="Add a tenant" action="Add tenant" send={send} close={close}>
      {(error) => <>
        <Text label="Name" field="name" error={error} value={name} set={setName} placeholder="acme" hint="1 to 40 of a–z, 0–9 and -" autoFocus />
        <QuotaFields form={quota} set={setQuota} error={error} />
        <details>
          <summary>Time limits and policy</summary>
          <SettingsFields form={settings} set={setSettings} error={error} />
        </details>
      </>}
    </FormDialog>
  );
}
