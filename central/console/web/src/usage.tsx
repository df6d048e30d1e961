import { useEffect, useState } from "preact/hooks";
import { get, Problem } from "./api.ts";
import type { Quota, TenantUsage, Usage } from "./api.ts";
import { memory, mib, money, span } from "./format.ts";
import { happened } from "./live.ts";
import { me } from "./session.ts";
import { DataTable } from "./table.tsx";
import { Bar, mistyped, Panel, Skeleton, Text } from "./ui.tsx";

const kinds: { key: keyof Quota; held: keyof TenantUsage["used"]; text: string; show: (n: number) => string }[] = [
  { key: "max_vms", held: "vms", text: "VMs", show: String },
  { key: "max_vcpus", held: "vcpus", text: "vCPUs", show: String },
  { key: "max_memory_mib", held: "memory_mib", text: "Memory", show: mib },
  { key: "max_macos_guests", held: "macos_guests", text: "macOS guests", show: String },
  { key: "max_leases", held: "leases", text: "Leases", show: String },
  { key: "max_pools", held: "pools", text: "Pools", show: String },
];

export const QuotaBars = ({ usage: u }: { usage: TenantUsage }) => (
  <div>
    {kinds.map(({ key, held, text, show }) => {
      const max = u.quota[key], used = u.used[held] ?? 0;
      return (
        <div class="gauge" key={key}>
          <span>{text}</span>
          {max === null || max === undefined ? <div class="bar none" aria-hidden="true" /> : <Bar value={used} max={max} tone={used >= max && max > 0 ? "warn" : "plain"} label={`${text} of ${u.tenant}`} />}
          <span class="num">{max === null || max === undefined ? <>{show(used)}<span class="dim">, no limit</span></> : `${show(used)} of ${show(max)}`}</span>
        </div>
      );
    })}
  </div>
);

export type QuotaForm = Partial<Record<keyof Quota, string>>;

/** The form that shows a quota. */
export const formOf = (q: Quota): QuotaForm => Object.fromEntries(kinds.map(({ key }) => [key, String(q[key] ?? "")]));

/** Reads the form: an empty field is no limit. */
export function quotaOf(form: QuotaForm): Quota {
  const out: Record<string, number | null> = {};
  for (const { key, text } of kinds) {
    const typed = form[key]?.trim() ?? "";
    const n = typed === "" ? null : key === "max_memory_mib" ? memory(typed) : /^\d+$/.test(typed) ? Number(typed) : NaN;
    if (typed !== "" && (n === null || Number.isNaN(n))) throw mistyped("quota." + key, `${text}: write a whole number${key === "max_memory_mib" ? ", or memory such as 64G" : ""}`);
    out[key] = n;
  }
  return out as Quota;
}

export const QuotaFields = ({ form, set, error }: { form: QuotaForm; set: (f: QuotaForm) => void; error: Problem | null }) => (
  <fieldset>
    <legend>Quota <span class="dim">(empty is no limit, 0 is none)</span></legend>
    <div class="two">
      {kinds.map(({ key, text }) => <Text key={key} label={text} field={"quota." + key} error={error} value={form[key] ?? ""} set={(v) => set({ ...form, [key]: v })} placeholder="no limit" />)}
    </div>
  </fieldset>
);

const days = 14;

/** VM hours by day, with the money where prices are set. */
export function UsageByDay({ tenant }: { tenant?: string }) {
  const [usage, setUsage] = useState<Usage | null>(null);
  const [currency, setCurrency] = useState<string | null>(null);
  const tick = Math.floor(happened.value / 20);
  useEffect(() => {
    let gone = false;
    const from = new Date(Date.now() - (days - 1) * 86_400_000);
    from.setUTCHours(0, 0, 0, 0);
    void get<Usage>(`/fleet/usage?group_by=${tenant ? "tenant,day" : "day"}&from=${from.toISOString()}`).then((u) => gone || setUsage(u), () => {});
    if (me.value?.side === "operator") void get<{ currency: string }>("/fleet/prices").then((p) => gone || setCurrency(p.currency), () => {});
    return () => void (gone = true);
  }, [tenant, tick]);
  if (!usage) return <Panel title="Usage by day" class="above"><Skeleton lines={4} /></Panel>;
  const items = usage.items.filter((i) => !tenant || i.tenant === tenant);
  const rows = Array.from({ length: days }, (_, i) => {
    const day = new Date(Date.now() - (days - 1 - i) * 86_400_000).toISOString().slice(0, 10);
    const of = items.filter((one) => one.day === day);
    return { day, seconds: of.reduce((s, o) => s + o.vm_seconds, 0), lease: of.reduce((s, o) => s + o.lease_seconds, 0), micros: of.reduce((s, o) => s + o.amount_micros, 0) };
  });
  const most = Math.max(...rows.map((r) => r.seconds), 1);
  const sum = rows.reduce((s, r) => s + r.micros, 0);
  return (
    <Panel title="Usage by day" class="above" actions={<span class="dim">{sum ? `${money(sum, currency)} in ${days} days` : `the last ${days} days, in UTC`}</span>}>
      <svg class="chart" viewBox={`0 0 ${days * 40} 120`} preserveAspectRatio="none" role="img" aria-label={`VM hours a day for the last ${days} days; the table below has the numbers`}>
        {rows.map((r, i) => <rect key={r.day} class={r.seconds ? "" : "none"} x={i * 40 + 5} width="30" y={118 - (r.seconds / most) * 112} height={Math.max(2, (r.seconds / most) * 112)} rx="2"><title>{`${r.day}: ${span(r.seconds * 1000)}`}</title></rect>)}
      </svg>
      <div class="chart-ends"><span>{rows[0]!.day}</span>{most > 1 && <span>VM time, at most {span(most * 1000)}</span>}<span>today</span></div>
      <details>
        <summary>As numbers</summary>
        <DataTable label="Usage by day" rows={[...rows].reverse()} id={(r) => r.day} size={days} columns={[
          { head: "Day", cell: (r) => r.day },
          { head: "VM time", num: true, cell: (r) => (r.seconds ? span(r.seconds * 1000) : "—") },
          { head: "Lease time", num: true, cell: (r) => (r.lease ? span(r.lease * 1000) : "—") },
          { head: "Amount", num: true, cell: (r) => (r.micros ? money(r.micros, currency) : "—") },
        ]} />
      </details>
    </Panel>
  );
}
