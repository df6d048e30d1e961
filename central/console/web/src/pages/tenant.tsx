import { useEffect, useState } from "preact/hooks";
import { all, del, get, patch, post, seg } from "../api.ts";
import type { Key, Tenant, TenantUsage } from "../api.ts";
import { duration } from "../format.ts";
import { happened, lost, tenants, took } from "../live.ts";
import { go, link } from "../route.ts";
import { me } from "../session.ts";
import { SettingsFacts, SettingsFields, settingsForm, settingsOf, useFleetPolicy } from "../settings.tsx";
import { DataTable } from "../table.tsx";
import { Ago, ask, Button, Dialog, Empty, FormDialog, mistyped, Page, Panel, refuse, say, Secret, Select, Skeleton, Tag, Text } from "../ui.tsx";
import { formOf, QuotaBars, QuotaFields, quotaOf, UsageByDay } from "../usage.tsx";

function EditQuota({ tenant: t, close }: { tenant: Tenant; close: () => void }) {
  const [form, setForm] = useState(() => formOf(t.quota));
  const send = async () => {
    took("tenant", await patch<Tenant>(`/fleet/tenants/${seg(t.name)}`, { quota: quotaOf(form) }));
    say(`Changed the quota of ${t.name}`);
  };
  return (
    <FormDialog title={`Quota of ${t.name}`} action="Change quota" send={send} close={close}>
      {(error) => <>
        <p class="dim">What {t.name} holds already it keeps, even above a new limit.</p>
        <QuotaFields form={form} set={setForm} error={error} />
      </>}
    </FormDialog>
  );
}

function EditSettings({ tenant: t, close }: { tenant: Tenant; close: () => void }) {
  const [form, setForm] = useState(() => settingsForm(t));
  const send = async () => {
    took("tenant", await patch<Tenant>(`/fleet/tenants/${seg(t.name)}`, settingsOf(form)));
    say(`Changed the settings of ${t.name}`);
  };
  return (
    <FormDialog title={`Settings of ${t.name}`} action="Change settings" send={send} close={close}>
      {(error) => <>
        <p class="dim">They hold for what {t.name} launches and leases from now on; what runs stays as it is.</p>
        <SettingsFields form={form} set={setForm} error={error} autoFocus />
      </>}
    </FormDialog>
  );
}

function NewKey({ path, roles, close, made }: { path: string; roles: string[]; close: () => void; made: (k: Key) => void }) {
  const [role, setRole] = useState(roles[0]!);
  const [ends, setEnds] = useState("90d");
  const send = async () => {
    const secs = ends.trim() ? duration(ends) : 0;
    if (secs === null) throw mistyped("expires_in_secs", "write the time as 12h or 90d");
    made(await post<Key>(path, { role, expires_in_secs: secs }));
  };
  return (
    <FormDialog title="Make a key" action="Make key" send={send} close={close}>
      {(error) => <>
        <Select label="Role" field="role" error={error} value={role} set={setRole} options={roles.map((r) => ({ value: r, text: r === "viewer" ? "Viewer: may look only" : r === "tenant" ? "Tenant: may do all the tenant may" : "Operator: may do everything" }))} />
        <Text label="Expires in" field="expires_in_secs" error={error} value={ends} set={setEnds} placeholder="90d" hint="Empty: it does not expire" />
      </>}
    </FormDialog>
  );
}

/** Keys of a tenant, or the operator's. A secret is in the answer that made it, and nowhere else. */
export function Keys({ path, roles }: { path: string; roles: string[] }) {
  const [keys, setKeys] = useState<Key[] | null>(null);
  const [making, setMaking] = useState(false);
  const [secret, setSecret] = useState<Key | null>(null);
  const ask_ = () => all<Key>(path).then((k) => setKeys(k.items), refuse);
  useEffect(() => void ask_(), [path]);
  const writes = Boolean(me.value?.writes);
  const revoke = (k: Key) => ask({
    title: "Revoke this key?",
    body: <p>Whoever uses {k.id.slice(0, 8)} is refused from now on, and running streams end. This cannot be undone.</p>,
    action: "Revoke key",
    danger: true,
    act: async () => {
      await del(`${path}/${seg(k.id)}`);
      say("Revoked the key");
      await ask_();
    },
  });
  return (
    <Panel title="Keys" actions={<Button disabled={!writes} act={() => setMaking(true)}>Make key</Button>}>
      {!keys ? <Skeleton /> : (
        <DataTable label="Keys" rows={keys} id={(k) => k.id} size={10} empty={<Empty title="No key yet">A key lets a person, a pipeline or Terraform in.</Empty>} columns={[
          { head: "Key", cell: (k) => <><code>{k.id.slice(0, 8)}</code><p class="dim small">made <Ago at={k.created_at} /></p></> },
          { head: "Role", cell: (k) => <Tag>{k.role}</Tag> },
          { head: "Used", cell: (k) => <Ago at={k.last_used_at} />, num: true },
          { head: "Expires", cell: (k) => <Ago at={k.expires_at} />, num: true },
          { head: "", cell: (k) => writes && <Button kind="quiet" act={() => revoke(k)} aria-label={`Revoke key ${k.id.slice(0, 8)}`}>Revoke</Button> },
        ]} />
      )}
      {making && <NewKey path={path} roles={roles} close={() => setMaking(false)} made={(k) => (setSecret(k), void ask_())} />}
      {secret?.secret && (
        <Dialog title="The new key" close={() => setSecret(null)}>
          <Secret value={secret.secret} what={`A ${secret.role} key.`} />
          <footer><Button kind="main" act={() => setSecret(null)}>I have copied it</Button></footer>
        </Dialog>
      )}
    </Panel>
  );
}

export function OneTenant({ name }: { name: string }) {
  const t = tenants.value?.find((one) => one.name === name);
  const [usage, setUsage] = useState<TenantUsage | null>(null);
  const [missing, setMissing] = useState<unknown>(null);
  const [editing, setEditing] = useState<"" | "quota" | "settings">("");
  const fleet = useFleetPolicy();
  const tick = Math.floor(happened.value / 4);
  useEffect(() => {
    get<TenantUsage>(`/fleet/tenants/${seg(name)}/usage`).then(setUsage, setMissing);
  }, [name, t?.version, tick]);
  const back = { href: link("leases"), text: "Leases and tenants" };
  const operator = me.value?.side === "operator";
  if (!t) return <Page title={tenants.value ? "Not here" : "\u00a0"} back={back}>{tenants.value && missing ? <Empty title={missing instanceof Error ? missing.message : "There is no such tenant"} /> : <Skeleton lines={6} />}</Page>;
  const steers = operator && Boolean(me.value?.writes);
  const remove = () => ask({
    title: `Remove tenant ${t.name}?`,
    body: <p>Its keys stop working. Delete its VMs, pools and leases first: the API refuses otherwise.</p>,
    action: "Remove tenant",
    danger: true,
    act: async () => {
      await del(`/fleet/tenants/${seg(t.name)}`);
      lost("tenant", t);
      go(link("leases"));
      say(`Removed tenant ${t.name}`);
    },
  });
  return (
    <Page title={t.name} back={back} note={<>Tenant, added <Ago at={t.created_at} /></>} actions={steers && <Button kind="danger" act={remove}>Remove</Button>}>
      <div class="columns">
        <Panel title="Quota" actions={steers && <Button act={() => setEditing("quota")}>Change quota</Button>}>
          {usage ? <QuotaBars usage={usage} /> : <Skeleton lines={5} />}
        </Panel>
        <Panel title="Settings" actions={steers && <Button act={() => setEditing("settings")}>Change settings</Button>}>
          <SettingsFacts tenant={t} fleet={fleet} />
        </Panel>
      </div>
      <Keys path={`/fleet/tenants/${seg(t.name)}/keys`} roles={["tenant", "viewer"]} />
      <UsageByDay tenant={t.name} />
      {editing === "quota" && <EditQuota tenant={t} close={() => setEditing("")} />}
      {editing === "settings" && <EditSettings tenant={t} close={() => setEditing("")} />}
    </Page>
  );
}
