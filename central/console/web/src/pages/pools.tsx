import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { del, patch, post, seg } from "../api.ts";
import type { Pool } from "../api.ts";
import { count, imageTitle, labels, memory, mib, ms, reasons } from "../format.ts";
import { waitReason } from "../sums.ts";
import { images, lost, pools, reloadImages, tenants, took } from "../live.ts";
import { me } from "../session.ts";
import { Ago, ask, Button, Empty, Field, FormDialog, Icon, memo, mistyped, Page, refuse, say, Select, Skeleton, Tag, Text, type Tone, Until } from "../ui.tsx";
import { Launch } from "./launch.tsx";
import { Roll, RollState } from "./roll.tsx";

const states: Record<string, [Tone, string]> = {
  ready: ["ok", "Ready"],
  filling: ["info", "Filling"],
  backing_off: ["warn", "Waiting"],
  paused: ["quiet", "Paused"],
};

export function stateTag(p: Pool) {
  const roll = p.status?.roll;
  if (roll?.state === "paused") return <Tag tone="warn">Roll paused</Tag>;
  if (roll && p.status.state !== "backing_off") return <Tag tone="info">Rolling</Tag>;
  const [tone, text] = states[p.status?.state] ?? ["quiet", p.status?.state ?? "unknown"];
  return <Tag tone={tone}>{text}</Tag>;
}

/** A dot a VM: ready, booting, and dashed for those that are not booted yet. */
export function Dots({ pool: p }: { pool: Pool }) {
  const { ready = 0, booting = 0 } = p.status ?? {};
  const missing = Math.max(0, p.min_ready - ready - booting);
  const words = [`${ready} ready`, booting ? `${booting} booting` : "", missing ? `${missing} not booted yet` : ""].filter(Boolean).join(", ");
  return (
    <span class="dots" role="img" aria-label={words} title={words}>
      {Array.from({ length: ready }, (_, i) => <i key={"r" + i} class="ready" />)}
      {Array.from({ length: booting }, (_, i) => <i key={"b" + i} class="booting" />)}
      {Array.from({ length: missing }, (_, i) => <i key={"m" + i} class="missing" />)}
      {ready + booting + missing === 0 && <span class="dim">none kept</span>}
    </span>
  );
}

/** May whoever is signed in change it? A shared pool is the operator's. */
const mine = (p: Pool) => Boolean(me.value?.writes) && (me.value?.side === "operator" || p.tenant === me.value?.tenant);

/** How many to keep ready. Steps are gathered for a moment and sent as one change. */
function Stepper({ pool: p }: { pool: Pool }) {
  const [wish, setWish] = useState<number | null>(null);
  const timer = useRef(0);
  const shown = wish ?? p.min_ready;
  useEffect(() => {
    if (wish === p.min_ready) setWish(null);
  }, [p.min_ready, p.version]);
  const step = (by: number) => {
    const next = Math.max(0, Math.min(32, shown + by));
    setWish(next);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(async () => {
      try {
        took("pool", await patch<Pool>(`/fleet/pools/${seg(p.name)}`, { min_ready: next }));
      } catch (e) {
        refuse(e);
      }
      setWish(null);
    }, 350);
  };
  return (
    <div class="stepper" role="group" aria-label={`VMs that ${p.name} keeps ready`}>
      <span>Keep ready</span>
      <button type="button" aria-label={`Keep one fewer ready in ${p.name}`} disabled={!mine(p) || shown === 0} onClick={() => step(-1)}>−</button>
      <output aria-live="polite" class={wish !== null ? "pending" : ""}>{shown}</output>
      <button type="button" aria-label={`Keep one more ready in ${p.name}`} disabled={!mine(p) || shown >= 32} onClick={() => step(1)}>+</button>
    </div>
  );
}

const launching = signal<Pool | null>(null);
const rolling = signal<Pool | null>(null);

const Card = memo(({ pool: p }: { pool: Pool }) => {
  const s = p.status ?? {};
  const image = images.value?.find((i) => i.name === p.image);
  const waits = s.wait_reason ? waitReason[s.wait_reason] ?? s.wait_reason : "";
  const hosts = reasons(s.reasons);
  const remove = () =>
    ask({
      title: `Delete warm pool ${p.name}?`,
      body: <p>{s.ready + s.booting > 0 ? `Its ${count(s.ready + s.booting, "warm VM")} will be deleted.` : "It has no warm VM now."} VMs that were taken from it keep running{s.claimed_running ? ` (${s.claimed_running} now)` : ""}.</p>,
      action: "Delete pool",
      danger: true,
      act: async () => {
        await del(`/fleet/pools/${seg(p.name)}`);
        lost("pool", p);
        say(`Deleted warm pool ${p.name}`);
      },
    });
  return (
    <article class="card pool" aria-label={`Warm pool ${p.name}`}>
      <header>
        <h2>{p.name}</h2>
        {stateTag(p)}
        <Tag tone="quiet">{p.tenant ?? "Shared"}</Tag>
      </header>
      <p class="dim">{image?.title || p.image}{image?.title && image.title !== p.image ? ` · ${p.image}` : ""} · {count(p.size.vcpus, "vCPU")}, {mib(p.size.memory_mib)} each</p>
      <Dots pool={p} />
      <p class="dots-words"><strong>{s.ready ?? 0}</strong> of {p.min_ready} ready{s.booting ? `, ${s.booting} booting` : ""}</p>
      <RollState pool={p} steer={mine(p)} />
      <Stepper pool={p} />
      <dl class="stats">
        <div><dt>Launches, 24 h</dt><dd>{s.claimed_24h ?? 0}</dd></div>
        <div><dt>Average start</dt><dd>{s.claimed_24h && s.avg_claim_ms ? ms(s.avg_claim_ms) : "—"}</dd></div>
        <div><dt>Taken, running</dt><dd>{s.claimed_running ?? 0}</dd></div>
        <div><dt>Limit</dt><dd>{p.max_total}</dd></div>
      </dl>
      {(s.last_error || waits) && s.state !== "ready" && s.roll?.state !== "paused" && (
        <div class="trouble" role="note">
          {waits && <p><strong>Waits:</strong> {waits}.{hosts && ` ${hosts[0]!.toUpperCase()}${hosts.slice(1)}.`}</p>}
          {s.last_error && <p><strong>Last error:</strong> {s.last_error}</p>}
          {s.backoff_until && <p class="dim">Next try <Until at={s.backoff_until} past="now" /></p>}
        </div>
      )}
      <p class="dim small">{where(p)}{s.last_claim_at ? <>Last launch <Ago at={s.last_claim_at} /></> : "No launch yet"}</p>
      <footer>
        <Button kind="main" disabled={!me.value?.writes} act={() => void (launching.value = p)} aria-label={`Launch from ${p.name}`}>Launch</Button>
        {mine(p) && <span>
          <Button kind="quiet" act={() => void (rolling.value = p)} aria-label={`Roll image of ${p.name}`}>Roll image</Button>
          <Button kind="quiet" act={remove} aria-label={`Delete pool ${p.name}`}>Delete</Button>
        </span>}
      </footer>
    </article>
  );
});

function where(p: Pool): string {
  const parts = [p.nodes?.length ? `on ${p.nodes.join(", ")}` : "", Object.keys(p.node_selector ?? {}).length ? `where ${Object.entries(p.node_selector).map(([k, v]) => `${k}=${v}`).join(", ")}` : ""].filter(Boolean);
  return parts.length ? `Boots ${parts.join(" ")}. ` : "";
}

export function Pools() {
  const [creating, setCreating] = useState(false);
  const list = pools.value;
  const create = <Button kind="main" disabled={!me.value?.writes} act={() => setCreating(true)}><Icon name="plus" />Create pool</Button>;
  const ready = list?.reduce((n, p) => n + (p.status?.ready ?? 0), 0) ?? 0;
  const wanted = list?.reduce((n, p) => n + p.min_ready, 0) ?? 0;
  return (
    <Page title="Warm pools" note={list?.length ? `${ready} of ${wanted} VMs ready in ${count(list.length, "pool")}` : "VMs that are already running when you launch"} actions={create}>
      {!list ? (
        <div class="cards">{[0, 1, 2].map((i) => <div class="card" key={i}><Skeleton lines={6} /></div>)}</div>
      ) : list.length === 0 ? (
        <Empty title="No warm pool yet" action={create}>A pool keeps VMs of one image booted and idle. A launch then takes one that already runs, instead of waiting for a boot.</Empty>
      ) : (
        <div class="cards">{[...list].sort((a, b) => (a.name < b.name ? -1 : 1)).map((p) => <Card key={p.name} pool={p} />)}</div>
      )}
      {creating && <CreatePool close={() => setCreating(false)} />}
      {launching.value && <Launch pool={launching.value} close={() => (launching.value = null)} />}
      {rolling.value && <Roll of={rolling.value} close={() => (rolling.value = null)} />}
    </Page>
  );
}

function CreatePool({ close }: { close: () => void }) {
  useEffect(reloadImages, []);
  const list = images.value ?? [];
  const [f, setF] = useState({ name: "", image: list[0]?.name ?? "", tenant: "", min: "1", max: "", vcpus: "", memory: "", selector: "", nodes: "" });
  const set = (k: keyof typeof f) => (v: string) => setF((old) => ({ ...old, [k]: v }));
  const image = list.find((i) => i.name === (f.image || list[0]?.name));
  const operator = me.value?.side === "operator";
  const number = (field: string, text: string) => {
    if (!text.trim()) return undefined;
    if (!/^\d+$/.test(text.trim())) throw mistyped(field, `${field} must be a whole number`);
    return Number(text);
  };
  const send = async () => {
    const selector = labels(f.selector);
    if (!selector) throw mistyped("node_selector", "write labels as key=value, separated by commas");
    const size = f.memory.trim() ? memory(f.memory) : undefined;
    if (size === null) throw mistyped("memory_mib", "write memory as 512M or 16G");
    const made = await post<Pool>("/fleet/pools", {
      name: f.name.trim(), image: image?.name ?? "", min_ready: number("min_ready", f.min), max_total: number("max_total", f.max), vcpus: number("vcpus", f.vcpus), memory_mib: size,
      ...(operator && f.tenant ? { tenant: f.tenant } : {}),
      ...(Object.keys(selector).length ? { node_selector: selector } : {}),
      ...(f.nodes.trim() ? { nodes: f.nodes.split(",").map((n) => n.trim()).filter(Boolean) } : {}),
    });
    took("pool", made);
    say(`Created warm pool ${made.name}`, made.note ?? `It keeps ${made.min_ready} of ${made.image} booted (${count(made.size.vcpus, "vCPU")}, ${mib(made.size.memory_mib)} each).`);
  };
  return (
    <FormDialog title="Create a warm pool" action="Create pool" send={send} close={close}>
      {(error) => (
        <>
          <Text label="Name" field="name" error={error} value={f.name} set={set("name")} placeholder="ios-ci" hint="1 to 40 of a–z, 0–9 and -" autoFocus />
          {list.length ? (
            <Select label="Image" field="image" error={error} value={image?.name ?? ""} set={set("image")} options={list.map((i) => ({ value: i.name, text: imageTitle(i) }))} hint={image && `${image.guest_os === "macos" ? "macOS" : "Linux"}, ${count(image.vcpus, "vCPU")} and ${mib(image.memory_mib)} unless set below`} />
          ) : (
            <Field label="Image">{(p) => <p {...p} class="dim">The catalog is empty. {operator ? "Add an image on the Cluster page first." : "Ask the operator to add an image."}</p>}</Field>
          )}
          {operator && (
            <Select label="Owner" field="tenant" error={error} value={f.tenant} set={set("tenant")} options={[{ value: "", text: "Shared (the operator's)" }, ...(tenants.value ?? []).map((t) => ({ value: t.name, text: t.name }))]}
              hint={f.tenant ? "It counts against the tenant's quota and runs on Macs the tenant leases." : "Tenants may take VMs of a shared pool only where policy allows it."} />
          )}
          {image?.guest_os === "macos" && (
            <div class="licence" role="note">
              <p><strong>Apple's licence</strong> allows two macOS guests on a Mac, warm ones included, and a leased Mac serves one tenant. {f.tenant || !operator ? "This pool's VMs boot only on Macs that its tenant leases." : "A shared pool's VMs boot only on Macs that nobody leases, and tenants cannot take them while leases are required for macOS."}</p>
            </div>
          )}
          <Text label="Keep ready" field="min_ready" error={error} value={f.min} set={set("min")} inputMode="numeric" hint="VMs that are booted and wait; 0 pauses the pool" />
          <details>
            <summary>Size, limit and hosts</summary>
            <div class="fields">
              <div class="two">
                <Text label="vCPUs" field="vcpus" error={error} value={f.vcpus} set={set("vcpus")} inputMode="numeric" placeholder={image ? String(image.vcpus) : ""} />
                <Text label="Memory" field="memory_mib" error={error} value={f.memory} set={set("memory")} placeholder={image ? mib(image.memory_mib) : "16G"} />
              </div>
              <Text label="Limit" field="max_total" error={error} value={f.max} set={set("max")} inputMode="numeric" hint="Warm VMs and running ones taken from it, together. Four times what is kept ready unless set." />
              <Text label="Host labels" field="node_selector" error={error} value={f.selector} set={set("selector")} placeholder="zone=lab" />
              <Text label="Hosts" field="nodes" error={error} value={f.nodes} set={set("nodes")} placeholder="studio-1, studio-2" hint="Any that fits unless named" />
            </div>
          </details>
        </>
      )}
    </FormDialog>
  );
}
