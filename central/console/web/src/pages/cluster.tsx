import { useEffect, useState } from "preact/hooks";
import { del, get, patch, post, seg } from "../api.ts";
import type { Image, JoinToken, Policy } from "../api.ts";
import { count, mib, memory, span } from "../format.ts";
import { cluster, images, reloadCluster, reloadImages } from "../live.ts";
import { me } from "../session.ts";
import { DataTable } from "../table.tsx";
import { ask, Button, Check, Dialog, Empty, Facts, FormDialog, Icon, mistyped, Page, Panel, refuse, say, Secret, Select, Skeleton, Tag, Text } from "../ui.tsx";
import { Keys } from "./tenant.tsx";

export function ClusterPage() {
  const [dialog, setDialog] = useState<"" | "join" | "image">("");
  useEffect(() => (reloadCluster(), reloadImages()), []);
  const c = cluster.value;
  const writes = Boolean(me.value?.writes);
  const removeImage = (i: Image) => ask({
    title: `Remove image ${i.name}?`, body: <p>It goes from the catalog; VMs that were booted from it keep running.</p>, action: "Remove image", danger: true,
    act: async () => {
      await del(`/fleet/images/${seg(i.name)}`);
      say(`Removed image ${i.name}`);
      reloadImages();
    },
  });
  return (
    <Page title="Cluster" note={c ? (c.leader ? <><strong>{c.leader}</strong> leads</> : "No leader at the moment") : " "} actions={<Button kind="main" disabled={!writes} act={() => setDialog("join")}><Icon name="plus" />Add a host or replica</Button>}>
      {!c ? <Skeleton lines={6} /> : (
        <>
          <DataTable label="Replicas" rows={c.replicas} id={(r) => r.name} columns={[
            { head: "Replica", by: (r) => r.name, cell: (r) => <strong>{r.name}</strong> },
            { head: "Role", cell: (r) => <Tag tone={r.role === "leader" ? "info" : "quiet"}>{r.role === "leader" ? "Leader" : r.role === "voter" ? "Voter" : "Does not vote"}</Tag> },
            { head: "Health", cell: (r) => <Tag tone={r.healthy ? "ok" : "bad"}>{r.healthy ? "Answers" : "Does not answer"}</Tag> },
            { head: "Behind", num: true, cell: (r) => (r.healthy ? count(Math.max(0, c.index - r.applied_index), "entry", "entries") : "unknown") },
            { head: "Last contact", num: true, cell: (r) => (r.role === "leader" ? "—" : r.last_contact_ms < 0 ? "none" : `${r.last_contact_ms} ms ago`) },
            { head: "Version", cell: (r) => r.version || "—", extra: true },
            { head: "Address", cell: (r) => <code>{r.url || r.cluster_addr}</code>, extra: true },
          ]} />
          <div class="columns">
            <Panel title="State"><Facts of={[["Leader", c.leader || "none"], ["Term", c.term], ["Index", c.index.toLocaleString("en")], ["Epoch", c.epoch], ["Cluster id", <code>{c.id}</code>]]} /></Panel>
            <PolicyPanel writes={writes} />
          </div>
        </>
      )}
      <Panel title="Images" class="above" actions={<Button disabled={!writes} act={() => setDialog("image")}><Icon name="plus" />Add image</Button>}>
        {!images.value ? <Skeleton /> : (
          <DataTable label="Images" rows={images.value} id={(i) => i.name} size={20} empty={<Empty title="The catalog is empty">An image is what VMs boot from, and the size they take unless told otherwise.</Empty>} columns={[
            { head: "Image", by: (i) => i.name, cell: (i) => <><strong>{i.title || i.name}</strong>{i.title && i.title !== i.name && <p class="dim small">{i.name}</p>}</> },
            { head: "Guest", by: (i) => i.guest_os, cell: (i) => (i.guest_os === "macos" ? "macOS" : "Linux") },
            { head: "Size", num: true, by: (i) => i.memory_mib, cell: (i) => `${i.vcpus} vCPU, ${mib(i.memory_mib)}` },
            { head: "Agent", cell: (i) => (i.has_agent ? "yes" : <span class="dim">no</span>) },
            { head: "Path", cell: (i) => <code>{i.path}</code>, extra: true },
            { head: "", cell: (i) => writes && <Button kind="quiet" act={() => removeImage(i)} aria-label={`Remove image ${i.name}`}>Remove</Button> },
          ]} />
        )}
      </Panel>
      <div class="above"><Keys path="/fleet/operator-keys" roles={["viewer", "operator"]} /></div>
      {dialog === "join" && <Join close={() => setDialog("")} />}
      {dialog === "image" && <AddImage close={() => setDialog("")} />}
    </Page>
  );
}

const switches: { key: "allow_shared_pool_claims" | "require_lease_for_macos" | "isolate_tenant_networks"; text: string; hint: string }[] = [
  { key: "allow_shared_pool_claims", text: "Tenants may take VMs from shared pools", hint: "Only for tenants that trust each other: warm VMs of one pool share their secrets and a network." },
  { key: "require_lease_for_macos", text: "macOS guests of tenants need a lease", hint: "As Apple's licence asks." },
  { key: "isolate_tenant_networks", text: "Tenants' VMs share no network", hint: "Then no tenant takes a VM from a shared pool." },
];

function PolicyPanel({ writes }: { writes: boolean }) {
  const [policy, setPolicy] = useState<Policy | null>(null);
  useEffect(() => void get<Policy>("/fleet/policy").then(setPolicy, refuse), []);
  const change = async (what: Partial<Policy>) => {
    try {
      setPolicy(await patch<Policy>("/fleet/policy", what));
      say("Changed the policy");
    } catch (e) {
      refuse(e);
      setPolicy((p) => p && { ...p });
    }
  };
  return (
    <Panel title="Policy">
      {!policy ? <Skeleton lines={4} /> : (
        <fieldset class="policy" disabled={!writes}>
          <legend class="sr">What the operator allows</legend>
          {switches.map((s) => <Check key={s.key} label={s.text} hint={s.hint} value={policy[s.key]} set={(v) => void change({ [s.key]: v })} />)}
          <Facts of={[["Shortest lease of a Mac", `${policy.min_lease_hours} h`], ["Spares a host starts at once", policy.max_boots_per_node],
            ["A silent host is lost", policy.lost_after_seconds ? `after ${span(policy.lost_after_seconds * 1000)}` : "when an operator says so"]]} />
        </fieldset>
      )}
    </Panel>
  );
}

function Join({ close }: { close: () => void }) {
  const [kind, setKind] = useState("node");
  const [pattern, setPattern] = useState("*");
  const [made, setMade] = useState<JoinToken | null>(null);
  if (made) {
    const urls = (cluster.value?.replicas ?? []).map((r) => r.url).filter(Boolean).join(",") || location.origin;
    return (
      <Dialog title={made.kind === "node" ? "Add a host" : "Add a replica"} close={close}>
        <Secret value={made.token} what="The join token." />
        <div class="prose">
          <p>Put it into a file on the machine, then run there:</p>
          <pre tabIndex={0}>{made.kind === "node" ? `fluxvm-agent node --central ${urls} --join-token-file FILE` : `fluxvm-agent central --join ${urls} --join-token-file FILE`}</pre>
        </div>
        <footer><Button kind="main" act={close}>Done</Button></footer>
      </Dialog>
    );
  }
  return (
    <FormDialog title="Add a host or replica" action="Make join token" close={close} send={async () => {
      setMade(await post<JoinToken>("/fleet/join-tokens", { kind, name_pattern: pattern.trim() || "*" }));
      return "stay"; // the token takes the form's place
    }}>
      {(error) => <>
        <p class="dim">The token lets one machine in and is good for an hour.</p>
        <Select label="What" field="kind" error={error} value={kind} set={setKind} options={[{ value: "node", text: "A host, which runs VMs" }, { value: "replica", text: "A replica of the control plane" }]} />
        <Text label="Names" field="name_pattern" error={error} value={pattern} set={setPattern} hint="A pattern that its name must match, such as studio-*" />
      </>}
    </FormDialog>
  );
}

function AddImage({ close }: { close: () => void }) {
  const [f, setF] = useState({ name: "", title: "", path: "", guest: "linux", vcpus: "", memory: "", agent: true });
  const set = <K extends keyof typeof f>(k: K) => (v: (typeof f)[K]) => setF((old) => ({ ...old, [k]: v }));
  const send = async () => {
    const size = f.memory.trim() ? memory(f.memory) : undefined;
    if (size === null) throw mistyped("memory_mib", "write memory as 512M or 16G");
    const made = await post<Image>("/fleet/images", { name: f.name.trim(), path: f.path.trim(), guest_os: f.guest, ...(f.title.trim() ? { title: f.title.trim() } : {}), ...(f.vcpus.trim() ? { vcpus: Number(f.vcpus) } : {}), memory_mib: size, has_agent: f.agent });
    reloadImages();
    say(`Added image ${made.name}`);
  };
  return (
    <FormDialog title="Add an image" action="Add image" send={send} close={close}>
      {(error) => <>
        <Text label="Name" field="name" error={error} value={f.name} set={set("name")} placeholder="macos-27-xcode" autoFocus />
        <Text label="Title" field="title" error={error} value={f.title} set={set("title")} placeholder="macOS 27 with Xcode" />
        <Text label="Path" field="path" error={error} value={f.path} set={set("path")} mono hint="Where the hosts find it" />
        <Select label="Guest" field="guest_os" error={error} value={f.guest} set={set("guest")} options={[{ value: "linux", text: "Linux" }, { value: "macos", text: "macOS" }]} />
        <div class="two">
          <Text label="vCPUs" field="vcpus" error={error} value={f.vcpus} set={set("vcpus")} inputMode="numeric" placeholder="1" />
          <Text label="Memory" field="memory_mib" error={error} value={f.memory} set={set("memory")} placeholder="512M" />
        </div>
        <Check label="The guest agent is in it" value={f.agent} set={set("agent")} />
      </>}
    </FormDialog>
  );
}
