import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, type Problem } from "./api.ts";
import type { Policy, Tenant, TenantPolicy } from "./api.ts";
import { duration, exact } from "./format.ts";
import { me } from "./session.ts";
import { Facts, mistyped, Select, Text } from "./ui.tsx";

const switches = [
  { key: "allow_shared_pool_claims", text: "VMs of shared pools", yes: "may be taken", no: "may not be taken", hint: "Only where tenants trust each other: warm VMs of one pool share their secrets and a network." },
  { key: "require_lease_for_macos", text: "macOS guests", yes: "need a lease", no: "need no lease", hint: "Apple's licence asks for a lease." },
  { key: "isolate_tenant_networks", text: "Its network", yes: "is shared with nobody", no: "may be shared", hint: "Where it is shared with nobody, no VM of a shared pool is taken." },
] as const;

/** The fleet's policy, for those who may see it. */
export function useFleetPolicy(): Policy | null {
  const [policy, setPolicy] = useState<Policy | null>(null);
  const operator = me.value?.side === "operator";
  useEffect(() => {
    if (operator) void get<Policy>("/fleet/policy").then(setPolicy, () => {});
  }, [operator]);
  return policy;
}

/** A tenant's time limits and where its policy differs, as text; empty is no limit, or the fleet's. */
export type SettingsForm = { default_ttl: string; max_ttl: string; min_lease: string } & Record<(typeof switches)[number]["key"], string>;

export function settingsForm(t?: Tenant): SettingsForm {
  const time = (secs: number | null | undefined) => (secs ? exact(secs) : "");
  const choice = (on: boolean | null | undefined) => (on === true ? "yes" : on === false ? "no" : "");
  const p: TenantPolicy = t?.policy ?? {};
  return {
    default_ttl: time(t?.default_ttl_seconds), max_ttl: time(t?.max_ttl_seconds), min_lease: String(p.min_lease_hours ?? ""),
    allow_shared_pool_claims: choice(p.allow_shared_pool_claims), require_lease_for_macos: choice(p.require_lease_for_macos), isolate_tenant_networks: choice(p.isolate_tenant_networks),
  };
}

/** Reads the form as what the API takes. */
export function settingsOf(f: SettingsForm): { default_ttl_seconds: number | null; max_ttl_seconds: number | null; policy: TenantPolicy } {
  const time = (field: string, text: string) => {
    const secs = text.trim() ? duration(text) : null;
    if (secs === null && text.trim()) throw mistyped(field, "write the time limit as 90m, 2h or 7d, or leave it empty for none");
    return secs;
  };
  const hours = f.min_lease.trim();
  if (hours && !/^\d+$/.test(hours)) throw mistyped("policy.min_lease_hours", "write the shortest lease as a whole number of hours, or leave it empty for the fleet's");
  const policy: TenantPolicy = { min_lease_hours: hours ? Number(hours) : null };
  for (const { key } of switches) policy[key] = f[key] ? f[key] === "yes" : null;
  return { default_ttl_seconds: time("default_ttl_seconds", f.default_ttl), max_ttl_seconds: time("max_ttl_seconds", f.max_ttl), policy };
}

const capital = (s: string) => s[0]!.toUpperCase() + s.slice(1);

export function SettingsFields({ form: f, set, error, autoFocus }: { form: SettingsForm; set: (f: SettingsForm) => void; error: Problem | null; autoFocus?: boolean }) {
  const fleet = useFleetPolicy();
  const to = (k: keyof SettingsForm) => (v: string) => set({ ...f, [k]: v });
  return (
    <div class="fields">
      <fieldset>
        <legend>Time limits of its VMs <span class="dim">(empty is no limit)</span></legend>
        <div class="two">
          <Text label="Default" field="default_ttl_seconds" error={error} value={f.default_ttl} set={to("default_ttl")} placeholder="2h" autoFocus={autoFocus} />
          <Text label="Longest" field="max_ttl_seconds" error={error} value={f.max_ttl} set={to("max_ttl")} placeholder="7d" />
        </div>
      </fieldset>
      <fieldset>
        <legend>Policy <span class="dim">(default is what holds for the whole fleet)</span></legend>
        <div class="fields">
          {switches.map((s) => <Select key={s.key} label={s.text} field={"policy." + s.key} error={error} value={f[s.key]} set={to(s.key)} hint={s.hint}
            options={[{ value: "", text: "Default" + (fleet ? `: ${fleet[s.key] ? s.yes : s.no}` : "") }, { value: "yes", text: capital(s.yes) }, { value: "no", text: capital(s.no) }]} />)}
          <Text label="Shortest lease of a Mac, in hours" field="policy.min_lease_hours" error={error} value={f.min_lease} set={to("min_lease")} inputMode="numeric" placeholder={fleet ? `Default: ${fleet.min_lease_hours}` : "Default"} hint="Leases made from now on; Apple's licence asks for 24" />
        </div>
      </fieldset>
    </div>
  );
}

/** What holds for a tenant, and what of it is the fleet's. fleet is null for those who may not see it. */
export function SettingsFacts({ tenant: t, fleet }: { tenant: Tenant; fleet: Policy | null }) {
  const time = (secs: number | null) => (secs ? exact(secs) : <span class="dim">none</span>);
  const held = <V,>(own: V | null | undefined, all: V | undefined, show: (v: V) => string) =>
    own !== null && own !== undefined ? show(own) : all !== undefined ? <>{show(all)} <span class="dim">by default</span></> : <span class="dim">the fleet's default</span>;
  return <Facts of={[
    ["Default time limit", time(t.default_ttl_seconds)],
    ["Longest time limit", time(t.max_ttl_seconds)],
    ...switches.map((s) => [s.text, held(t.policy?.[s.key], fleet?.[s.key], (on) => (on ? s.yes : s.no))] as [string, ComponentChildren]),
    ["Shortest lease of a Mac", held(t.policy?.min_lease_hours, fleet?.min_lease_hours, (h) => `${h} h`)],
  ]} />;
}
